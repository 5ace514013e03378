"""Messages that the client published at QoS 1 and the broker has not acknowledged yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.mqtt.codec.encoder import encode_publish, set_dup_flag

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Iterable, Sequence

    from meshfleet.errors.mqtt import MqttError
    from meshfleet.mqtt.codec.packets import Publish

LAST_PUBLISH_ID: Final = 60_000
"""Highest packet identifier of a PUBLISH. SUBSCRIBE and UNSUBSCRIBE use the higher identifiers."""

_MAX_BYTES_AT_ONCE: Final = 256 * 1024
"""Maximum bytes sent at once, before the transport may pause writing."""


class Delivery:
    """Progress of the messages that one caller published: counts their PUBACKs.

    The future `done` is done when the broker has acknowledged all of them.
    """

    __slots__ = ("done", "remaining")

    def __init__(self, remaining: int, done: Future[None]) -> None:
        self.remaining = remaining
        """Number of messages that the broker has not acknowledged yet."""
        self.done = done


class InFlightWindow:
    """Unacknowledged QoS 1 messages, in the order in which they were sent.

    The window is full at `window` messages and opens again at half of `window`, so that a waiting publisher
    can send many messages at once.
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

    def add_and_encode_messages(self, messages: Sequence[Publish], delivery: Delivery | None) -> list[bytes]:
        """Encode messages as PUBLISH packets, and add those with QoS 1 to the window.

        Return the packets, fewer than there are messages if these take more than 256 KiB. The caller ensures
        that the window has a free slot for each message. If a message is malformed, none is added.
        `delivery` counts the acknowledgements for the caller; None if the caller does not wait for them.
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
        """Return the next free packet identifier: higher than the previous one, or from 1 again."""
        sent = self._sent
        while True:
            self._last_id = self._last_id % LAST_PUBLISH_ID + 1
            if self._last_id not in sent:
                return self._last_id

    def acknowledge(self, packet_ids: Iterable[int]) -> bool:
        """Remove acknowledged messages from the window; ignore unknown packet identifiers.

        Return whether waiting callers may continue: the window is open again, or no message is in flight.
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

    def encode_for_resend(self) -> list[bytes]:
        """Return the packets of all messages in flight in order, with the dup flag set [MQTT-4.4.0-1]."""
        return [set_dup_flag(packet) for packet, _ in self._sent.values()]

    def fail_all(self, reason: MqttError) -> None:
        """Remove all messages from the window, and fail the deliveries of these messages with `reason`."""
        for _, delivery in self._sent.values():
            if delivery is not None and not delivery.done.done():
                delivery.done.set_exception(reason)
                delivery.done.exception()  # marks it as retrieved: a canceled caller does not await it
        self._sent.clear()
