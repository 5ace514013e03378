"""`fleet.users`, `fleet.api_keys` and `fleet.audit`: who may come in, and what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.client.names import Moment, moment, one_of, text_of
from meshfleet.client.rest.calls import query
from meshfleet.client.rest.pages import walk
from meshfleet.wire import rest
from meshfleet.wire.rest import Role

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from meshfleet.client.rest.desk import Desk
    from meshfleet.wire.rest import ApiKey, AuditRow, IssuedApiKey, User


class Users:
    """The people who may log in."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def list(self) -> AsyncGenerator[User, None]:
        """All users, by name."""
        return walk(self._desk, rest.UserPage, rest.USERS)

    async def add(self, username: str, password: str, role: Role | str) -> User:
        """Let somebody in from now on."""
        ask = rest.NewUser(username=username, password=password, role=one_of(Role, role, "role"))
        return await self._desk.post(rest.User, rest.USERS, ask)

    async def show(self, username: str) -> User:
        """All about a user."""
        return await self._desk.get(rest.User, rest.user_path(text_of(username, "username")))

    async def change(
        self, username: str, role: Role | str | None = None, password: str | None = None
    ) -> User:
        """Change the role or the password of a user; with a new password all their logins end."""
        ask = rest.UserChange(role=None if role is None else one_of(Role, role, "role"), password=password)
        return await self._desk.put(rest.User, rest.user_path(text_of(username, "username")), ask)

    async def remove(self, username: str) -> None:
        """Let somebody in no longer; their logins end. The last admin stays."""
        await self._desk.delete(rest.user_path(text_of(username, "username")))


class ApiKeys:
    """Keys for programs."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def list(self) -> AsyncGenerator[ApiKey, None]:
        """All keys, by name, without what opens doors."""
        return walk(self._desk, rest.ApiKeyPage, rest.API_KEYS)

    async def issue(self, name: str, role: Role | str, expires_at: Moment | None = None) -> IssuedApiKey:
        """Make a key for a program, which is told this once."""
        ask = rest.NewApiKey(
            name=name, role=one_of(Role, role, "role"), expires_at=moment(expires_at, "expires_at")
        )
        return await self._desk.post(rest.IssuedApiKey, rest.API_KEYS, ask)

    async def revoke(self, key: str) -> None:
        """Let nobody in with this key any more, which is named by its id."""
        await self._desk.delete(rest.api_key_path(text_of(key, "key")))


class Audit:
    """The audit log: one row for every change that somebody made."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

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
        times = {"From": moment(since, "since"), "To": moment(until, "until")}
        chosen = query({"Actor": actor, "Action": action, "Target": target, **times})
        return walk(self._desk, rest.AuditPage, rest.AUDIT, chosen)
