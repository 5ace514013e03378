"""MQTT message on its way from the broker to subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from meshfleet.mqtt.codec.encoder import encode_publish, encode_publish_header
from meshfleet.mqtt.codec.packets import Publish

if TYPE_CHECKING:

    class Subscriber(Protocol):
        """Receiver of messages: the session of a client, or a callback of the service."""

        def deliver(self, message: OutgoingMessage, qos: int) -> None:
            """Send or queue a message, at the QoS of the message or at `qos` if that is lower."""


MESSAGE_OVERHEAD_BYTES: Final = 320
"""Bytes of memory that a queued message needs besides its topic and payload (measured: 314)."""


class OutgoingMessage:
    """Message for any number of subscribers, encoded once for all of them."""

    __slots__ = (
        "_qos0_packet",
        "_qos1_header",
        "expires_at",
        "payload",
        "qos",
        "retain",
        "size",
        "topic",
        "volatile",
    )

    def __init__(
        self, message: Publish, *, retain: bool = False, expires_at: int | None = None, volatile: bool = False
    ) -> None:
        self.topic = message.topic
        self.payload = message.payload
        self.qos = min(message.qos, 1)
        self.retain = retain
        self.expires_at = expires_at
        """Time in milliseconds of the monotonic clock when the message expires; None if it never expires. A
        message just loaded from the database has wall clock milliseconds, until the session is restored."""
        self.volatile = volatile
        """Whether the message is delivered to connected clients only and never persisted."""
        self.size = len(message.topic) + len(message.payload) + MESSAGE_OVERHEAD_BYTES
        """Bytes that the message counts towards the queue limits."""
        self._qos0_packet: bytes | None = None
        self._qos1_header: bytes | None = None

    def encode_qos0(self) -> bytes:
        """Return the PUBLISH packet of the message at QoS 0."""
        if self._qos0_packet is None:
            self._qos0_packet = encode_publish(Publish(self.topic, self.payload, 0, self.retain), 0)
        return self._qos0_packet

    def encode_qos1(self, packet_id: int) -> bytes:
        """Return the PUBLISH packet of the message at QoS 1, with the given packet identifier."""
        if self._qos1_header is None:
            self._qos1_header = encode_publish_header(self.topic, len(self.payload), retain=self.retain)
        return self._qos1_header + packet_id.to_bytes(2) + self.payload

    def is_expired(self, now: int) -> bool:
        """Return whether the message has expired at `now`, in milliseconds of the monotonic clock."""
        return self.expires_at is not None and self.expires_at <= now
