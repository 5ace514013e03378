"""JSON bodies of the REST API: accounts, logins and the audit log."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Literal

from meshfleet.rest.bodies import HidesSecrets, RequestBody, ResponseBody, TimeText

TOKEN_LIFETIME: Final = timedelta(minutes=30)
"""Time after which an access token expires, unless it is renewed."""


class Role(StrEnum):
    """Role of an account. Each role has all permissions of the roles before it (auth-16 to auth-18)."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Return whether this role has all permissions of the other role."""
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(other)


class ApiKeyKind(StrEnum):
    """Kind of an API key: what uses it (auth-33)."""

    PROGRAM = "program"
    """Programs that use REST, MQTT or both."""
    HOMEASSISTANT = "homeassistant"
    """Home Assistant, which uses MQTT only."""


class Login(HidesSecrets, RequestBody, frozen=True, kw_only=True):
    """Request to log in: the user name and password of a user (auth-1)."""

    shown = ("username",)
    username: str
    password: str


class LoggedIn(HidesSecrets, ResponseBody, frozen=True, kw_only=True):
    """Response to a successful login: the access token (auth-2)."""

    status: Literal["SUCCESS"] = "SUCCESS"
    auth_token: str
    session_id: None = None


class Me(ResponseBody, frozen=True, kw_only=True):
    """Account to which the access token or API key of a request belongs (auth-11)."""

    username: str
    """Name of the user, or of the API key."""
    role: Role
    kind: Literal["user", "api-key"]


class NewPassword(HidesSecrets, RequestBody, frozen=True, kw_only=True):
    """Request to change the password of the logged-in user: the current and the new password (auth-12)."""

    current: str
    password: str


class User(ResponseBody, frozen=True, kw_only=True):
    """User account, without the password (auth-21)."""

    username: str
    role: Role
    created_at: TimeText
    last_login_at: TimeText | None


class UserPage(ResponseBody, frozen=True, kw_only=True):
    """Page of user accounts, sorted by name."""

    items: list[User]
    next_token: str | None


class NewUser(HidesSecrets, RequestBody, frozen=True, kw_only=True):
    """Request to create a user account (auth-21)."""

    shown = ("username", "role")
    username: str
    password: str
    role: Role


class UserChange(HidesSecrets, RequestBody, frozen=True, kw_only=True):
    """Request to change a user account; absent fields stay unchanged (auth-23)."""

    shown = ("role",)
    role: Role | None = None
    password: str | None = None


class NewApiKey(RequestBody, frozen=True, kw_only=True):
    """Request to create an API key (auth-24)."""

    name: str
    role: Role
    expires_at: str | None = None
    kind: ApiKeyKind = ApiKeyKind.PROGRAM


class ApiKey(ResponseBody, frozen=True, kw_only=True):
    """API key without its secret value."""

    id: str
    name: str
    role: Role
    kind: ApiKeyKind
    created_by: str
    created_at: TimeText
    expires_at: TimeText | None


class ApiKeyPage(ResponseBody, frozen=True, kw_only=True):
    """Page of API keys, sorted by name."""

    items: list[ApiKey]
    next_token: str | None


class IssuedApiKey(HidesSecrets, ResponseBody, frozen=True, kw_only=True):
    """New API key with its secret value, which cannot be read again (auth-24)."""

    shown = ("id", "name")
    id: str
    name: str
    role: Role
    kind: ApiKeyKind
    expires_at: TimeText | None
    key: str


class AuditRow(ResponseBody, frozen=True, kw_only=True):
    """Row of the audit log: one change and the account that made it (auth-27)."""

    id: int
    time: TimeText
    actor: str
    action: str
    target: str
    detail: dict[str, Any]
    address: str | None


class AuditPage(ResponseBody, frozen=True, kw_only=True):
    """Page of the audit log, sorted by time, the newest change first."""

    items: list[AuditRow]
    next_token: str | None
