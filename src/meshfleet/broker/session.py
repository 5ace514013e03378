"""A session: what a client subscribed to, and the messages that wait for its acknowledgement.

A message at QoS 1 gets a position, counted up per session, when it joins the queue. Its packet id follows
from the position when it is sent. So the id needs no write of its own, holds over reconnects and a killed
service [MQTT-4.4.0-1], and any number of messages can wait. A message whose id is still in flight waits.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from meshfleet.errors import shown
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

        def cut_off(self, reason: str) -> None:
            """End the connection soon, with a warning in the log: its client does not keep up."""

        def close(self, reason: str) -> None:
            """End the connection."""

    class Ledger(Protocol):
        """Where a session that outlives its connections is written down."""

        def owe(self, number: int, position: int, letter: Letter) -> None:
            """Write down a message that waits for the client's acknowledgement."""

        def settle(self, number: int, position: int) -> None:
            """Delete it: it was acknowledged or is no longer wanted."""


_log = logging.getLogger(__name__)

_FULL: Final = {
    "session-full": "its queue is full",
    "account-full": "the queues of its account are full (absent clients may fill half)",
    "total-full": "the queues of all clients are full (absent ones may fill half)",
}
"""Why a message was dropped, by the label that the metric has."""


class Session:
    """What the broker knows of a client. One with a number outlives its connections."""

    __slots__ = (
        "_acknowledged_at",
        "_backlog",
        "_drained_at",
        "_expiring",
        "_flight",
        "_last_id",
        "_last_position",
        "_ledger",
        "_passing",
        "_queue",
        "_restored_to",
        "_share",
        "_stock",
        "account",
        "client_id",
        "left_at",
        "line",
        "number",
        "read_rules",
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
        self.read_rules: tuple[tuple[str, ...], ...] | None = None
        """What the client could read at its last connection; None if that was before the service started."""
        self.subscriptions: dict[str, int] = {}
        self.received: set[int] = set()
        """Packet ids of messages at QoS 2 that came and were not released."""
        self.size = 0
        """Bytes that wait for the client: queued, in flight, or in the write buffer of its connection."""
        self._stock = stock
        self._share = stock.share(account)
        self._ledger = ledger
        self._flight: dict[int, tuple[int, Letter]] = {}
        """Messages sent and not acknowledged, with their positions, by packet id."""
        self._queue: deque[tuple[int, Letter]] = deque()
        """Messages that wait to be sent, with their positions."""
        self._last_position = -1
        self._restored_to = -1
        """Messages up to this position may have been sent before the service started."""
        self._expiring = 0
        """How many of the messages that wait have a time after which they are not wanted."""
        self._passing = 0
        """How many of the messages in flight are volatile, and kept only until they are acknowledged."""
        self._last_id = LARGEST_ID
        self._acknowledged_at = 0.0
        """When the client last acknowledged a message, or was sent the first of those in flight."""
        self._backlog = 0
        self._drained_at = 0.0
        """When the network last took some of the backlog."""

    def __len__(self) -> int:
        """Return the number of messages that wait for the client's acknowledgement."""
        return len(self._flight) + len(self._queue)

    def deliver(self, letter: Letter, qos: int) -> None:
        """Send a message, or queue it until there is a connection with room.

        If a limit is reached, drop it, as the newest: nothing else may wait for this client.
        """
        line, stock = self.line, self._stock
        if line is None and (self.number is None or letter.volatile):
            stock.dropped["absent"] += 1
        elif not qos or not letter.qos:
            if line is not None:
                self._send_plain(line, letter)
        elif letter.volatile and line is not None:
            self._send_now(line, letter)
        elif self.size + letter.size > stock.queue_bytes:
            self._drop(letter, "session-full")
        elif line is not None and self._can_leave(line):
            self._owe(letter)
            self._send(line, self._last_position, letter)
        elif (full := self._full_beyond(letter)) is not None:
            self._drop(letter, full)
        else:
            self._owe(letter)
            self._queue.append((self._last_position, letter))

    def _send_plain(self, line: Line, letter: Letter) -> None:
        """Send a message at QoS 0. While the network takes nothing, the write buffer is its queue."""
        if not line.writable:
            is_full = self.size + letter.size > self._stock.queue_bytes
            if full := "session-full" if is_full else self._full_beyond(letter):
                self._drop(letter, full)
                return
        self._stock.delivered += 1
        line.send(letter.plain())

    def _send_now(self, line: Line, letter: Letter) -> None:
        """Send a volatile message, which leaves at once or never, in a straight line.

        A hot path: every sample of a gateway that takes acks is acknowledged this way. A gateway that sends a
        thousand reports at once gets as many acks at once, whatever the in-flight window is.
        """
        size, stock, flight = letter.size, self._stock, self._flight
        if self.size + size > stock.queue_bytes or len(flight) >= LARGEST_ID:
            self._drop(letter, "session-full")
            return
        packet_id = self._last_id % LARGEST_ID + 1
        while packet_id in flight:
            packet_id = packet_id % LARGEST_ID + 1
        self._last_id = packet_id
        if not flight:
            self._acknowledged_at = stock.clock()
        self._passing += 1
        self.size += size
        self._share.size += size
        stock.size += size
        stock.delivered += 1
        flight[packet_id] = -1, letter
        line.send(letter.numbered(packet_id))

    def _can_leave(self, line: Line) -> bool:
        """Whether the next message can be sent at once; passes over positions whose id is in flight."""
        if self._queue or not self._has_room(line):
            return False
        while (self._last_position + 1) % LARGEST_ID + 1 in self._flight:
            self._last_position += 1
        return True

    def _owe(self, letter: Letter) -> None:
        """Give a message the next position, and write it down for a session that outlives its connection."""
        self._last_position += 1
        self._weigh(letter.size)
        if self.number is not None:
            self._ledger.owe(self.number, self._last_position, letter)
            self._expiring += letter.until is not None

    def _has_room(self, line: Line) -> bool:
        flying = len(self._flight)
        return line.writable and flying - self._passing < self._stock.in_flight and flying < LARGEST_ID

    def _send(self, line: Line, position: int, letter: Letter) -> None:
        packet_id = position % LARGEST_ID + 1
        if not self._flight:
            self._acknowledged_at = self._stock.clock()
        self._flight[packet_id] = position, letter
        self._stock.delivered += 1
        data = letter.numbered(packet_id)
        line.send(data if position > self._restored_to else again(data))  # [MQTT-3.3.1-1]

    def acknowledged(self, packet_ids: Sequence[int]) -> int:
        """Handle PUBACKs. Return how many of them belong to messages in flight."""
        take, known, size = self._flight.pop, 0, 0
        for packet_id in packet_ids:
            owed = take(packet_id, None)
            if owed is None:
                continue
            known += 1
            position, letter = owed
            size += letter.size
            if letter.volatile:
                self._passing -= 1
            elif self.number is not None:
                self._settle(self.number, position, letter)
        self._weigh(-size)
        if known:
            self._acknowledged_at = self._stock.clock()
        if self._queue:
            self.send_on()
        return known

    def send_on(self) -> None:
        """Send what waits, as long as there is room."""
        line, queue = self.line, self._queue
        while queue and line is not None and self._has_room(line):
            if queue[0][0] % LARGEST_ID + 1 in self._flight:
                return
            position, letter = queue.popleft()
            self._send(line, position, letter)

    def wrote(self, size: int, backlog: int) -> None:
        """Count what a connection that was given so many bytes could not send yet.

        They are part of what waits for this client, or a reader that stops would take any amount of memory.
        """
        if backlog < self._backlog + size or not self._backlog:
            self._drained_at = self._stock.clock()
        self._weigh(backlog - self._backlog)
        self._backlog = backlog

    def stalled(self, now: float) -> float:
        """Return for how many seconds the network has taken nothing of what was written; 0: nothing waits."""
        return now - self._drained_at if self._backlog else 0.0

    def resume(self, line: Line, now: int) -> None:
        """Send again what was not acknowledged, on another connection, and then the rest."""
        self._count_absent(-self.size)
        self.line = line
        self.left_at = None
        self._forget_volatile()
        self.expire(now)
        self._acknowledged_at = self._stock.clock()
        for packet_id, (_, letter) in self._flight.items():
            line.send(again(letter.numbered(packet_id)))  # [MQTT-3.3.1-1]
        self.send_on()

    def pause(self, now: int) -> None:
        """Keep what waits after the connection is gone, but for volatile messages."""
        self.wrote(0, 0)
        self.line = None
        self.left_at = now
        self._count_absent(self.size)
        self._forget_volatile()

    def _forget_volatile(self) -> None:
        if self._passing:
            self.forget(lambda letter: letter.volatile)

    def forget(self, unwanted: Callable[[Letter], bool]) -> None:
        """Drop messages that are no longer wanted."""
        for packet_id, (position, letter) in list(self._flight.items()):
            if unwanted(letter):
                del self._flight[packet_id]
                self._passing -= letter.volatile
                self._give_up(position, letter)
        if any(unwanted(letter) for _, letter in self._queue):
            waiting, self._queue = self._queue, deque()
            for position, letter in waiting:
                if unwanted(letter):
                    self._give_up(position, letter)
                else:
                    self._queue.append((position, letter))

    def expire(self, now: int) -> None:
        """Drop messages whose time is over."""
        if self._expiring:
            self.forget(lambda letter: letter.is_over(now))

    def restore(self, position: int, letter: Letter) -> None:
        """Queue a message that waited when the service stopped; it may have been sent already."""
        self._queue.append((position, letter))
        self._expiring += letter.until is not None
        self._weigh(letter.size)
        self._last_position = self._restored_to = position

    def end(self) -> None:
        """Drop all messages that wait."""
        self._weigh(-self.size)
        self._backlog = self._passing = self._expiring = 0
        self._flight.clear()
        self._queue.clear()

    def _give_up(self, position: int, letter: Letter) -> None:
        self._weigh(-letter.size)
        if self.number is not None and not letter.volatile:
            self._settle(self.number, position, letter)

    def _settle(self, number: int, position: int, letter: Letter) -> None:
        self._expiring -= letter.until is not None
        self._ledger.settle(number, position)

    def _weigh(self, size: int) -> None:
        """Count so many bytes more, or fewer, that wait for this client, its account and all clients."""
        self.size += size
        self._share.size += size
        self._stock.size += size
        if self.line is None:
            self._count_absent(size)

    def _count_absent(self, size: int) -> None:
        """Count so many bytes more, or fewer, that wait for clients that are away."""
        self._share.absent_size += size
        self._stock.absent_size += size

    def _full_beyond(self, letter: Letter) -> str | None:
        """Return which limit beyond this session leaves no room for a message that has to wait.

        Absent clients have a part of each limit, or they would leave nothing to those that keep up.
        """
        stock, share, size, is_absent = self._stock, self._share, letter.size, self.line is None
        if share.size + size > stock.share_bytes:
            return "account-full"
        if is_absent and share.absent_size + size > stock.absent_share_bytes:
            return "account-full"
        if stock.size + size > stock.queues_bytes:
            return "total-full"
        return "total-full" if is_absent and stock.absent_size + size > stock.absent_bytes else None

    def _drop(self, letter: Letter, full: str) -> None:
        """Drop a message for which there is no room, and cut the client off if it is slow."""
        stock, line = self._stock, self.line
        stock.dropped[full] += 1
        since = stock.drop_lines.count((self.account, self.client_id))
        if since:
            _log.warning(
                "messages for client %s of %s are dropped, %d since the last such line: %s; %d bytes wait"
                " for it (limits.queue-bytes is %d), %d for all clients (limits.queues-bytes is %d)",
                shown(self.client_id),
                self.account,
                since,
                _FULL[full],
                self.size,
                stock.queue_bytes,
                stock.size,
                stock.queues_bytes,
            )
        # Retained messages that a new subscription brings cut nobody off.
        if line is not None and not letter.retain and self._is_slow():
            line.cut_off(
                f"{_FULL[full]} and it has acknowledged nothing for {stock.slow_seconds:g} seconds;"
                f" {self.size} bytes wait for it, limits.queue-bytes is {stock.queue_bytes}"
            )

    def _is_slow(self) -> bool:
        """Whether the client acknowledged nothing for too long; or read nothing, if nothing is in flight."""
        stock = self._stock
        since = self._acknowledged_at if self._flight else self._drained_at if self._backlog else None
        return since is not None and stock.clock() - since >= stock.slow_seconds
