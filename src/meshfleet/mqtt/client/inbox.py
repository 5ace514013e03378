"""Messages as batches, acknowledged as batches."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from meshfleet.mqtt.codec.encoder import encode_pubacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.mqtt.codec.packets import Publish


class AckSlot:
    """The place of a batch in the order of acknowledgements. It outlives the messages."""

    __slots__ = ("acks",)

    def __init__(self) -> None:
        self.acks: bytes | None = None


class AckQueue:
    """The acknowledgements of one connection, in the order in which its messages came [MQTT-4.6.0-2]."""

    __slots__ = ("_send", "_slots")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._slots: deque[AckSlot] = deque()

    def reserve(self) -> AckSlot:
        """A place behind those before it."""
        due = AckSlot()
        self._slots.append(due)
        return due

    def remove(self, slot: AckSlot) -> None:
        """Nothing will come there."""
        self._slots.remove(slot)

    def send_ready(self) -> None:
        """Send what is due."""
        while self._slots and (acks := self._slots[0].acks):
            self._slots.popleft()
            self._send(acks)


class MessageBatch:
    """Messages that arrived together on one connection, in their order."""

    __slots__ = ("__weakref__", "_slot", "ack_queue", "messages", "size")

    def __init__(self, ack_queue: AckQueue) -> None:
        self.ack_queue = ack_queue
        self._slot: AckSlot | None = ack_queue.reserve()
        self.messages: list[Publish] = []
        self.size = 0
        """Bytes, as they came from the network."""

    def acknowledge(self) -> None:
        """Tell the broker that these messages are taken care of: it will not send them again.

        Without a word from here it will, on the next connection of a session that is not clean; until then
        the acknowledgements of later batches wait behind this one. Once the connection that brought the
        messages is gone, this does nothing: packet ids mean something else on the next.
        """
        if self._slot is not None:
            self._slot.acks = encode_pubacks([message.packet_id for message in self.messages if message.qos])
            self._slot = None
            self.ack_queue.send_ready()

    def seal(self) -> None:
        """Nothing is added any more. Without a message at QoS 1 nobody waits for its acknowledgement."""
        if self._slot is not None and not any(message.qos for message in self.messages):
            self.ack_queue.remove(self._slot)
            self._slot = None


class Inbox:
    """Batches that arrived and were not fetched."""

    __slots__ = ("_batches", "_single_message_batches", "size")

    def __init__(self, *, single_message_batches: bool = False) -> None:
        """`one_by_one`: every message is a batch of its own."""
        self._single_message_batches = single_message_batches
        self._batches: deque[MessageBatch] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, messages: list[Publish], size: int, ack_queue: AckQueue) -> None:
        """Add what one read brought to the last batch, or begin another for another connection."""
        if self._single_message_batches:
            self._put_each(messages, size, ack_queue)
            return
        self.size += size
        if not self._batches or self._batches[-1].ack_queue is not ack_queue:
            self._batches.append(MessageBatch(ack_queue))
        last = self._batches[-1]
        last.messages += messages
        last.size += size

    def pop(self) -> MessageBatch:
        """The oldest batch."""
        batch = self._batches.popleft()
        self.size -= batch.size
        batch.seal()
        return batch

    def _put_each(self, messages: list[Publish], size: int, ack_queue: AckQueue) -> None:
        share, rest = divmod(size, len(messages))
        for place, message in enumerate(messages):
            batch = MessageBatch(ack_queue)
            batch.messages.append(message)
            batch.size = share if place else share + rest
            self._batches.append(batch)
        self.size += size
