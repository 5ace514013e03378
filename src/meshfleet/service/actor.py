"""Who acts."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from meshfleet.rest import Role


class Actor(Struct, frozen=True, kw_only=True):
    """Somebody who may do something, and where they came from."""

    name: str
    role: Role
    kind: Literal["user", "api-key", "gateway", "program"]
    address: str | None = None
    session: str | None = None
    """The login that a person's token comes from."""

    @property
    def display_name(self) -> str:
        """The name as the audit log has it."""
        return self.name if self.kind == "user" else f"{self.kind}: {self.name}"


SERVICE = Actor(name="service", role=Role.ADMIN, kind="program")
COMMAND_LINE = Actor(name="command line", role=Role.ADMIN, kind="program")
