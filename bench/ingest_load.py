"""The gateways of `bench.ingest`, all of them one process: they push, or keep a pace.

python -m bench.ingest_load push PORT GATEWAYS DEVICES COUNT SECONDS    with full windows, until either
python -m bench.ingest_load pace PORT GATEWAYS DEVICES RATE SECONDS     each gateway its share of the rate

DEVICES are those of one gateway; 0 is no limit. It prints "ready", waits for a line, prints one JSON object
when all is acknowledged, and stays connected until its input ends.
"""

from __future__ import annotations

import select
import socket
import statistics
import sys
import time
from collections import deque
from itertools import cycle, islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bench.broker_clients import PATIENCE, PUBACK_LENGTH, connect_all, gateway
from bench.broker_load import GRAIN, SAMPLED
from bench.ingest_reports import IDS, Report, reports, write
from meshfleet.cli.connections import allow_connections
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PIECE, WINDOW = 100, 2_000
"""Who pushes writes so many reports at once, and has so many at most without an acknowledgement."""

STRETCH: Final = 5
"""Seconds over which the slowest rate is told."""


class Load(NamedTuple):
    """Gateways, and what they do."""

    role: str
    gateways: int
    devices: int
    """Of one gateway."""
    amount: int
    """How many reports are pushed, or the rate of a pace; 0: only the seconds count."""
    seconds: int
    is_acked: bool = False
    """Whether gateways take acknowledgements of samples: `bench.ingest_acked` has these."""


class Sent(msgspec.Struct):
    """What was sent, and how it was acknowledged."""

    count: int
    seconds: float
    """From the first report to the last acknowledgement."""
    slowest_per_s: float
    """Over five seconds in a row."""
    ms_p50: float
    ms_p99: float
    """From a report to its acknowledgement."""
    load_cpu_us: float
    by_gateway: list[int]
    acks: int = 0
    """Acknowledgements of samples that came."""
    backfills: int = 0
    """Those of them that ask for what is missing; nothing is."""


class Notes:
    """When acknowledgements came."""

    def __init__(self) -> None:
        self._began, self._cpu = time.monotonic(), time.process_time()
        self._last = self._began
        self._lags: list[float] = []
        self._in_second: list[int] = []
        self.count = 0

    def take(self, count: int, now: float) -> None:
        """So many came now."""
        second = int(now - self._began)
        self._in_second += [0] * (second + 1 - len(self._in_second))
        self._in_second[second] += count
        self.count += count
        self._last = now

    def lag(self, seconds: float) -> None:
        """One came so long after its report."""
        self._lags.append(seconds)

    def sent(self, by_gateway: list[int]) -> Sent:
        """All together."""
        cuts, seconds = statistics.quantiles(self._lags, n=100), self._last - self._began
        whole = self._in_second[: int(seconds)]
        stretches = [sum(whole[end - STRETCH : end]) / STRETCH for end in range(STRETCH, len(whole) + 1)]
        return Sent(
            count=self.count,
            seconds=seconds,
            slowest_per_s=min(stretches, default=self.count / seconds),
            ms_p50=cuts[49] * 1e3,
            ms_p99=cuts[98] * 1e3,
            load_cpu_us=(time.process_time() - self._cpu) / self.count * 1e6,
            by_gateway=by_gateway,
        )


class Budget:
    """How much is still to be pushed."""

    def __init__(self, count: int, seconds: float) -> None:
        self._pieces = count // PIECE or sys.maxsize
        self._until = time.monotonic() + (seconds or float("inf"))

    def take(self) -> bool:
        """Whether there is another piece."""
        if not self._pieces or time.monotonic() >= self._until:
            return False
        self._pieces -= 1
        return True


