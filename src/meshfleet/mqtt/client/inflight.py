"""Holds the messages that were published at QoS 1 and are not acknowledged yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.mqtt.codec.encoder import encode_publish, set_dup_flag

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Iterable, Sequence

    from meshfleet.errors.mqtt import MqttError
    from meshfleet.mqtt.codec.packets import Publish

LAST_PUBLISH_ID: Final = 60_000
"""Highest packet identifier of PUBLISH; SUBSCRIBE and UNSUBSCRIBE use those above, so that none collide."""

_MAX_BYTES_AT_ONCE: Final = 256 * 1024
"""Maximum bytes sent at once, before the transport may pause writing."""


class Delivery:
    """Progress of the messages that one caller published. `done` resolves when all are acknowledged."""

    __slots__ = ("done", "remaining")

    def __init__(self, remaining: int, done: Future[None]) -> None:
        self.remaining = remaining
        """Number of messages without acknowledgement."""
        self.done = done


class InFlightWindow:
    """Unacknowledged messages, in the order in which they were sent.

    Full at `window` messages, and open again at half of that, so that a waiting publisher can send many at
    once.
    """

    __slots__ = ("_is_full", "_last_id", "_sent", "_window")

    def __init__(self, window: int) -> None:
        self._window = min(window, LAST_PUBLISH_ID)
        self._sent: dict[int, tuple[bytes, Delivery | None]] = {}
        self._last_id = 0
        self._is_full = False

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def free_slots(self) -> int:
        """Number of messages that may be sent now."""
        return 0 if self._is_full else self._window - len(self._sent)

    def prepare(self, messages: Sequence[Publish], delivery: Delivery | None) -> list[bytes]:
        """Encode as many messages as may be sent at once, and add them to the window.

        The caller ensures that there are enough free slots. The list ends with the message that exceeds the
        byte limit. If a message is malformed, none is added. Without a delivery, acknowledgements are not
        reported.
        """
        packets: list[bytes] = []
        prepared: dict[int, tuple[bytes, Delivery | None]] = {}
        size = 0
        for message in messages:
            packet_id = self._next_id() if message.qos else 0
            packet = encode_publish(message, packet_id)
            packets.append(packet)
            if packet_id:
                prepared[packet_id] = packet, delivery
            size += len(packet)
            if size > _MAX_BYTES_AT_ONCE:
                break
        self._sent.update(prepared)
        self._is_full = len(self._sent) >= self._window
        return packets

    def _next_id(self) -> int:
        """Return the next free packet identifier. Identifiers count up, so those of one `prepare` differ."""
        sent = self._sent
        while True:
            self._last_id = self._last_id % LAST_PUBLISH_ID + 1
            if self._last_id not in sent:
                return self._last_id

    def acknowledge(self, packet_ids: Iterable[int]) -> bool:
        """Remove acknowledged messages; ignore unknown identifiers.

        Return whether a waiting caller may continue: the window is open again, or nothing is in flight.
        """
        sent = self._sent
        for packet_id in packet_ids:
            if packet_id in sent:
                _, delivery = sent.pop(packet_id)
                if delivery is None:
                    continue
                delivery.remaining -= 1
                if not delivery.remaining and not delivery.done.done():
                    delivery.done.set_result(None)
        if self._is_full and len(sent) <= self._window // 2:
            self._is_full = False
            return True
        return not sent

    def resend_packets(self) -> list[bytes]:
        """Return all packets in their original order, with the dup flag set [MQTT-4.4.0-1]."""
        return [set_dup_flag(packet) for packet, _ in self._sent.values()]

    def fail_all(self, reason: MqttError) -> None:
        """Remove all messages, and fail their deliveries with this reason."""
        for _, delivery in self._sent.values():
            if delivery is not None and not delivery.done.done():
                delivery.done.set_exception(reason)
                delivery.done.exception()  # marks it as retrieved: a canceled caller does not await it
        self._sent.clear()
