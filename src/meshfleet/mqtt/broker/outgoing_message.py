"""A message on its way to those who want it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.mqtt.codec.encoder import encode_publish, encode_publish_header
from meshfleet.mqtt.codec.packets import Publish

if TYPE_CHECKING:
    from typing import Protocol

    class Subscriber(Protocol):
        """Somebody who wants letters."""

        def deliver(self, message: OutgoingMessage, qos: int) -> None:
            """Take a letter at this QoS."""


MESSAGE_OVERHEAD_BYTES: Final = 320
"""Bytes of memory that a waiting message takes besides its topic and payload (measured: 314)."""


class OutgoingMessage:
    """A message for any number of subscribers, spelt out once for all of them."""

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
        """Milliseconds after which nobody wants it any more, by the steady clock; as loaded, by the wall."""
        self.volatile = volatile
        """Delivered now or never, and never written down."""
        self.size = len(message.topic) + len(message.payload) + MESSAGE_OVERHEAD_BYTES
        """What it counts for in the limits on bytes."""
        self._qos0_packet: bytes | None = None
        self._qos1_header: bytes | None = None

    def encode_qos0(self) -> bytes:
        """The packet at QoS 0."""
        if self._qos0_packet is None:
            self._qos0_packet = encode_publish(Publish(self.topic, self.payload, 0, self.retain), 0)
        return self._qos0_packet

    def encode_qos1(self, packet_id: int) -> bytes:
        """The packet at QoS 1."""
        if self._qos1_header is None:
            self._qos1_header = encode_publish_header(self.topic, len(self.payload), retain=self.retain)
        return self._qos1_header + packet_id.to_bytes(2) + self.payload

    def is_expired(self, now: int) -> bool:
        """Whether it came too late."""
        return self.expires_at is not None and self.expires_at <= now
