"""Transport of MQTT messages between service and gateways, independent of the broker in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meshfleet.errors.readiness import ReadinessProblem
    from meshfleet.mqtt.broker import ReportConsumer
    from meshfleet.mqtt.codec.packets import Publish


class Transport(Protocol):
    """MQTT connection to the gateways: the embedded broker or the client of an external one."""

    def send(self, messages: Sequence[Publish]) -> None:
        """Queue messages for sending. Those for disconnected gateways, or for full queues, may be dropped."""

    async def send_urgent(self, message: Publish) -> None:
        """Send a message as soon as there is space in the queue, ahead of waiting messages.

        Canceling before that withdraws it. A message for a disconnected gateway is dropped.
        """

    @property
    def unavailable_reason(self) -> str | None:
        """Reason why nothing can be sent at the moment; None: messages can be sent."""

    def subscribe(self, topic_filter: str, callback: Callable[[Publish], None]) -> object:
        """Call `callback` for every received message that matches the filter."""

    def connected_gateways(self) -> Mapping[str, int] | None:
        """Return the connected gateways by MAC, each with a number that differs for every connection.

        None: unknown, because only an external broker knows.
        """

    def connection_number(self, gateway: str) -> int | None:
        """Return the connection number of one gateway; 0: it is not connected; None: unknown."""

    def last_connection_number(self, gateway: str) -> int | None:
        """Return the number of a gateway's current or last connection; 0: never connected; None: unknown."""


class ReportSource(Protocol):
    """Source of reports: the embedded broker, or the client of an external one."""

    @property
    def transport(self) -> Transport:
        """Transport of requests to the gateways of this source."""

    @property
    def trouble(self) -> ReadinessProblem | None:
        """Problem that keeps reports from being received or committed; None: there is none."""

    async def run(self, consumer: ReportConsumer) -> None:
        """Pass reports to the consumer until canceled, and acknowledge those that it has committed."""
