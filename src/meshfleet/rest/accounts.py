"""Bodies about people, programs and what they did."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from meshfleet.rest.bodies import RequestBody, ResponseBody, TimeText


class Role(StrEnum):
    """What somebody may do; each may do what those before may (auth-16 to auth-18)."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Whether it may do all that the other may."""
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(other)


class Login(RequestBody, frozen=True, kw_only=True):
    """Who wants in (auth-1)."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Login(username={self.username!r}, password=…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("username", self.username)]


class LoggedIn(ResponseBody, frozen=True, kw_only=True):
    """The token to come with (auth-2)."""

    status: Literal["SUCCESS"] = "SUCCESS"
    auth_token: str
    session_id: None = None

    def __repr__(self) -> str:
        return "LoggedIn(auth_token=…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return []


class Me(ResponseBody, frozen=True, kw_only=True):
    """Who the token belongs to (auth-11)."""

    username: str
    """Of a program: the name of its API key."""
    role: Role
    kind: Literal["user", "api-key"]


class NewPassword(RequestBody, frozen=True, kw_only=True):
    """Somebody's own new password (auth-12)."""

    current: str
    password: str

    def __repr__(self) -> str:
        return "NewPassword(…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return []


class User(ResponseBody, frozen=True, kw_only=True):
    """A person (auth-21)."""

    username: str
    role: Role
    created_at: TimeText
    last_login_at: TimeText | None


class UserPage(ResponseBody, frozen=True, kw_only=True):
    """People, by name."""

    items: list[User]
    next_token: str | None


class NewUser(RequestBody, frozen=True, kw_only=True):
    """A person to let in (auth-21)."""

    username: str
    password: str
    role: Role

    def __repr__(self) -> str:
        return f"NewUser(username={self.username!r}, role={self.role!r}, password=…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("username", self.username), ("role", self.role)]


class UserChange(RequestBody, frozen=True, kw_only=True):
    """What becomes of a person; what is absent stays (auth-23)."""

    role: Role | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"UserChange(role={self.role!r}, password=…)"

    def __rich_repr__(self) -> list[tuple[str, str | None]]:
        return [("role", self.role)]


class NewApiKey(RequestBody, frozen=True, kw_only=True):
    """A key for a program (auth-24)."""

    name: str
    role: Role
    expires_at: str | None = None


class ApiKey(ResponseBody, frozen=True, kw_only=True):
    """A key, without what opens doors."""

    id: str
    name: str
    role: Role
    created_by: str
    created_at: TimeText
    expires_at: TimeText | None


class ApiKeyPage(ResponseBody, frozen=True, kw_only=True):
    """Keys, by name."""

    items: list[ApiKey]
    next_token: str | None


class IssuedApiKey(ResponseBody, frozen=True, kw_only=True):
    """A new key, which is shown this once (auth-24)."""

    id: str
    name: str
    role: Role
    expires_at: TimeText | None
    key: str

    def __repr__(self) -> str:
        return f"IssuedApiKey(id={self.id!r}, name={self.name!r}, key=…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("id", self.id), ("name", self.name)]


class AuditRow(ResponseBody, frozen=True, kw_only=True):
    """A change, and who made it (auth-27)."""

    id: int
    time: TimeText
    actor: str
    action: str
    target: str
    detail: dict[str, Any]
    address: str | None


class AuditPage(ResponseBody, frozen=True, kw_only=True):
    """Changes, the newest first."""

    items: list[AuditRow]
    next_token: str | None
