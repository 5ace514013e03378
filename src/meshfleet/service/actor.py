"""Authenticated originator of an operation, as authorization and the audit log use it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from meshfleet.rest.accounts import Role


class Actor(Struct, frozen=True, kw_only=True):
    """User, API key, gateway or program that performs an operation."""

    name: str
    role: Role
    kind: Literal["user", "api-key", "gateway", "program"]
    address: str | None = None
    """Client address; None: unknown, or not a network client."""
    session: str | None = None
    """Id of the session that a user's access token belongs to; None: no user."""

    @property
    def display_name(self) -> str:
        """Name in the audit log, with the kind unless it is a user."""
        return self.name if self.kind == "user" else f"{self.kind}: {self.name}"


SERVICE = Actor(name="service", role=Role.ADMIN, kind="program")
COMMAND_LINE = Actor(name="command line", role=Role.ADMIN, kind="program")
