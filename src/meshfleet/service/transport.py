"""How messages of the service get to gateways, and answers back, whichever broker is between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meshfleet.mqtt.codec.packets import Publish


class Transport(Protocol):
    """The embedded broker, or the link to another one."""

    def send(self, messages: Sequence[Publish]) -> None:
        """Send messages soon. Those for who is away, or for whom there is no room, may be dropped."""

    async def send_urgent(self, message: Publish) -> None:
        """Let a message leave as soon as there is room, before all that was sent and waits.

        Who is cancelled before that takes it back. One for who is away is dropped.
        """

    @property
    def unavailable_reason(self) -> str | None:
        """Why nothing can be sent at the moment; None: it can."""

    def subscribe(self, topic_filter: str, callback: Callable[[Publish], None]) -> object:
        """Let somebody hear what a filter matches."""

    def connected_gateways(self) -> Mapping[str, int] | None:
        """The gateways that are connected, by MAC, each with a number that differs with its connection.

        None: only their broker knows.
        """

    def connection_number(self, gateway: str) -> int | None:
        """The number of one of them, among thousands; 0: it is not connected. None: as above."""

    def last_connection_number(self, gateway: str) -> int | None:
        """Return the same, or the number of its last connection; 0: it never connected. None: as above."""
