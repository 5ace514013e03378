"""`fleet.users`, `fleet.api_keys` and `fleet.audit`: who may come in, and what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet import rest
from meshfleet.client.arguments import Moment, check_text, format_optional_time, parse_enum
from meshfleet.client.rest.http_caller import iterate_items
from meshfleet.client.rest.http_messages import build_query
from meshfleet.rest import Role

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from meshfleet.client.rest.http_caller import HttpCaller
    from meshfleet.rest import ApiKey, AuditRow, IssuedApiKey, User


class Users:
    """The people who may log in."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    def list(self) -> AsyncGenerator[User, None]:
        """All users, by name."""
        return iterate_items(self._caller, rest.UserPage, rest.USERS_PATH)

    async def add(self, username: str, password: str, role: Role | str) -> User:
        """Let somebody in from now on."""
        ask = rest.NewUser(username=username, password=password, role=parse_enum(Role, role, "role"))
        return await self._caller.post(rest.User, rest.USERS_PATH, ask)

    async def show(self, username: str) -> User:
        """All about a user."""
        return await self._caller.get(rest.User, rest.user_path(check_text(username, "username")))

    async def change(
        self, username: str, role: Role | str | None = None, password: str | None = None
    ) -> User:
        """Change the role or the password of a user; with a new password all their logins end."""
        ask = rest.UserChange(
            role=None if role is None else parse_enum(Role, role, "role"), password=password
        )
        return await self._caller.put(rest.User, rest.user_path(check_text(username, "username")), ask)

    async def remove(self, username: str) -> None:
        """Let somebody in no longer; their logins end. The last admin stays."""
        await self._caller.delete(rest.user_path(check_text(username, "username")))


class ApiKeys:
    """Keys for programs."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    def list(self) -> AsyncGenerator[ApiKey, None]:
        """All keys, by name, without what opens doors."""
        return iterate_items(self._caller, rest.ApiKeyPage, rest.API_KEYS_PATH)

    async def issue(self, name: str, role: Role | str, expires_at: Moment | None = None) -> IssuedApiKey:
        """Make a key for a program, which is told this once."""
        ask = rest.NewApiKey(
            name=name,
            role=parse_enum(Role, role, "role"),
            expires_at=format_optional_time(expires_at, "expires_at"),
        )
        return await self._caller.post(rest.IssuedApiKey, rest.API_KEYS_PATH, ask)

    async def revoke(self, key: str) -> None:
        """Let nobody in with this key any more, which is named by its id."""
        await self._caller.delete(rest.api_key_path(check_text(key, "key")))


class Audit:
    """The audit log: one row for every change that somebody made."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    def list(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> AsyncGenerator[AuditRow, None]:
        """Changes, the newest first: by one actor, of one kind such as `device.rename`, to one thing."""
        times = {"From": format_optional_time(since, "since"), "To": format_optional_time(until, "until")}
        chosen = build_query({"Actor": actor, "Action": action, "Target": target, **times})
        return iterate_items(self._caller, rest.AuditPage, rest.AUDIT_PATH, chosen)
