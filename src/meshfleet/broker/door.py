"""Who decides about clients: the broker asks, and the rooms that know accounts answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from meshfleet.errors import FleetError

if TYPE_CHECKING:
    from meshfleet.broker.access import Account
    from meshfleet.wire.mqtt.packets import Accept, Connect


class NotAdmitted(FleetError):
    """A client is not let in. `accept` is the return code that it gets."""

    code, http = "not-admitted", 403

    def __init__(self, accept: Accept, reason: str) -> None:
        super().__init__(accept, reason)
        self.accept = accept
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Door(Protocol):
    """Knows accounts and their credentials."""

    async def admit(self, connect: Connect, address: str) -> Account:
        """Whose client this is; or raise `NotAdmitted`."""

    def forbidden(self, account: Account, address: str, deed: str, topic: str) -> None:
        """Take note of somebody who wanted more than the rules allow."""
