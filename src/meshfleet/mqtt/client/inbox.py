"""Received MQTT messages in batches, and the queue of their acknowledgements."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from meshfleet.mqtt.codec.encoder import encode_pubacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.mqtt.codec.packets import Publish


class AckSlot:
    """Place of a message batch in the order of acknowledgements. The slot outlives the batch object."""

    __slots__ = ("acks",)

    def __init__(self) -> None:
        self.acks: bytes | None = None
        """Encoded PUBACKs; None until the batch is acknowledged."""


class AckQueue:
    """Sends the acknowledgements of one connection in the order of its received messages [MQTT-4.6.0-2]."""

    __slots__ = ("_send", "_slots")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._slots: deque[AckSlot] = deque()

    def reserve(self) -> AckSlot:
        """Append a slot for a new message batch to the queue, and return the slot."""
        slot = AckSlot()
        self._slots.append(slot)
        return slot

    def remove(self, slot: AckSlot) -> None:
        """Remove the slot of a message batch that needs no acknowledgement."""
        self._slots.remove(slot)

    def send_ready(self) -> None:
        """Send the acknowledgements of all batches before the first unacknowledged batch."""
        while self._slots and (acks := self._slots[0].acks):
            self._slots.popleft()
            self._send(acks)


class MessageBatch:
    """Messages received together on one connection, in the order of their arrival."""

    __slots__ = ("__weakref__", "_slot", "ack_queue", "messages", "size")

    def __init__(self, ack_queue: AckQueue) -> None:
        self.ack_queue = ack_queue
        self._slot: AckSlot | None = ack_queue.reserve()
        self.messages: list[Publish] = []
        self.size = 0
        """Bytes that the messages took on the network."""

    def acknowledge(self) -> None:
        """Acknowledge these messages, so that the broker does not send them again.

        Without this call, the broker sends them again on the next connection (unless the session is clean),
        and the acknowledgements of later batches wait. The call has no effect once the connection of the
        messages is closed: packet identifiers belong to a connection.
        """
        if self._slot is not None:
            self._slot.acks = encode_pubacks([message.packet_id for message in self.messages if message.qos])
            self._slot = None
            self.ack_queue.send_ready()

    def seal(self) -> None:
        """Prepare the complete batch for the application: no message is added any more.

        If no message has QoS 1, remove the slot from the queue, because no acknowledgement is needed.
        """
        if self._slot is not None and not any(message.qos for message in self.messages):
            self.ack_queue.remove(self._slot)
            self._slot = None


class Inbox:
    """Holds batches of received messages until the application fetches them."""

    __slots__ = ("_batches", "_single_message_batches", "size")

    def __init__(self, *, single_message_batches: bool = False) -> None:
        """`single_message_batches` puts every message into a batch of its own."""
        self._single_message_batches = single_message_batches
        self._batches: deque[MessageBatch] = deque()
        self.size = 0
        """Bytes that the messages of all batches took on the network."""

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, messages: list[Publish], size: int, ack_queue: AckQueue) -> None:
        """Add the messages of one read of `size` bytes to the last batch.

        Start a new batch if there is none, or after a reconnect: packet identifiers belong to a connection.
        """
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
        """Remove and return the oldest message batch."""
        batch = self._batches.popleft()
        self.size -= batch.size
        batch.seal()
        return batch

    def _put_each(self, messages: list[Publish], size: int, ack_queue: AckQueue) -> None:
        """Add each message as a batch of its own. Divide the bytes of the read evenly among the batches."""
        share, rest = divmod(size, len(messages))
        for index, message in enumerate(messages):
            batch = MessageBatch(ack_queue)
            batch.messages.append(message)
            batch.size = share if index else share + rest
            self._batches.append(batch)
        self.size += size
