"""A message on its way to those who want it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.wire.mqtt.encoder import publish, publish_front
from meshfleet.wire.mqtt.packets import Publish

if TYPE_CHECKING:
    from typing import Protocol

    class Subscriber(Protocol):
        """Somebody who wants letters."""

        def deliver(self, letter: Letter, qos: int) -> None:
            """Take a letter at this QoS."""


OVERHEAD: Final = 320
"""Bytes of memory that a waiting message takes besides its topic and payload (measured: 314)."""


class Letter:
    """A message for any number of subscribers, spelt out once for all of them."""

    __slots__ = ("_front", "_plain", "payload", "qos", "retain", "size", "topic", "until", "volatile")

    def __init__(
        self, message: Publish, *, retain: bool = False, until: int | None = None, volatile: bool = False
    ) -> None:
        self.topic = message.topic
        self.payload = message.payload
        self.qos = min(message.qos, 1)
        self.retain = retain
        self.until = until
        """Milliseconds after which nobody wants it any more, by the steady clock; as loaded, by the wall."""
        self.volatile = volatile
        """Delivered now or never, and never written down."""
        self.size = len(message.topic) + len(message.payload) + OVERHEAD
        """What it counts for in the limits on bytes."""
        self._plain: bytes | None = None
        self._front: bytes | None = None

    def plain(self) -> bytes:
        """The packet at QoS 0."""
        if self._plain is None:
            self._plain = publish(Publish(self.topic, self.payload, 0, self.retain), 0)
        return self._plain

    def numbered(self, packet_id: int) -> bytes:
        """The packet at QoS 1."""
        if self._front is None:
            self._front = publish_front(self.topic, len(self.payload), retain=self.retain)
        return self._front + packet_id.to_bytes(2) + self.payload

    def is_over(self, now: int) -> bool:
        """Whether it came too late."""
        return self.until is not None and self.until <= now
