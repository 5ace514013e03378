"""Loads of `bench.broker`: full speed, a fixed rate, fan-out, idle clients and a connect storm.

Each load prints "ready" once its clients are connected and waits for a line. The clients stay connected while
the metrics are read, so that connects and disconnects are not measured.
"""

from __future__ import annotations

import select
import socket
import statistics
import sys
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from bench.broker_clients import (
    CHUNK,
    CONNACK_ACCEPTED,
    MAX_USERS_CONNECTING,
    PUBACK_LENGTH,
    TIMEOUT,
    Publisher,
    Subscriber,
    connect_all,
    encode_connect,
    encode_device_reports,
    exchange_all,
    gateway_mac,
    viewer_name,
)
from bench.link_programs import MessageMeter, Metrics
from meshfleet.mqtt.codec.encoder import PINGREQ, PINGRESP, encode_packet
from meshfleet.mqtt.codec.packets import Suback, Subscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TICK_SECONDS: Final = 0.0001
"""Seconds between two checks for due reports: at 20,000 per second, two reports fall due in that time."""

LATENCY_SAMPLE_EVERY: Final = 20
"""Latency is measured on every n-th connection."""

EDGE_EVENTS: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET


@contextmanager
def push(port: int, connections: int, count: int) -> Iterator[Metrics]:
    """Publish as fast as possible over a few connections with full in-flight windows."""
    sockets = connect_all(port, map(gateway_mac, range(connections)))
    chunks = count // connections // CHUNK
    publishers = {
        connection.fileno(): Publisher(connection, number, chunks)
        for number, connection in enumerate(sockets)
    }
    _wait_for_start()
    meter = MessageMeter(connections * chunks * CHUNK)
    for publisher in publishers.values():
        publisher.start()
    _run_until_done({number: publisher.on_readable for number, publisher in publishers.items()})
    yield meter.metrics()


@contextmanager
def fan_out(port: int, subscribers: int, count: int, qos: int) -> Iterator[Metrics]:
    """Publish over one connection to many subscribers, until all have received all reports."""
    sockets = connect_all(port, map(viewer_name, range(subscribers)), at_once=MAX_USERS_CONNECTING)
    subscribe = encode_packet(Subscribe(1, (("mt/gateway/+/device/#", qos),)))
    exchange_all(sockets, [subscribe] * subscribers, answer=encode_packet(Suback(1, (qos,))))
    (connection,) = connect_all(port, [gateway_mac(0)])
    chunks = count // CHUNK
    publisher = Publisher(connection, 0, chunks)
    steps = {each.fileno(): Subscriber(each, qos=qos, count=chunks * CHUNK).on_readable for each in sockets}
    _wait_for_start()
    meter = MessageMeter(subscribers * chunks * CHUNK)
    publisher.start()
    _run_until_done({**steps, connection.fileno(): publisher.on_readable})
    yield meter.metrics()


@contextmanager
def pace(port: int, connections: int, rate: int, seconds: int) -> Iterator[Metrics]:
    """Publish at a fixed rate, a single report per connection in turns."""
    publisher = RoundRobinPublisher(connect_all(port, map(gateway_mac, range(connections))))
    count = rate * seconds
    _wait_for_start()
    meter, started, sent = MessageMeter(count), time.monotonic(), 0
    while sent < count:
        time.sleep(TICK_SECONDS)
        due = min(count, int((time.monotonic() - started) * rate))
        publisher.publish(sent, due)
        publisher.receive_pubacks(timeout=0)
        sent = due
    sending_seconds = time.monotonic() - started
    while publisher.pubacks < count and publisher.receive_pubacks(timeout=TIMEOUT):
        pass
    metrics = meter.metrics()
    yield {
        **metrics,
        "sent_per_s": count / sending_seconds,
        "pubacks": publisher.pubacks,
        **publisher.latencies(),
    }


@contextmanager
def idle(port: int, connections: int) -> Iterator[Metrics]:
    """Connect, subscribe to requests as gateways do, and stay idle."""
    names = [gateway_mac(number) for number in range(connections)]
    sockets = connect_all(port, names)
    filters = (((f"mt/gateway/{name}/request/#", 1), ("mt/gateways/#", 1)) for name in names)
    exchange_all(
        sockets,
        (encode_packet(Subscribe(1, both)) for both in filters),
        answer=encode_packet(Suback(1, (1, 1))),
    )
    _wait_for_start()
    exchange_all(
        sockets, [PINGREQ] * connections, answer=PINGRESP
    )  # fails if the broker has closed a connection meanwhile
    yield {"connections": connections}


