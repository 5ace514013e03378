"""Messages as batches, acknowledged as batches."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from meshfleet.wire.mqtt.encoder import pubacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.wire.mqtt.packets import Publish


class Due:
    """The place of a batch in the order of acknowledgements. It outlives the messages."""

    __slots__ = ("acks",)

    def __init__(self) -> None:
        self.acks: bytes | None = None


class Acks:
    """The acknowledgements of one connection, in the order in which its messages came [MQTT-4.6.0-2]."""

    __slots__ = ("_open", "_send")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._open: deque[Due] = deque()

    def expect(self) -> Due:
        """A place behind those before it."""
        due = Due()
        self._open.append(due)
        return due

    def drop(self, due: Due) -> None:
        """Nothing will come there."""
        self._open.remove(due)

    def settle(self) -> None:
        """Send what is due."""
        while self._open and (acks := self._open[0].acks):
            self._open.popleft()
            self._send(acks)


class Batch:
    """Messages that arrived together on one connection, in their order."""

    __slots__ = ("__weakref__", "_due", "acks", "messages", "size")

    def __init__(self, acks: Acks) -> None:
        self.acks = acks
        self._due: Due | None = acks.expect()
        self.messages: list[Publish] = []
        self.size = 0
        """Bytes, as they came from the network."""

    def acknowledge(self) -> None:
        """Tell the broker that these messages are taken care of: it will not send them again.

        Without a word from here it will, on the next connection of a session that is not clean; until then
        the acknowledgements of later batches wait behind this one. Once the connection that brought the
        messages is gone, this does nothing: packet ids mean something else on the next.
        """
        if self._due is not None:
            self._due.acks = pubacks([message.packet_id for message in self.messages if message.qos])
            self._due = None
            self.acks.settle()

    def seal(self) -> None:
        """Nothing is added any more. Without a message at QoS 1 nobody waits for its acknowledgement."""
        if self._due is not None and not any(message.qos for message in self.messages):
            self.acks.drop(self._due)
            self._due = None


class Inbox:
    """Batches that arrived and were not fetched."""

    __slots__ = ("_batches", "_one_by_one", "size")

    def __init__(self, *, one_by_one: bool = False) -> None:
        """`one_by_one`: every message is a batch of its own."""
        self._one_by_one = one_by_one
        self._batches: deque[Batch] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, messages: list[Publish], size: int, acks: Acks) -> None:
        """Add what one read brought to the last batch, or begin another for another connection."""
        if self._one_by_one:
            self._put_each(messages, size, acks)
            return
        self.size += size
        if not self._batches or self._batches[-1].acks is not acks:
            self._batches.append(Batch(acks))
        last = self._batches[-1]
        last.messages += messages
        last.size += size

    def fetch(self) -> Batch:
        """The oldest batch."""
        batch = self._batches.popleft()
        self.size -= batch.size
        batch.seal()
        return batch

    def _put_each(self, messages: list[Publish], size: int, acks: Acks) -> None:
        share, rest = divmod(size, len(messages))
        for place, message in enumerate(messages):
            batch = Batch(acks)
            batch.messages.append(message)
            batch.size = share if place else share + rest
            self._batches.append(batch)
        self.size += size
