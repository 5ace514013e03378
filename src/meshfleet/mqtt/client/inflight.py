"""What was published at QoS 1 and is not acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.mqtt.codec.encoder import encode_publish, set_dup_flag

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Iterable, Sequence

    from meshfleet.errors.mqtt import LinkError
    from meshfleet.mqtt.codec.packets import Publish

LAST_PUBLISH_ID: Final = 60_000
"""Publishes use the packet ids up to this; SUBSCRIBE and UNSUBSCRIBE those above, so that they never meet."""

_MAX_BYTES_AT_ONCE: Final = 256 * 1024
"""As many as leave at once, before the network is asked whether it takes more."""


class Delivery:
    """How much of what one caller published is still on its way."""

    __slots__ = ("done", "remaining")

    def __init__(self, remaining: int, done: Future[None]) -> None:
        self.remaining = remaining
        self.done = done


class InFlightWindow:
    """The messages on their way, in the order in which they left.

    Full at `window` messages, and open again at half of that: whoever waits then has something to do.
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
        """How many messages may leave now."""
        return 0 if self._is_full else self._window - len(self._sent)

    def prepare(self, messages: Sequence[Publish], delivery: Delivery | None) -> list[bytes]:
        """The bytes of messages, of as many as may leave at once. If one is malformed, none of them has left.

        There must be room for all of them; but a message that makes it many bytes is the last. Without a
        delivery nobody waits for them.
        """
        packets: list[bytes] = []
        leaving: dict[int, tuple[bytes, Delivery | None]] = {}
        size = 0
        for message in messages:
            packet_id = self._next_id() if message.qos else 0
            packet = encode_publish(message, packet_id)
            packets.append(packet)
            if packet_id:
                leaving[packet_id] = packet, delivery
            size += len(packet)
            if size > _MAX_BYTES_AT_ONCE:
                break
        self._sent.update(leaving)
        self._is_full = len(self._sent) >= self._window
        return packets

    def _next_id(self) -> int:
        """The next id that is free: ids of one launch follow each other, so they differ among themselves."""
        sent = self._sent
        while True:
            self._last_id = self._last_id % LAST_PUBLISH_ID + 1
            if self._last_id not in sent:
                return self._last_id

    def acknowledge(self, packet_ids: Iterable[int]) -> bool:
        """Forget what is acknowledged; whether somebody may wait for that. Unknown ids are ignored."""
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
        """Everything on its way once more, in the old order, marked as a repetition [MQTT-4.4.0-1]."""
        return [set_dup_flag(packet) for packet, _ in self._sent.values()]

    def fail_all(self, reason: LinkError) -> None:
        """Tell everybody who waits that nothing will come."""
        for _, delivery in self._sent.values():
            if delivery is not None and not delivery.done.done():
                delivery.done.set_exception(reason)
                delivery.done.exception()  # seen: a caller who was cancelled will not look
        self._sent.clear()
