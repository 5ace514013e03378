"""What the clients of `bench.broker` do to a broker: push, keep a pace, fan out, sit there, come all at once.

Whoever is connected says "ready" and waits for a line, and stays connected while the figures are read: coming
and going are no part of them.
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
"""Seconds that a pace sleeps between its looks: at 20,000 a second, two reports fall due in them."""

LATENCY_SAMPLE_EVERY: Final = 20
"""One of so many connections at a pace has its latency measured."""

EDGE_EVENTS: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET


@contextmanager
def push(port: int, connections: int, count: int) -> Iterator[Metrics]:
    """Publish as fast as a few connections with full windows can."""
    ends = connect_all(port, map(gateway_mac, range(connections)))
    pieces = count // connections // CHUNK
    publishers = {end.fileno(): Publisher(end, number, pieces) for number, end in enumerate(ends)}
    _wait_for_start()
    meter = MessageMeter(connections * pieces * CHUNK)
    for publisher in publishers.values():
        publisher.start()
    _run_until_done({number: publisher.on_readable for number, publisher in publishers.items()})
    yield meter.metrics()


@contextmanager
def fan_out(port: int, subscribers: int, count: int, qos: int) -> Iterator[Metrics]:
    """Publish over one connection what many subscribe to, until all of them have all of it."""
    ends = connect_all(port, map(viewer_name, range(subscribers)), at_once=MAX_USERS_CONNECTING)
    subscribe = encode_packet(Subscribe(1, (("mt/gateway/+/device/#", qos),)))
    exchange_all(ends, [subscribe] * subscribers, answer=encode_packet(Suback(1, (qos,))))
    (end,) = connect_all(port, [gateway_mac(0)])
    pieces = count // CHUNK
    publisher = Publisher(end, 0, pieces)
    steps = {each.fileno(): Subscriber(each, qos=qos, count=pieces * CHUNK).on_readable for each in ends}
    _wait_for_start()
    meter = MessageMeter(subscribers * pieces * CHUNK)
    publisher.start()
    _run_until_done({**steps, end.fileno(): publisher.on_readable})
    yield meter.metrics()


@contextmanager
def pace(port: int, connections: int, rate: int, seconds: int) -> Iterator[Metrics]:
    """Publish at a rate, one connection after the other, each a single report."""
    turns = RoundRobinPublisher(connect_all(port, map(gateway_mac, range(connections))))
    count = rate * seconds
    _wait_for_start()
    meter, began, sent = MessageMeter(count), time.monotonic(), 0
    while sent < count:
        time.sleep(TICK_SECONDS)
        due = min(count, int((time.monotonic() - began) * rate))
        turns.publish(sent, due)
        turns.receive_pubacks(timeout=0)
        sent = due
    sent_after = time.monotonic() - began
    while turns.pubacks < count and turns.receive_pubacks(timeout=TIMEOUT):
        pass
    figures = meter.metrics()
    yield {**figures, "sent_per_s": count / sent_after, "pubacks": turns.pubacks, **turns.latencies()}


@contextmanager
def idle(port: int, connections: int) -> Iterator[Metrics]:
    """Connect, subscribe to requests as gateways do, and be there."""
    names = [gateway_mac(number) for number in range(connections)]
    ends = connect_all(port, names)
    wanted = (((f"mt/gateway/{name}/request/#", 1), ("mt/gateways/#", 1)) for name in names)
    exchange_all(
        ends, (encode_packet(Subscribe(1, both)) for both in wanted), answer=encode_packet(Suback(1, (1, 1)))
    )
    _wait_for_start()
    exchange_all(
        ends, [PINGREQ] * connections, answer=PINGRESP
    )  # else somebody has been thrown out meanwhile
    yield {"connections": connections}


@contextmanager
def storm(port: int, connections: int) -> Iterator[Metrics]:
    """Connect all at once, and see who gets in, and when the last of them does."""
    packets = [encode_connect(gateway_mac(number)) for number in range(connections)]
    _wait_for_start()
    meter, began = MessageMeter(connections), time.monotonic()
    newcomers = [ConnectAttempt(port, packet) for packet in packets]
    with suppress(TimeoutError):  # who waits for longer has not got in
        _run_until_done({each.fileno(): each.on_event for each in newcomers}, EDGE_EVENTS)
    accepted = [each.accepted_at for each in newcomers if each.accepted_at]
    cpu, seconds = meter.metrics()["cpu_us"], max(accepted, default=began) - began
    yield {"cpu_us": cpu, "seconds": seconds, "refused": connections - len(accepted)}


class RoundRobinPublisher:
    """Connections that publish in turns, a report each, whether or not their last is acknowledged."""

    def __init__(self, ends: list[socket.socket]) -> None:
        for end in ends:
            end.settimeout(0)
        self.pubacks = 0
        self._turns = [(end.sendall, encode_device_reports(number)) for number, end in enumerate(ends)]
        self._receive = {end.fileno(): end.recv for end in ends}
        self._sent_at: dict[int, deque[float]] = {
            end.fileno(): deque() for end in ends[::LATENCY_SAMPLE_EVERY]
        }
        self._sampled = {
            number: self._sent_at[ends[number].fileno()]
            for number in range(0, len(ends), LATENCY_SAMPLE_EVERY)
        }
        self._latencies: list[float] = []
        self._poll = _build_poll(self._receive, select.EPOLLIN)

    def publish(self, begin: int, end: int) -> None:
        """Publish the reports from one number to another."""
        for report in range(begin, end):
            turn, number = divmod(report, len(self._turns))
            send, packets = self._turns[number]
            if not number % LATENCY_SAMPLE_EVERY:
                self._sampled[number].append(time.monotonic())
            send(packets[turn % len(packets)])

    def receive_pubacks(self, *, timeout: float) -> bool:
        """Count what has come; False when nothing has."""
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
        """Milliseconds from a report to its PUBACK."""
        cuts = statistics.quantiles(self._latencies, n=100)
        return {"ms_p50": cuts[49] * 1e3, "ms_p99": cuts[98] * 1e3, "ms_max": max(self._latencies) * 1e3}


class ConnectAttempt:
    """A connection that introduces itself as soon as it stands, and learns whether it may stay."""

    def __init__(self, port: int, packet: bytes) -> None:
        self.accepted_at = 0.0
        self._packet = packet
        self._end = socket.socket()
        self._end.settimeout(0)
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(CONNACK_ACCEPTED))
        self._end.connect_ex(("127.0.0.1", port))
        self.fileno = self._end.fileno

    def on_event(self) -> bool:
        """Take a step whenever something has changed; whether there is another."""
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
    """Take the step of every connection that is ready, until it says that it was the last."""
    poll, left = _build_poll(steps, events), dict(steps)
    while left:
        if not (ready := poll.poll(TIMEOUT)):
            raise TimeoutError(f"{len(left)} connections wait for a broker that is silent")
        for descriptor, _ in ready:
            if not left[descriptor]():
                del left[descriptor]
                poll.unregister(descriptor)


def _build_poll(descriptors: Iterable[int], events: int) -> select.epoll:
    poll = select.epoll()
    for descriptor in descriptors:
        poll.register(descriptor, events)
    return poll
