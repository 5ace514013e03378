"""`fleet.users`, `fleet.api_keys` and `fleet.audit`: user accounts, API keys and the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.client.arguments import Moment, check_text, format_optional_time, parse_enum
from meshfleet.client.rest.http_caller import RestResource
from meshfleet.client.rest.http_messages import build_query
from meshfleet.rest.accounts import (
    ApiKeyKind,
    ApiKeyPage,
    AuditPage,
    IssuedApiKey,
    NewApiKey,
    NewUser,
    Role,
    User,
    UserChange,
    UserPage,
)
from meshfleet.rest.paths import API_KEYS_PATH, AUDIT_PATH, USERS_PATH, api_key_path, user_path

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from meshfleet.rest.accounts import ApiKey, AuditRow


class Users(RestResource):
    """User accounts of a fleet. All methods need the role admin."""

    def list(self) -> AsyncGenerator[User, None]:
        """List all user accounts, ordered by name."""
        return self._caller.iterate_items(UserPage, USERS_PATH)

    async def add(self, username: str, password: str, role: Role | str) -> User:
        """Create a user account."""
        body = NewUser(username=username, password=password, role=parse_enum(Role, role, "role"))
        return await self._caller.post(User, USERS_PATH, body)

    async def show(self, username: str) -> User:
        """Get the account of the user with this name."""
        return await self._caller.get(User, user_path(check_text(username, "username")))

    async def change(
        self, username: str, role: Role | str | None = None, password: str | None = None
    ) -> User:
        """Change the role, the password or both of a user. A new password ends all logins of the user."""
        body = UserChange(role=None if role is None else parse_enum(Role, role, "role"), password=password)
        return await self._caller.put(User, user_path(check_text(username, "username")), body)

    async def remove(self, username: str) -> None:
        """Delete a user, and end all logins of the user. Raise `LastAdmin` for the last admin."""
        await self._caller.delete(user_path(check_text(username, "username")))


class ApiKeys(RestResource):
    """API keys, with which programs authenticate. All methods need the role admin."""

    def list(self) -> AsyncGenerator[ApiKey, None]:
        """List all API keys, ordered by name, without their secret values."""
        return self._caller.iterate_items(ApiKeyPage, API_KEYS_PATH)

    async def issue(
        self,
        name: str,
        role: Role | str,
        expires_at: Moment | None = None,
        *,
        kind: ApiKeyKind | str = ApiKeyKind.PROGRAM,
    ) -> IssuedApiKey:
        """Create an API key. Only the returned object contains the secret value; it cannot be read later.

        A key of the kind `homeassistant` is only for Home Assistant at the embedded MQTT broker.
        """
        body = NewApiKey(
            name=name,
            role=parse_enum(Role, role, "role"),
            expires_at=format_optional_time(expires_at, "expires_at"),
            kind=parse_enum(ApiKeyKind, kind, "kind"),
        )
        return await self._caller.post(IssuedApiKey, API_KEYS_PATH, body)

    async def revoke(self, key: str) -> None:
        """Revoke an API key. `key` is the id of the API key, not the secret value."""
        await self._caller.delete(api_key_path(check_text(key, "key")))


class Audit(RestResource):
    """Audit log of a fleet, with a row for every change. Needs the role admin."""

    def list(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> AsyncGenerator[AuditRow, None]:
        """List the changes in the audit log, the newest first.

        Filter by account (`actor`), kind of change (`action`, such as `device.rename`) and changed resource
        (`target`). `since` is inclusive, `until` exclusive.
        """
        times = {"From": format_optional_time(since, "since"), "To": format_optional_time(until, "until")}
        query = build_query({"Actor": actor, "Action": action, "Target": target, **times})
        return self._caller.iterate_items(AuditPage, AUDIT_PATH, query)