@contextmanager
def storm(port: int, connections: int) -> Iterator[Metrics]:
    """Connect all clients at once, and measure how many are accepted and the time until the last one is."""
    packets = [encode_connect(gateway_mac(number)) for number in range(connections)]
    _wait_for_start()
    meter, started = MessageMeter(connections), time.monotonic()
    attempts = [ConnectAttempt(port, packet) for packet in packets]
    with suppress(TimeoutError):  # attempts without a result count as refused
        _run_until_done({each.fileno(): each.on_event for each in attempts}, EDGE_EVENTS)
    accepted = [each.accepted_at for each in attempts if each.accepted_at]
    cpu, seconds = meter.metrics()["cpu_us"], max(accepted, default=started) - started
    yield {"cpu_us": cpu, "seconds": seconds, "refused": connections - len(accepted)}


class RoundRobinPublisher:
    """Connections that publish one report each in turns, without waiting for PUBACKs."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        for connection in sockets:
            connection.settimeout(0)
        self.pubacks = 0
        self._turns = [
            (connection.sendall, encode_device_reports(number)) for number, connection in enumerate(sockets)
        ]
        self._receive = {connection.fileno(): connection.recv for connection in sockets}
        self._sent_at: dict[int, deque[float]] = {
            connection.fileno(): deque() for connection in sockets[::LATENCY_SAMPLE_EVERY]
        }
        self._sampled = {
            number: self._sent_at[sockets[number].fileno()]
            for number in range(0, len(sockets), LATENCY_SAMPLE_EVERY)
        }
        self._latencies: list[float] = []
        self._poll = _build_poll(self._receive, select.EPOLLIN)

    def publish(self, begin: int, end: int) -> None:
        """Publish the reports with numbers in this range."""
        for report in range(begin, end):
            turn, number = divmod(report, len(self._turns))
            send, packets = self._turns[number]
            if not number % LATENCY_SAMPLE_EVERY:
                self._sampled[number].append(time.monotonic())
            send(packets[turn % len(packets)])

    def receive_pubacks(self, *, timeout: float) -> bool:
        """Count received PUBACKs. Return False if there were none before the timeout."""
        events = self._poll.poll(timeout)
        for descriptor, _ in events:
            count = len(self._receive[descriptor](4096)) // PUBACK_LENGTH
            if not count:
                raise RuntimeError("the broker has closed the connection of a gateway")
            self.pubacks += count
            if sent_at := self._sent_at.get(descriptor):
                now = time.monotonic()
                self._latencies += [now - sent_at.popleft() for _ in range(count)]
        return bool(events)

    def latencies(self) -> Metrics:
        """Return percentiles of the milliseconds from a report to its PUBACK."""
        cuts = statistics.quantiles(self._latencies, n=100)
        return {"ms_p50": cuts[49] * 1e3, "ms_p99": cuts[98] * 1e3, "ms_max": max(self._latencies) * 1e3}


class ConnectAttempt:
    """Connection that sends CONNECT as soon as it is open, and records when it is accepted."""

    def __init__(self, port: int, packet: bytes) -> None:
        self.accepted_at = 0.0
        self._packet = packet
        self._end = socket.socket()
        self._end.settimeout(0)
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(CONNACK_ACCEPTED))
        self._end.connect_ex(("127.0.0.1", port))
        self.fileno = self._end.fileno

    def on_event(self) -> bool:
        """Handle an event of the socket: send CONNECT or receive CONNACK. Return whether to wait for more."""
        try:
            if self._packet:
                self._end.sendall(self._packet)
                self._packet = b""
                return True
            if self._end.recv(len(CONNACK_ACCEPTED)) == CONNACK_ACCEPTED:
                self.accepted_at = time.monotonic()
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False


def _wait_for_start() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _run_until_done(steps: dict[int, Callable[[], bool]], events: int = select.EPOLLIN) -> None:
    """Call the step of every ready connection, until each has returned False."""
    poll, remaining = _build_poll(steps, events), dict(steps)
    while remaining:
        if not (ready := poll.poll(TIMEOUT)):
            raise TimeoutError(f"{len(remaining)} connections got no data from the broker")
        for descriptor, _ in ready:
            if not remaining[descriptor]():
                del remaining[descriptor]
                poll.unregister(descriptor)


def _build_poll(descriptors: Iterable[int], events: int) -> select.epoll:
    poll = select.epoll()
    for descriptor in descriptors:
        poll.register(descriptor, events)
    return poll