class Pusher:
    """A gateway that keeps its window full."""

    def __init__(self, connection: socket.socket, number: int, devices: int) -> None:
        some = reports(number, devices)
        self._pieces = [some[begin : begin + PIECE] for begin in range(0, len(some), PIECE)]
        self._ids = cycle(IDS[: len(IDS) // PIECE * PIECE])
        self._unacknowledged: deque[float] = deque()
        self._connection = connection
        self.written = 0
        # Readable when a whole piece is acknowledged.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, PIECE * PUBACK_LENGTH)

    def write(self) -> None:
        """Write another piece."""
        turn, piece = divmod(self.written, len(self._pieces))
        self._unacknowledged.append(time.monotonic())
        self._connection.sendall(self._spell(self._pieces[piece], turn))
        self.written += 1

    def go_on(self, budget: Budget, notes: Notes) -> bool:
        """Take the acknowledgements of a piece and write another; whether more are to come."""
        got, now = self._connection.recv(PIECE * PUBACK_LENGTH), time.monotonic()
        if len(got) != PIECE * PUBACK_LENGTH:
            raise RuntimeError("the broker has closed the connection of a gateway")
        self._end_piece(now, budget, notes)
        return bool(self._unacknowledged)

    def _spell(self, piece: list[Report], turn: int) -> bytes:
        return write(piece, islice(self._ids, PIECE), turn=turn, time=spelt_now())

    def _end_piece(self, now: float, budget: Budget, notes: Notes) -> None:
        notes.take(PIECE, now)
        notes.lag(now - self._unacknowledged.popleft())
        if budget.take():
            self.write()


def push(port: int, gateways: int, devices: int, count: int, seconds: int) -> Sent:
    """Push until so many are sent, or so long."""
    ends = connect_all(port, map(gateway, range(gateways)))
    return push_on(ends, [Pusher(end, number, devices) for number, end in enumerate(ends)], count, seconds)


def push_on(ends: list[socket.socket], all_of_them: Sequence[Pusher], count: int, seconds: int) -> Sent:
    """Push on connections, each with its pusher."""
    pushers = {end.fileno(): pusher for end, pusher in zip(ends, all_of_them, strict=True)}
    wait_for_start()
    notes, budget = Notes(), Budget(count, seconds)
    for _ in range(WINDOW // PIECE):
        for pusher in pushers.values():
            if budget.take():
                pusher.write()
    poll, left = watching(ends), {number for number, pusher in pushers.items() if pusher.written}
    while left:
        if not (ready := poll.poll(PATIENCE)):
            raise TimeoutError(f"{len(left)} gateways wait for acknowledgements")
        left -= {number for number, _ in ready if not pushers[number].go_on(budget, notes)}
    return notes.sent([pusher.written * PIECE for pusher in pushers.values()])


class Pacer:
    """A gateway that sends single reports, whether or not the last is acknowledged."""

    def __init__(self, connection: socket.socket, number: int, devices: int) -> None:
        self._reports: list[tuple[Report]] = [(each,) for each in reports(number, devices)]
        self._ids = cycle((each,) for each in IDS)
        self._sent_at: deque[float] | None = None if number % SAMPLED else deque()
        self._connection = connection
        self.sent = 0

    def send(self, now: bytes) -> None:
        """Send the next report."""
        turn, place = divmod(self.sent, len(self._reports))
        if self._sent_at is not None:
            self._sent_at.append(time.monotonic())
        self._connection.sendall(write(self._reports[place], next(self._ids), turn=turn, time=now))
        self.sent += 1

    def receive(self, notes: Notes) -> None:
        """Take the acknowledgements that are there."""
        count, now = self._came(), time.monotonic()
        notes.take(count, now)
        if self._sent_at is not None:
            for _ in range(count):
                notes.lag(now - self._sent_at.popleft())

    def _came(self) -> int:
        got = self._connection.recv(4096)
        if not got:
            raise RuntimeError("the broker has closed the connection of a gateway")
        return len(got) // PUBACK_LENGTH


def pace(port: int, gateways: int, devices: int, rate: int, seconds: int) -> Sent:
    """Send at a rate, one gateway after the other, each a single report."""
    ends = connect_all(port, map(gateway, range(gateways)))
    return pace_on(ends, [Pacer(end, number, devices) for number, end in enumerate(ends)], rate, seconds)


def pace_on(ends: list[socket.socket], pacers: Sequence[Pacer], rate: int, seconds: int) -> Sent:
    """Keep a pace on connections, each with its pacer."""
    at, poll = {end.fileno(): pacer for end, pacer in zip(ends, pacers, strict=True)}, watching(ends)
    wait_for_start()
    notes, began, turns = Notes(), time.monotonic(), cycle(pacers)
    sent, count = 0, rate * seconds
    while sent < count:
        time.sleep(GRAIN)
        due, now = min(count, int((time.monotonic() - began) * rate)), spelt_now()
        for pacer in islice(turns, due - sent):
            pacer.send(now)
        sent = due
        for number, _ in poll.poll(0):
            at[number].receive(notes)
    while notes.count < count:
        if not (ready := poll.poll(PATIENCE)):
            raise TimeoutError(f"{count - notes.count} reports are not acknowledged")
        for number, _ in ready:
            at[number].receive(notes)
    return notes.sent([pacer.sent for pacer in pacers])


def play(roles: Mapping[str, Callable[[int, int, int, int, int], Sent]]) -> None:
    """Play the role that the command line names."""
    role, *numbers = sys.argv[1:]
    port, gateways, devices, amount, seconds = map(int, numbers)
    allow_connections(gateways)
    sent = roles[role](port, gateways, devices, amount, seconds)
    print(msgspec.json.encode(sent).decode(), flush=True)
    sys.stdin.read()


def spelt_now() -> bytes:
    """The time as reports have it."""
    return write_millis(time.time_ns() // 1_000_000).encode()


def wait_for_start() -> None:
    """Tell that all are there, and wait for the word."""
    print("ready", flush=True)
    sys.stdin.readline()


def watching(ends: list[socket.socket]) -> select.epoll:
    """Who tells on which connections something came."""
    poll = select.epoll()
    for end in ends:
        poll.register(end.fileno(), select.EPOLLIN)
    return poll


if __name__ == "__main__":
    play({"push": push, "pace": pace})
