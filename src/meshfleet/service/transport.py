"""Interfaces between the service and its MQTT broker, which is either embedded or external."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meshfleet.errors.readiness import ReadinessProblem
    from meshfleet.mqtt.broker import ReportConsumer
    from meshfleet.mqtt.codec.packets import Publish


class Transport(Protocol):
    """Exchanges MQTT messages with gateways: the embedded broker, or the client of an external broker."""

    def send(self, messages: Sequence[Publish]) -> None:
        """Queue MQTT messages to gateways. Messages to a disconnected gateway or a full queue are dropped."""

    async def send_urgent(self, message: Publish) -> None:
        """Send an MQTT message ahead of queued messages, and wait until there is space to send it.

        If this call is canceled while it waits, the message is not sent. A message to a disconnected gateway
        is dropped.
        """

    @property
    def unavailable_reason(self) -> str | None:
        """Reason why no MQTT message can be sent now; None if messages can be sent."""

    def subscribe(self, topic_filter: str, callback: Callable[[Publish], None]) -> object:
        """Call `callback` for every received MQTT message whose topic matches the filter."""

    def connected_gateways(self) -> Mapping[str, int] | None:
        """Return the connected gateways by MAC, each with a connection id that changes with every reconnect.

        Return None with an external broker, because only that broker knows the connected gateways.
        """

    def connection_id(self, gateway: str) -> int | None:
        """Return the id of a gateway's connection: 0 if not connected, None with an external broker."""

    def hears_requests(self, gateway: str) -> bool:
        """Return whether a connected gateway receives requests: it must have subscribed to them.

        With an external broker, which alone knows that, the result is always True.
        """

    def last_connection_id(self, gateway: str) -> int | None:
        """Return the id of the current or last connection of a gateway.

        Return 0 if the gateway never connected, and None with an external broker.
        """


class ReportSource(Protocol):
    """Delivers reports of gateways: the embedded broker, or the client of an external broker."""

    @property
    def transport(self) -> Transport:
        """Transport for requests to the gateways that report through this source."""

    @property
    def problem(self) -> ReadinessProblem | None:
        """Problem that keeps reports from being received or committed; None if there is none."""

    async def publish_all(self, messages: Sequence[Publish]) -> None:
        """Publish messages as the service, in their order. Return when the broker has those with QoS 1.

        Raise `ConnectionLost` if the connection breaks before that.
        """

    def set_request_max_age(self, seconds: float) -> None:
        """Change after how many seconds a request to a disconnected gateway is dropped."""

    async def run(self, consumer: ReportConsumer) -> None:
        """Pass reports to the consumer until canceled. Acknowledge each report after it is committed."""
