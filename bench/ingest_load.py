"""Gateways of `bench.ingest`, all in one process, which report at full speed or at a fixed rate.

python -m bench.ingest_load push PORT GATEWAYS DEVICES COUNT SECONDS    full windows, until COUNT or SECONDS
python -m bench.ingest_load pace PORT GATEWAYS DEVICES RATE SECONDS     RATE reports per second in total

DEVICES is the number per gateway; COUNT or SECONDS 0 is no limit. It prints "ready", waits for a line, prints
one JSON object when all reports are acknowledged, and stays connected until standard input ends.
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
"""Reports that a pusher writes in one call, and its maximum of unacknowledged reports."""

RATE_WINDOW_SECONDS: Final = 5
"""Seconds over which the slowest rate is computed."""


class Load(NamedTuple):
    """Load of a number of gateways."""

    role: str
    gateways: int
    devices: int
    """Devices per gateway."""
    amount: int
    """Number of pushed reports, or the rate of a pace; 0: limited only by the seconds."""
    seconds: int
    is_acked: bool = False
    """Whether gateways receive acks of samples, as in `bench.ingest_acked_load`."""


class LoadResult(msgspec.Struct):
    """Sent reports, and the times of their acknowledgments."""

    count: int
    seconds: float
    """Seconds from the first report to the last PUBACK."""
    slowest_per_s: float
    """Lowest rate over five consecutive seconds."""
    ms_p50: float
    ms_p99: float
    """Milliseconds from a report to its PUBACK."""
    load_cpu_us: float
    by_gateway: list[int]
    acks: int = 0
    """Received acks of samples."""
    backfills: int = 0
    """Acks that request older samples, although nothing is missing."""


class AckTimes:
    """Arrival times of PUBACKs."""

    def __init__(self) -> None:
        self._started, self._cpu = time.monotonic(), time.process_time()
        self._last = self._started
        self._latencies: list[float] = []
        self._in_second: list[int] = []
        self.count = 0

    def add(self, count: int, now: float) -> None:
        """Record a number of PUBACKs received now."""
        second = int(now - self._started)
        self._in_second += [0] * (second + 1 - len(self._in_second))
        self._in_second[second] += count
        self.count += count
        self._last = now

    def add_latency(self, seconds: float) -> None:
        """Record the seconds between a report and its PUBACK."""
        self._latencies.append(seconds)

    def build_result(self, by_gateway: list[int]) -> LoadResult:
        """Compute the result of the load."""
        cuts, seconds = statistics.quantiles(self._latencies, n=100), self._last - self._started
        whole = self._in_second[: int(seconds)]
        window_rates = [
            sum(whole[end - RATE_WINDOW_SECONDS : end]) / RATE_WINDOW_SECONDS
            for end in range(RATE_WINDOW_SECONDS, len(whole) + 1)
        ]
        return LoadResult(
            count=self.count,
            seconds=seconds,
            slowest_per_s=min(window_rates, default=self.count / seconds),
            ms_p50=cuts[49] * 1e3,
            ms_p99=cuts[98] * 1e3,
            load_cpu_us=(time.process_time() - self._cpu) / self.count * 1e6,
            by_gateway=by_gateway,
        )


class PushBudget:
    """Remaining chunks and time of a load at full speed."""

    def __init__(self, count: int, seconds: float) -> None:
        self._chunks = count // CHUNK or sys.maxsize
        self._until = time.monotonic() + (seconds or float("inf"))

    def use_chunk(self) -> bool:
        """Take a chunk from the budget. Return False if it is used up."""
        if not self._chunks or time.monotonic() >= self._until:
            return False
        self._chunks -= 1
        return True


class Pusher:
    """Gateway that keeps its in-flight window full."""

    def __init__(self, connection: socket.socket, number: int, devices: int) -> None:
        reports = build_reports(number, devices)
        self._chunks = [reports[begin : begin + CHUNK] for begin in range(0, len(reports), CHUNK)]
        self._ids = cycle(IDS[: len(IDS) // CHUNK * CHUNK])
        self._unacknowledged: deque[float] = deque()
        self._connection = connection
        self.written = 0
        # Readable when a whole chunk is acknowledged.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, CHUNK * PUBACK_LENGTH)

    def write(self) -> None:
        """Write the next chunk."""
        turn, chunk = divmod(self.written, len(self._chunks))
        self._unacknowledged.append(time.monotonic())
        self._connection.sendall(self._encode_chunk(self._chunks[chunk], turn))
        self.written += 1

    def on_readable(self, budget: PushBudget, ack_times: AckTimes) -> bool:
        """Receive the PUBACKs of a chunk and write another. Return whether more PUBACKs are expected."""
        received, now = self._connection.recv(CHUNK * PUBACK_LENGTH), time.monotonic()
        if len(received) != CHUNK * PUBACK_LENGTH:
            raise RuntimeError("the broker has closed the connection of a gateway")
        self._finish_chunk(now, budget, ack_times)
        return bool(self._unacknowledged)

    def _encode_chunk(self, chunk: list[Report], turn: int) -> bytes:
        return encode_reports(chunk, islice(self._ids, CHUNK), turn=turn, time=format_now())

    def _finish_chunk(self, now: float, budget: PushBudget, ack_times: AckTimes) -> None:
        ack_times.add(CHUNK, now)
        ack_times.add_latency(now - self._unacknowledged.popleft())
        if budget.use_chunk():
            self.write()


def push(port: int, gateways: int, devices: int, count: int, seconds: int) -> LoadResult:
    """Send as fast as possible until a number of reports or seconds is reached."""
    sockets = connect_all(port, map(gateway_mac, range(gateways)))
    return push_over(
        sockets,
        [Pusher(each_socket, number, devices) for number, each_socket in enumerate(sockets)],
        count,
        seconds,
    )


def push_over(
    sockets: list[socket.socket], all_pushers: Sequence[Pusher], count: int, seconds: int
) -> LoadResult:
    """Send as fast as possible over connections, each with its pusher."""
    pushers = {each_socket.fileno(): pusher for each_socket, pusher in zip(sockets, all_pushers, strict=True)}
    wait_for_start()
    ack_times, budget = AckTimes(), PushBudget(count, seconds)
    for _ in range(WINDOW // CHUNK):
        for pusher in pushers.values():
            if budget.use_chunk():
                pusher.write()
    poll, remaining = build_poll(sockets), {number for number, pusher in pushers.items() if pusher.written}
    while remaining:
        if not (ready := poll.poll(TIMEOUT)):
            raise TimeoutError(f"{len(remaining)} gateways got no PUBACKs")
        remaining -= {number for number, _ in ready if not pushers[number].on_readable(budget, ack_times)}
    return ack_times.build_result([pusher.written * CHUNK for pusher in pushers.values()])


class Pacer:
    """Gateway that sends single reports without waiting for PUBACKs."""

    def __init__(self, connection: socket.socket, number: int, devices: int) -> None:
        self._reports: list[tuple[Report]] = [(each,) for each in build_reports(number, devices)]
        self._ids = cycle((each,) for each in IDS)
        self._sent_at: deque[float] | None = None if number % LATENCY_SAMPLE_EVERY else deque()
        self._connection = connection
        self.sent = 0

    def send(self, now: bytes) -> None:
        """Send the next report."""
        turn, index = divmod(self.sent, len(self._reports))
        if self._sent_at is not None:
            self._sent_at.append(time.monotonic())
        self._connection.sendall(encode_reports(self._reports[index], next(self._ids), turn=turn, time=now))
        self.sent += 1

    def receive(self, ack_times: AckTimes) -> None:
        """Receive the available PUBACKs."""
        count, now = self._receive_pubacks(), time.monotonic()
        ack_times.add(count, now)
        if self._sent_at is not None:
            for _ in range(count):
                ack_times.add_latency(now - self._sent_at.popleft())

    def _receive_pubacks(self) -> int:
        received = self._connection.recv(4096)
        if not received:
            raise RuntimeError("the broker has closed the connection of a gateway")
        return len(received) // PUBACK_LENGTH


def pace(port: int, gateways: int, devices: int, rate: int, seconds: int) -> LoadResult:
    """Send single reports at a fixed rate, the gateways in turns."""
    sockets = connect_all(port, map(gateway_mac, range(gateways)))
    return pace_over(
        sockets,
        [Pacer(each_socket, number, devices) for number, each_socket in enumerate(sockets)],
        rate,
        seconds,
    )


def pace_over(sockets: list[socket.socket], pacers: Sequence[Pacer], rate: int, seconds: int) -> LoadResult:
    """Send at a fixed rate over connections, each with its pacer."""
    by_descriptor, poll = (
        {each_socket.fileno(): pacer for each_socket, pacer in zip(sockets, pacers, strict=True)},
        build_poll(sockets),
    )
    wait_for_start()
    ack_times, started, turns = AckTimes(), time.monotonic(), cycle(pacers)
    sent, count = 0, rate * seconds
    while sent < count:
        time.sleep(TICK_SECONDS)
        due, now = min(count, int((time.monotonic() - started) * rate)), format_now()
        for pacer in islice(turns, due - sent):
            pacer.send(now)
        sent = due
        for number, _ in poll.poll(0):
            by_descriptor[number].receive(ack_times)
    while ack_times.count < count:
        if not (ready := poll.poll(TIMEOUT)):
            raise TimeoutError(f"{count - ack_times.count} reports are not acknowledged")
        for number, _ in ready:
            by_descriptor[number].receive(ack_times)
    return ack_times.build_result([pacer.sent for pacer in pacers])


def run_role(roles: Mapping[str, Callable[[int, int, int, int, int], LoadResult]]) -> None:
    """Run the role named on the command line, and print its result."""
    role, *numbers = sys.argv[1:]
    port, gateways, devices, amount, seconds = map(int, numbers)
    require_connections(gateways)
    sent = roles[role](port, gateways, devices, amount, seconds)
    print(msgspec.json.encode(sent).decode(), flush=True)
    sys.stdin.read()


def format_now() -> bytes:
    """Return the current time as in reports."""
    return format_millis(time.time_ns() // 1_000_000).encode()


def wait_for_start() -> None:
    """Print "ready", and wait for a line."""
    print("ready", flush=True)
    sys.stdin.readline()


def build_poll(sockets: list[socket.socket]) -> select.epoll:
    """Create an epoll object for the readability of connections."""
    poll = select.epoll()
    for each_socket in sockets:
        poll.register(each_socket.fileno(), select.EPOLLIN)
    return poll


if __name__ == "__main__":
    run_role({"push": push, "pace": pace})
