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

from bench.broker_clients import PUBACK_LENGTH, TIMEOUT, connect_all, gateway_mac
from bench.broker_load import LATENCY_SAMPLE_EVERY, TICK_SECONDS
from bench.ingest_reports import IDS, Report, build_reports, encode_reports
from meshfleet.cli.file_limits import require_connections
from meshfleet.protocol.times import format_millis

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CHUNK, WINDOW = 100, 2_000
"""Who pushes writes so many reports at once, and has so many at most without an acknowledgement."""

RATE_WINDOW_SECONDS: Final = 5
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
    """Whether gateways take acknowledgements of samples: `bench.ingest_acked_load` has these."""


class LoadResult(msgspec.Struct):
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


class AckTimes:
    """When acknowledgements came."""

    def __init__(self) -> None:
        self._began, self._cpu = time.monotonic(), time.process_time()
        self._last = self._began
        self._lags: list[float] = []
        self._in_second: list[int] = []
        self.count = 0

    def add(self, count: int, now: float) -> None:
        """So many came now."""
        second = int(now - self._began)
        self._in_second += [0] * (second + 1 - len(self._in_second))
        self._in_second[second] += count
        self.count += count
        self._last = now

    def add_latency(self, seconds: float) -> None:
        """One came so long after its report."""
        self._lags.append(seconds)

    def build_result(self, by_gateway: list[int]) -> LoadResult:
        """All together."""
        cuts, seconds = statistics.quantiles(self._lags, n=100), self._last - self._began
        whole = self._in_second[: int(seconds)]
        stretches = [
            sum(whole[end - RATE_WINDOW_SECONDS : end]) / RATE_WINDOW_SECONDS
            for end in range(RATE_WINDOW_SECONDS, len(whole) + 1)
        ]
        return LoadResult(
            count=self.count,
            seconds=seconds,
            slowest_per_s=min(stretches, default=self.count / seconds),
            ms_p50=cuts[49] * 1e3,
            ms_p99=cuts[98] * 1e3,
            load_cpu_us=(time.process_time() - self._cpu) / self.count * 1e6,
            by_gateway=by_gateway,
        )


class PushBudget:
    """How much is still to be pushed."""

    def __init__(self, count: int, seconds: float) -> None:
        self._pieces = count // CHUNK or sys.maxsize
        self._until = time.monotonic() + (seconds or float("inf"))

    def use_chunk(self) -> bool:
        """Whether there is another piece."""
        if not self._pieces or time.monotonic() >= self._until:
            return False
        self._pieces -= 1
        return True


