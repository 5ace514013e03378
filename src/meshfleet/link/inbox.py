"""Messages as batches, acknowledged as batches."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from meshfleet.wire.mqtt.encoder import pubacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.wire.mqtt.packets import Publish


class Acks:
    """The acknowledgements of one connection, in the order in which its messages came [MQTT-4.6.0-2]."""

    __slots__ = ("_open", "_send")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._open: deque[Batch] = deque()

    def expect(self, batch: Batch) -> None:
        """A batch that will be acknowledged after those before it."""
        self._open.append(batch)

    def settle(self) -> None:
        """Send what is due."""
        while self._open and self._open[0].acknowledged:
            batch = self._open.popleft()
            if ids := [message.packet_id for message in batch.messages if message.qos]:
                self._send(pubacks(ids))


class Batch:
    """Messages that arrived together on one connection, in their order."""

    __slots__ = ("acknowledged", "acks", "messages", "size")

    def __init__(self, acks: Acks) -> None:
        self.acks = acks
        self.messages: list[Publish] = []
        self.size = 0
        """Bytes, as they came from the network."""
        self.acknowledged = False

    def acknowledge(self) -> None:
        """Tell the broker that these messages are taken care of: it will not send them again.

        Without a word from here it will, on the next connection of a session that is not clean. Once the
        connection that brought them is gone, this does nothing: packet ids mean something else on the next.
        """
        if not self.acknowledged:
            self.acknowledged = True
            self.acks.settle()


class Inbox:
    """Batches that arrived and were not fetched."""

    __slots__ = ("_batches", "size")

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, messages: list[Publish], size: int, acks: Acks) -> None:
        """Add what one read brought to the last batch, or begin another for another connection."""
        self.size += size
        if not self._batches or self._batches[-1].acks is not acks:
            batch = Batch(acks)
            acks.expect(batch)
            self._batches.append(batch)
        last = self._batches[-1]
        last.messages += messages
        last.size += size

    def fetch(self) -> Batch:
        """The oldest batch."""
        batch = self._batches.pop(0)
        self.size -= batch.size
        if not any(message.qos for message in batch.messages):
            batch.acknowledge()  # nobody waits for that, and those behind it must not either
        return batch
