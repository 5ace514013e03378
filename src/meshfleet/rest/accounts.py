"""Bodies of accounts, logins and the audit log."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Literal

from meshfleet.rest.bodies import HidesSecrets, RequestBody, ResponseBody, TimeText

TOKEN_LIFETIME: Final = timedelta(minutes=30)


class Role(StrEnum):
    """Role of an account. Each role includes those before it (auth-16 to auth-18)."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Return whether this role permits everything that the other one does."""
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(other)


class Login(HidesSecrets, RequestBody, frozen=True, kw_only=True):
    """Credentials of a login (auth-1)."""

    shown = ("username",)
    username: str
    password: str


class LoggedIn(HidesSecrets, ResponseBody, frozen=True, kw_only=True):
    """Access token of a successful login (auth-2)."""

    status: Literal["SUCCESS"] = "SUCCESS"
    auth_token: str
    session_id: None = None


class Me(ResponseBody, frozen=True, kw_only=True):
    """Account that the access token or API key belongs to (auth-11)."""

    username: str
    """User name, or the name of the API key."""
    role: Role
    kind: Literal["user", "api-key"]


class NewPassword(HidesSecrets, RequestBody, frozen=True, kw_only=True):
    """Change of one's own password (auth-12)."""

    current: str
    password: str


class User(ResponseBody, frozen=True, kw_only=True):
    """User account (auth-21)."""

    username: str
    role: Role
    created_at: TimeText
    last_login_at: TimeText | None


class UserPage(ResponseBody, frozen=True, kw_only=True):
    """Page of users, by name."""

    items: list[User]
    next_token: str | None


class NewUser(HidesSecrets, RequestBody, frozen=True, kw_only=True):
    """User to create (auth-21)."""

    shown = ("username", "role")
    username: str
    password: str
    role: Role


class UserChange(HidesSecrets, RequestBody, frozen=True, kw_only=True):
    """Changes of a user. Absent fields are unchanged (auth-23)."""

    shown = ("role",)
    role: Role | None = None
    password: str | None = None


class NewApiKey(RequestBody, frozen=True, kw_only=True):
    """API key to create (auth-24)."""

    name: str
    role: Role
    expires_at: str | None = None


class ApiKey(ResponseBody, frozen=True, kw_only=True):
    """API key without its secret."""

    id: str
    name: str
    role: Role
    created_by: str
    created_at: TimeText
    expires_at: TimeText | None


class ApiKeyPage(ResponseBody, frozen=True, kw_only=True):
    """Page of API keys, by name."""

    items: list[ApiKey]
    next_token: str | None


class IssuedApiKey(HidesSecrets, ResponseBody, frozen=True, kw_only=True):
    """New API key with its secret, which cannot be read again (auth-24)."""

    shown = ("id", "name")
    id: str
    name: str
    role: Role
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
    """Page of the audit log, the newest change first."""

    items: list[AuditRow]
    next_token: str | None