class Pusher:
    """A gateway that keeps its window full."""

    def __init__(self, connection: socket.socket, number: int, devices: int) -> None:
        some = build_reports(number, devices)
        self._pieces = [some[begin : begin + CHUNK] for begin in range(0, len(some), CHUNK)]
        self._ids = cycle(IDS[: len(IDS) // CHUNK * CHUNK])
        self._unacknowledged: deque[float] = deque()
        self._connection = connection
        self.written = 0
        # Readable when a whole piece is acknowledged.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, CHUNK * PUBACK_LENGTH)

    def write(self) -> None:
        """Write another piece."""
        turn, piece = divmod(self.written, len(self._pieces))
        self._unacknowledged.append(time.monotonic())
        self._connection.sendall(self._encode_chunk(self._pieces[piece], turn))
        self.written += 1

    def on_readable(self, budget: PushBudget, notes: AckTimes) -> bool:
        """Take the acknowledgements of a piece and write another; whether more are to come."""
        got, now = self._connection.recv(CHUNK * PUBACK_LENGTH), time.monotonic()
        if len(got) != CHUNK * PUBACK_LENGTH:
            raise RuntimeError("the broker has closed the connection of a gateway")
        self._finish_chunk(now, budget, notes)
        return bool(self._unacknowledged)

    def _encode_chunk(self, piece: list[Report], turn: int) -> bytes:
        return encode_reports(piece, islice(self._ids, CHUNK), turn=turn, time=format_now())

    def _finish_chunk(self, now: float, budget: PushBudget, notes: AckTimes) -> None:
        notes.add(CHUNK, now)
        notes.add_latency(now - self._unacknowledged.popleft())
        if budget.use_chunk():
            self.write()


def push(port: int, gateways: int, devices: int, count: int, seconds: int) -> LoadResult:
    """Push until so many are sent, or so long."""
    ends = connect_all(port, map(gateway_mac, range(gateways)))
    return push_over(ends, [Pusher(end, number, devices) for number, end in enumerate(ends)], count, seconds)


def push_over(
    ends: list[socket.socket], all_of_them: Sequence[Pusher], count: int, seconds: int
) -> LoadResult:
    """Push on connections, each with its pusher."""
    pushers = {end.fileno(): pusher for end, pusher in zip(ends, all_of_them, strict=True)}
    wait_for_start()
    notes, budget = AckTimes(), PushBudget(count, seconds)
    for _ in range(WINDOW // CHUNK):
        for pusher in pushers.values():
            if budget.use_chunk():
                pusher.write()
    poll, left = build_poll(ends), {number for number, pusher in pushers.items() if pusher.written}
    while left:
        if not (ready := poll.poll(TIMEOUT)):
            raise TimeoutError(f"{len(left)} gateways wait for acknowledgements")
        left -= {number for number, _ in ready if not pushers[number].on_readable(budget, notes)}
    return notes.build_result([pusher.written * CHUNK for pusher in pushers.values()])


class Pacer:
    """A gateway that sends single reports, whether or not the last is acknowledged."""

    def __init__(self, connection: socket.socket, number: int, devices: int) -> None:
        self._reports: list[tuple[Report]] = [(each,) for each in build_reports(number, devices)]
        self._ids = cycle((each,) for each in IDS)
        self._sent_at: deque[float] | None = None if number % LATENCY_SAMPLE_EVERY else deque()
        self._connection = connection
        self.sent = 0

    def send(self, now: bytes) -> None:
        """Send the next report."""
        turn, place = divmod(self.sent, len(self._reports))
        if self._sent_at is not None:
            self._sent_at.append(time.monotonic())
        self._connection.sendall(encode_reports(self._reports[place], next(self._ids), turn=turn, time=now))
        self.sent += 1

    def receive(self, notes: AckTimes) -> None:
        """Take the acknowledgements that are there."""
        count, now = self._receive_pubacks(), time.monotonic()
        notes.add(count, now)
        if self._sent_at is not None:
            for _ in range(count):
                notes.add_latency(now - self._sent_at.popleft())

    def _receive_pubacks(self) -> int:
        got = self._connection.recv(4096)
        if not got:
            raise RuntimeError("the broker has closed the connection of a gateway")
        return len(got) // PUBACK_LENGTH


def pace(port: int, gateways: int, devices: int, rate: int, seconds: int) -> LoadResult:
    """Send at a rate, one gateway after the other, each a single report."""
    ends = connect_all(port, map(gateway_mac, range(gateways)))
    return pace_over(ends, [Pacer(end, number, devices) for number, end in enumerate(ends)], rate, seconds)


def pace_over(ends: list[socket.socket], pacers: Sequence[Pacer], rate: int, seconds: int) -> LoadResult:
    """Keep a pace on connections, each with its pacer."""
    at, poll = {end.fileno(): pacer for end, pacer in zip(ends, pacers, strict=True)}, build_poll(ends)
    wait_for_start()
    notes, began, turns = AckTimes(), time.monotonic(), cycle(pacers)
    sent, count = 0, rate * seconds
    while sent < count:
        time.sleep(TICK_SECONDS)
        due, now = min(count, int((time.monotonic() - began) * rate)), format_now()
        for pacer in islice(turns, due - sent):
            pacer.send(now)
        sent = due
        for number, _ in poll.poll(0):
            at[number].receive(notes)
    while notes.count < count:
        if not (ready := poll.poll(TIMEOUT)):
            raise TimeoutError(f"{count - notes.count} reports are not acknowledged")
        for number, _ in ready:
            at[number].receive(notes)
    return notes.build_result([pacer.sent for pacer in pacers])


def run_role(roles: Mapping[str, Callable[[int, int, int, int, int], LoadResult]]) -> None:
    """Play the role that the command line names."""
    role, *numbers = sys.argv[1:]
    port, gateways, devices, amount, seconds = map(int, numbers)
    require_connections(gateways)
    sent = roles[role](port, gateways, devices, amount, seconds)
    print(msgspec.json.encode(sent).decode(), flush=True)
    sys.stdin.read()


def format_now() -> bytes:
    """The time as reports have it."""
    return format_millis(time.time_ns() // 1_000_000).encode()


def wait_for_start() -> None:
    """Tell that all are there, and wait for the word."""
    print("ready", flush=True)
    sys.stdin.readline()


def build_poll(ends: list[socket.socket]) -> select.epoll:
    """Who tells on which connections something came."""
    poll = select.epoll()
    for end in ends:
        poll.register(end.fileno(), select.EPOLLIN)
    return poll


if __name__ == "__main__":
    run_role({"push": push, "pace": pace})
