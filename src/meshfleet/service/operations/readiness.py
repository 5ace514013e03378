"""Whether the service can do its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import Unavailable

if TYPE_CHECKING:
    from meshfleet.broker import Broker


class Readiness:
    """Knows what the service stands on, besides its database."""

    def __init__(self) -> None:
        self._broker: Broker | None = None

    def watch(self, broker: Broker) -> None:
        """The broker counts too from now on."""
        self._broker = broker

    def check(self) -> None:
        """Raise the reason if something is amiss."""
        if self._broker is not None and self._broker.trouble is not None:
            raise Unavailable(f"the broker cannot commit: {self._broker.trouble}")
