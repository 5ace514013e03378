"""The gateways of `bench.ingest_load` at version 2.4.0: they take acknowledgements of samples.

python -m bench.ingest_acked_load push PORT GATEWAYS DEVICES COUNT SECONDS
python -m bench.ingest_acked_load pace PORT GATEWAYS DEVICES RATE SECONDS

Each subscribes to its requests, and tells its version when it is asked, before it says that it is ready. The
acks of one read get their PUBACKs in one write.
"""

from __future__ import annotations

import re
import socket
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from bench.broker_clients import TIMEOUT, connect_all, exchange_all, gateway_mac
from bench.ingest_load import CHUNK, LoadResult, Pacer, Pusher, build_poll, pace_over, push_over, run_role
from bench.ingest_reports import count_acks, encode_reports
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Publish, Suback, Subscribe
from meshfleet.protocol import requests, responses
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.ids import Mac, Version
from meshfleet.protocol.responses import ApiVersionResponse
from meshfleet.protocol.times import format_millis, from_millis
from meshfleet.protocol.topics import ResponseTopic, TopicCodec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.ingest_load import AckTimes, PushBudget
    from bench.ingest_reports import Report

VERSION: Final = Version(2, 4, 0)

_VERSION_REQUEST_TIMEOUT: Final = 300.0
"""Seconds: the service asks twenty gateways at a time, and who was not quick enough once more later."""
_ACK_TIMEOUT: Final = 5.0
"""Seconds of silence after which acks that are missing do not come."""

_READ: Final = 1 << 18
_TOGETHER: Final = 50
"""Gateways that connect and subscribe at once. Who is asked before it listens is not asked again soon."""

_PUBACK, _PUBACK_HEAD = 0x40, b"\x40\x02"
_PUBACKS: Final = re.compile(rb"(?:\x40\x02..)+", re.DOTALL)
_AT_QOS_1: Final = 0x32
_LONG: Final = 0x80
"""From here on the length of a packet takes two bytes; no request to these gateways is so long."""
_OPERATION: Final = 4 + len(f"mt/gateway/{gateway_mac(0)}/request/{gateway_mac(0)}/")
"""Where the operation begins in a request."""
_ACK: Final = b"ack"
_BACKFILL: Final = b'"type":1}'
_ANSWERED: Final = 0xFFFF
"""The packet id of what a gateway tells of itself."""


