"""A session: what a client subscribed to, and what it is owed.

A message at QoS 1 gets its packet id when it joins the queue, not when it leaves: so the id is written down
once, together with the message, and holds over lost connections and a killed service [MQTT-4.4.0-1].
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from meshfleet.wire.mqtt.encoder import again
from meshfleet.wire.mqtt.packets import LARGEST_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from meshfleet.broker.letters import Letter
    from meshfleet.broker.stock import Stock

    class Line(Protocol):
        """The connection of a client that is there."""

        writable: bool
        turn: int
        """Of two connections of one client the one with the higher number is newer."""

        def send(self, data: bytes) -> None:
            """Send bytes soon."""

        def too_slow(self) -> None:
            """End the connection soon: its client does not keep up."""

        def close(self, reason: str) -> None:
            """End the connection."""

    class Ledger(Protocol):
        """Where a session that outlives its connections is written down."""

        def owe(self, number: int, packet_id: int, letter: Letter) -> None:
            """A message waits for the client's acknowledgement."""

        def settle(self, number: int, packet_id: int) -> None:
            """It no longer does."""


class Session:
    """What the broker knows of a client. One with a number outlives its connections."""

    __slots__ = (
        "_brought",
        "_doubtful",
        "_flight",
        "_last_id",
        "_ledger",
        "_passing",
        "_queue",
        "_queued",
        "_share",
        "_stock",
        "account",
        "client_id",
        "left_at",
        "line",
        "number",
        "received",
        "size",
        "subscriptions",
    )

    def __init__(
        self, account: str, client_id: str, *, stock: Stock, ledger: Ledger, number: int | None = None
    ) -> None:
        self.account = account
        self.client_id = client_id
        self.number = number
        self.line: Line | None = None
        self.left_at: int | None = None
        """When the client went, in milliseconds; None while it is there."""
        self.subscriptions: dict[str, int] = {}
        self.received: set[int] = set()
        """Packet ids of messages at QoS 2 that came and were not released."""
        self.size = 0
        """Bytes that are owed."""
        self._stock = stock
        self._share = stock.share(account)
        self._ledger = ledger
        self._doubtful: set[int] = set()
        """Of what waits, what may have been sent before the service started."""
        self._flight: dict[int, Letter] = {}
        self._queue: deque[tuple[int, Letter]] = deque()
        self._queued: set[int] = set()
        self._brought = 0
        """Of what is owed, how many are retained messages that a subscription brought."""
        self._passing = 0
        """Of what is owed, how many left at once, and are kept only until they are acknowledged."""
        self._last_id = LARGEST_ID

    def __len__(self) -> int:
        """How many messages are owed."""
        return len(self._flight) + len(self._queue)

    def deliver(self, letter: Letter, qos: int) -> None:
        """Send a letter, or keep it until there is a connection and room on it.

        Where there is no room for it, it is dropped, as the newest: nobody else may wait for this client.
        """
        line = self.line
        if line is None and (self.number is None or letter.volatile):
            self._stock.dropped += 1
        elif not qos or not letter.qos:
            if line is not None:
                self._stock.delivered += 1
                line.send(letter.plain())
        elif letter.volatile and line is not None:
            self._send_now(line, letter)
        elif self._is_full(letter):
            self._stock.dropped += 1
            if line is not None and not letter.retain:  # what others retained cuts nobody off
                line.too_slow()
        elif self._can_leave() or self._stock_has_room(letter):
            self._owe(letter)
        else:
            self._stock.dropped += 1

    def _send_now(self, line: Line, letter: Letter) -> None:
        """As `_owe`, in a straight line, for what leaves at once or never, and is written down nowhere.

        A hot path: every sample of a gateway that takes acks is acknowledged this way. Who sends a thousand
        reports at once gets as many acks at once, and is not slow for that.
        """
        size, stock = letter.size, self._stock
        if self.size + size > stock.queue_bytes or len(self._flight) + len(self._queue) >= LARGEST_ID:
            stock.dropped += 1
            return
        packet_id = self._next_id()
        self._passing += 1
        self.size += size
        self._share.size += size
        stock.size += size
        stock.delivered += 1
        self._flight[packet_id] = letter
        line.send(letter.numbered(packet_id))

    def _can_leave(self) -> bool:
        line = self.line
        return line is not None and not self._queue and self._has_room(line)

    def _owe(self, letter: Letter) -> None:
        packet_id = self._next_id()
        self._brought += letter.retain
        self._weigh(letter.size)
        if self.number is not None:
            self._ledger.owe(self.number, packet_id, letter)
        line = self.line
        if line is not None and self._can_leave():
            self._send(line, packet_id, letter)
        else:
            self._queue.append((packet_id, letter))
            self._queued.add(packet_id)

    def _has_room(self, line: Line) -> bool:
        return line.writable and len(self._flight) - self._passing < self._stock.in_flight

    def _send(self, line: Line, packet_id: int, letter: Letter) -> None:
        self._flight[packet_id] = letter
        self._stock.delivered += 1
        data = letter.numbered(packet_id)
        if packet_id in self._doubtful:
            self._doubtful.discard(packet_id)
            data = again(data)  # [MQTT-3.3.1-1]
        line.send(data)

    def acknowledged(self, packet_ids: Sequence[int]) -> int:
        """The client has taken charge of messages; tells how many of them it had been sent at all."""
        take, known, size = self._flight.pop, 0, 0
        for packet_id in packet_ids:
            letter = take(packet_id, None)
            if letter is None:
                continue
            known += 1
            if letter.volatile:
                self._passing -= 1
                size += letter.size
            else:
                self._settle(packet_id, letter)
        self._weigh(-size)
        if self._queue:
            self.send_on()
        return known

    def send_on(self) -> None:
        """Send what waits, as long as there is room."""
        line, queue = self.line, self._queue
        while queue and line is not None and self._has_room(line):
            packet_id, letter = queue.popleft()
            self._queued.discard(packet_id)
            self._send(line, packet_id, letter)

    def resume(self, line: Line, now: int) -> None:
        """Send again what was not acknowledged, on another connection, and then the rest."""
        self.line = line
        self.left_at = None
        self.forget(lambda letter: letter.volatile or letter.is_over(now))
        for packet_id, letter in self._flight.items():
            line.send(again(letter.numbered(packet_id)))  # [MQTT-3.3.1-1]
        self.send_on()

    def pause(self, now: int) -> None:
        """The connection is gone. What was to be delivered then or never is dropped."""
        self.line = None
        self.left_at = now
        self.forget(lambda letter: letter.volatile)

    def forget(self, unwanted: Callable[[Letter], bool]) -> None:
        """Drop what is owed and no longer wanted."""
        for packet_id, letter in [pair for pair in self._flight.items() if unwanted(pair[1])]:
            del self._flight[packet_id]
            self._settle(packet_id, letter)
        for packet_id, letter in [pair for pair in self._queue if unwanted(pair[1])]:
            self._queued.discard(packet_id)
            self._doubtful.discard(packet_id)
            self._settle(packet_id, letter)
        self._queue = deque(pair for pair in self._queue if pair[0] in self._queued)

    def restore(self, packet_id: int, letter: Letter) -> None:
        """What was owed before the service started; it may have been sent already."""
        self._queue.append((packet_id, letter))
        self._queued.add(packet_id)
        self._doubtful.add(packet_id)
        self._brought += letter.retain
        self._weigh(letter.size)
        self._last_id = packet_id

    def end(self) -> None:
        """Owe nothing any more."""
        self._weigh(-self.size)
        self._brought = self._passing = 0
        self._flight.clear()
        self._queue.clear()
        self._queued.clear()
        self._doubtful.clear()

    def _settle(self, packet_id: int, letter: Letter) -> None:
        self._brought -= letter.retain
        self._passing -= letter.volatile
        self._weigh(-letter.size)
        if self.number is not None and not letter.volatile:
            self._ledger.settle(self.number, packet_id)

    def _weigh(self, size: int) -> None:
        """So many bytes more, or fewer, are owed."""
        self.size += size
        self._share.size += size
        self._stock.size += size

    def _is_full(self, letter: Letter) -> bool:
        """Whether there is too much for this client."""
        stock = self._stock
        count = len(self._flight) + len(self._queue)
        return (
            # What a subscription brings, or leaves at once, may be more than a queue holds, and its client is
            # not slow.
            (not letter.retain and count - self._brought - self._passing >= stock.queue_length)
            or count >= LARGEST_ID
            or self.size + letter.size > stock.queue_bytes
        )

    def _stock_has_room(self, letter: Letter) -> bool:
        """Whether there is not too much for its account, and for all together."""
        stock = self._stock
        return (
            self._share.size + letter.size <= stock.share_bytes
            and stock.size + letter.size <= stock.queues_bytes
        )

    def _next_id(self) -> int:
        packet_id = self._last_id
        while True:
            packet_id = packet_id % LARGEST_ID + 1
            if packet_id not in self._flight and packet_id not in self._queued:
                self._last_id = packet_id
                return packet_id
