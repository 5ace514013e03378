"""Authenticated user, API key, gateway or program that performs an operation."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from meshfleet.rest.accounts import Role


class Actor(Struct, frozen=True, kw_only=True):
    """User, API key, gateway or program that performs an operation, for authorization and the audit log."""

    name: str
    role: Role
    kind: Literal["user", "api-key", "gateway", "program"]
    address: str | None = None
    """IP address of the client; None if it is unknown or there is no network client."""
    session: str | None = None
    """Id of the login session of a user; None for other kinds of actors."""

    @property
    def display_name(self) -> str:
        """Name in the audit log, such as `alice` for a user or `gateway: 02005e0000f0` for other kinds."""
        return self.name if self.kind == "user" else f"{self.kind}: {self.name}"


SERVICE = Actor(name="service", role=Role.ADMIN, kind="program")
COMMAND_LINE = Actor(name="command line", role=Role.ADMIN, kind="program")