class Inbox:
    """What comes to a gateway: PUBACKs of its reports, acks of its samples, and requests."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self.acks = 0
        self.backfills = 0
        self.requests: list[bytes] = []
        """All but the acks, as they came."""

    def read(self) -> int:
        """Take what is there, and acknowledge the messages; tells how many of our own are acknowledged."""
        got = self._connection.recv(_READ)
        if not got:
            raise RuntimeError("the broker has closed the connection of a gateway")
        landed, ids = self._split(self._rest + got)
        if ids:
            self._connection.sendall(_PUBACK_HEAD + _PUBACK_HEAD.join(ids))
        return landed

    def _split(self, data: bytes) -> tuple[int, list[bytes]]:
        """How many PUBACKs are in there, and the packet ids of messages. What is incomplete is kept."""
        at, last, landed = 0, len(data) - 4, 0
        ids: list[bytes] = []
        while at <= last:
            if data[at] == _PUBACK:
                stop = _PUBACKS.match(data, at).end()  # type: ignore[union-attr] # one begins here
                landed += (stop - at) // 4
            else:
                stop = at + 2 + data[at + 1]
                if stop > len(data):
                    break
                middle = at + 4 + data[at + 3]
                ids.append(data[middle : middle + 2])
                if data[at + _OPERATION : at + _OPERATION + 3] == _ACK:
                    self.acks += 1
                else:
                    self.requests.append(_checked(data[at:stop]))
            at = stop
        self._rest = data[at:]
        self.backfills += data.count(_BACKFILL, 0, at)
        return landed, ids


def _checked(packet: bytes) -> bytes:
    if packet[0] != _AT_QOS_1 or packet[1] >= _LONG:
        raise RuntimeError(f"{packet!r} came to a gateway")
    return packet


class AckedPusher(Pusher):
    """A gateway that keeps its window full. No two samples of a series have the same time."""

    def __init__(self, connection: socket.socket, inbox: Inbox, number: int, devices: int) -> None:
        super().__init__(connection, number, devices)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._inbox = inbox
        self._devices = devices
        self._landed = 0
        self._time = 0

    def on_readable(self, budget: PushBudget, notes: AckTimes) -> bool:
        """Take what came, and write another piece for each that is acknowledged; whether more is to come."""
        self._landed += self._inbox.read()
        now = time.monotonic()
        while self._landed >= CHUNK:
            self._landed -= CHUNK
            self._finish_chunk(now, budget, notes)
        return bool(self._unacknowledged)

    def _encode_chunk(self, piece: list[Report], turn: int) -> bytes:
        """Every device comes once before the first comes again, and then it is a millisecond later."""
        parts = []
        for start in range(0, len(piece), self._devices):
            part = piece[start : start + self._devices]
            self._time = max(self._time + 1, time.time_ns() // 1_000_000)
            now, ids = format_millis(self._time).encode(), islice(self._ids, len(part))
            parts.append(encode_reports(part, ids, turn=turn, time=now))
        return b"".join(parts)


class AckedPacer(Pacer):
    """A gateway that sends single reports."""

    def __init__(self, connection: socket.socket, inbox: Inbox, number: int, devices: int) -> None:
        super().__init__(connection, number, devices)
        self._inbox = inbox

    def _receive_pubacks(self) -> int:
        return self._inbox.read()


def push(port: int, gateways: int, devices: int, count: int, seconds: int) -> LoadResult:
    """Push until so many are sent, or so long."""
    ends, inboxes = _connect_gateways(port, gateways)
    both = zip(ends, inboxes, strict=True)
    pushers = [AckedPusher(*each, number, devices) for number, each in enumerate(both)]
    return _with_acks(push_over(ends, pushers, count, seconds), ends, inboxes, devices)


def pace(port: int, gateways: int, devices: int, rate: int, seconds: int) -> LoadResult:
    """Send at a rate, one gateway after the other, each a single report."""
    ends, inboxes = _connect_gateways(port, gateways)
    both = zip(ends, inboxes, strict=True)
    pacers = [AckedPacer(*each, number, devices) for number, each in enumerate(both)]
    return _with_acks(pace_over(ends, pacers, rate, seconds), ends, inboxes, devices)


def _with_acks(
    sent: LoadResult, ends: list[socket.socket], inboxes: Sequence[Inbox], devices: int
) -> LoadResult:
    """Wait for acks that are still to come, and see that each gateway has got its own."""
    due = [count_acks(devices, sent=count) for count in sent.by_gateway]
    at, poll = dict(zip((end.fileno() for end in ends), inboxes, strict=True)), build_poll(ends)
    while any(inbox.acks < wanted for inbox, wanted in zip(inboxes, due, strict=True)):
        if not (ready := poll.poll(_ACK_TIMEOUT)):
            break
        for number, _ in ready:
            at[number].read()
    for number, (inbox, wanted) in enumerate(zip(inboxes, due, strict=True)):
        if inbox.acks != wanted:
            raise RuntimeError(f"{gateway_mac(number)} got {inbox.acks} acks for {wanted} samples")
    sent.acks, sent.backfills = sum(due), sum(inbox.backfills for inbox in inboxes)
    return sent


# --- Getting to know the service ---


def _connect_gateways(port: int, gateways: int) -> tuple[list[socket.socket], list[Inbox]]:
    """Connect all gateways, and let the service learn what they are."""
    ends: list[socket.socket] = []
    for begin in range(0, gateways, _TOGETHER):
        names = [gateway_mac(number) for number in range(begin, min(begin + _TOGETHER, gateways))]
        fresh = connect_all(port, names)
        wanted = (encode_packet(Subscribe(1, ((f"mt/gateway/{name}/request/#", 1),))) for name in names)
        exchange_all(fresh, wanted, answer=encode_packet(Suback(1, (1,))))
        ends += fresh
    inboxes = [Inbox(end) for end in ends]
    _answer_version_requests(ends, inboxes)
    return ends, inboxes


def _answer_version_requests(ends: list[socket.socket], inboxes: Sequence[Inbox]) -> None:
    """Let each gateway tell its version when it is asked, until the broker has taken all answers."""
    poll, until = build_poll(ends), time.monotonic() + _VERSION_REQUEST_TIMEOUT
    unmet = {end.fileno(): number for number, end in enumerate(ends)}
    while unmet:
        if time.monotonic() > until:
            raise TimeoutError(f"{len(unmet)} gateways were not asked for their versions")
        for descriptor, _ in poll.poll(TIMEOUT):
            number = unmet[descriptor]
            if inboxes[number].read():
                poll.unregister(descriptor)
                del unmet[descriptor]
            for request in _drain_requests(inboxes[number]):
                ends[number].sendall(_answer(Mac(gateway_mac(number)), request))


def _drain_requests(inbox: Inbox) -> list[bytes]:
    taken, inbox.requests = inbox.requests, []
    return taken


def _answer(mac: Mac, request: bytes) -> bytes:
    """What a gateway answers to the only request that comes before its first report."""
    payload = request[4 + request[3] + 2 :]
    request_id = requests.decode_request_id(payload)
    if request_id is None:
        raise RuntimeError(f"{request!r} came to a gateway that is asked for its version")
    answer = ApiVersionResponse(
        time=from_millis(time.time_ns() // 1_000_000), status=0, id=request_id, version=VERSION
    )
    topic = TopicCodec("").format_topic(ResponseTopic(mac, mac, Operation.APIVERSION))
    return encode_packet(
        Publish(topic, responses.encode_response(Operation.APIVERSION, answer), 1, packet_id=_ANSWERED)
    )


if __name__ == "__main__":
    run_role({"push": push, "pace": pace})
