"""Gateways of `bench.ingest_load` with API version 2.4.0, which receive acks of samples.

python -m bench.ingest_acked_load push PORT GATEWAYS DEVICES COUNT SECONDS
python -m bench.ingest_acked_load pace PORT GATEWAYS DEVICES RATE SECONDS

Each gateway subscribes to its requests and responds to the version request before "ready" is printed. The
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
"""Seconds: the service requests the versions of twenty gateways at a time, and repeats late ones later."""
_ACK_TIMEOUT: Final = 5.0
"""Seconds without data after which missing acks are given up."""

_READ: Final = 1 << 18
_BATCH: Final = 50
"""Gateways that connect and subscribe together: a request before the subscription is repeated late."""

_PUBACK, _PUBACK_HEAD = 0x40, b"\x40\x02"
_PUBACKS: Final = re.compile(rb"(?:\x40\x02..)+", re.DOTALL)
_AT_QOS_1: Final = 0x32
_LONG: Final = 0x80
"""Length from which a packet's length takes two bytes; requests to these gateways are shorter."""
_OPERATION: Final = 4 + len(f"mt/gateway/{gateway_mac(0)}/request/{gateway_mac(0)}/")
"""Offset of the operation in a request."""
_ACK: Final = b"ack"
_BACKFILL: Final = b'"type":1}'
_RESPONSE_PACKET_ID: Final = 0xFFFF
"""Packet id of version responses."""


class Inbox:
    """Incoming packets of a gateway: PUBACKs of its reports, acks of its samples, and requests."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self.acks = 0
        self.backfills = 0
        self.requests: list[bytes] = []
        """Received requests other than acks, as packets."""

    def read(self) -> int:
        """Receive data and send PUBACKs for its messages. Return the number of received PUBACKs."""
        received = self._connection.recv(_READ)
        if not received:
            raise RuntimeError("the broker has closed the connection of a gateway")
        pubacks, ids = self._split(self._rest + received)
        if ids:
            self._connection.sendall(_PUBACK_HEAD + _PUBACK_HEAD.join(ids))
        return pubacks

    def _split(self, data: bytes) -> tuple[int, list[bytes]]:
        """Return the number of PUBACKs and the packet ids of messages. An incomplete packet is kept."""
        position, last, pubacks = 0, len(data) - 4, 0
        ids: list[bytes] = []
        while position <= last:
            if data[position] == _PUBACK:
                stop = _PUBACKS.match(data, position).end()  # type: ignore[union-attr] # a PUBACK begins here
                pubacks += (stop - position) // 4
            else:
                stop = position + 2 + data[position + 1]
                if stop > len(data):
                    break
                middle = position + 4 + data[position + 3]
                ids.append(data[middle : middle + 2])
                if data[position + _OPERATION : position + _OPERATION + 3] == _ACK:
                    self.acks += 1
                else:
                    self.requests.append(_check_request(data[position:stop]))
            position = stop
        self._rest = data[position:]
        self.backfills += data.count(_BACKFILL, 0, position)
        return pubacks, ids


def _check_request(packet: bytes) -> bytes:
    if packet[0] != _AT_QOS_1 or packet[1] >= _LONG:
        raise RuntimeError(f"a gateway received {packet!r}")
    return packet


class AckedPusher(Pusher):
    """Gateway that keeps its in-flight window full. No two samples of a series have the same time."""

    def __init__(self, connection: socket.socket, inbox: Inbox, number: int, devices: int) -> None:
        super().__init__(connection, number, devices)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._inbox = inbox
        self._devices = devices
        self._pubacks = 0
        self._time = 0

    def on_readable(self, budget: PushBudget, ack_times: AckTimes) -> bool:
        """Receive data, and write a new chunk for each acknowledged one. Return whether more is expected."""
        self._pubacks += self._inbox.read()
        now = time.monotonic()
        while self._pubacks >= CHUNK:
            self._pubacks -= CHUNK
            self._finish_chunk(now, budget, ack_times)
        return bool(self._unacknowledged)

    def _encode_chunk(self, chunk: list[Report], turn: int) -> bytes:
        """Encode a chunk in which each round over the devices is at least a millisecond later."""
        parts = []
        for start in range(0, len(chunk), self._devices):
            part = chunk[start : start + self._devices]
            self._time = max(self._time + 1, time.time_ns() // 1_000_000)
            now, ids = format_millis(self._time).encode(), islice(self._ids, len(part))
            parts.append(encode_reports(part, ids, turn=turn, time=now))
        return b"".join(parts)


class AckedPacer(Pacer):
    """Gateway that sends single reports."""

    def __init__(self, connection: socket.socket, inbox: Inbox, number: int, devices: int) -> None:
        super().__init__(connection, number, devices)
        self._inbox = inbox

    def _receive_pubacks(self) -> int:
        return self._inbox.read()


def push(port: int, gateways: int, devices: int, count: int, seconds: int) -> LoadResult:
    """Send as fast as possible until a number of reports or seconds is reached."""
    sockets, inboxes = _connect_gateways(port, gateways)
    both = zip(sockets, inboxes, strict=True)
    pushers = [AckedPusher(*each, number, devices) for number, each in enumerate(both)]
    return _wait_for_acks(push_over(sockets, pushers, count, seconds), sockets, inboxes, devices)


def pace(port: int, gateways: int, devices: int, rate: int, seconds: int) -> LoadResult:
    """Send single reports at a fixed rate, the gateways in turns."""
    sockets, inboxes = _connect_gateways(port, gateways)
    both = zip(sockets, inboxes, strict=True)
    pacers = [AckedPacer(*each, number, devices) for number, each in enumerate(both)]
    return _wait_for_acks(pace_over(sockets, pacers, rate, seconds), sockets, inboxes, devices)


def _wait_for_acks(
    sent: LoadResult, sockets: list[socket.socket], inboxes: Sequence[Inbox], devices: int
) -> LoadResult:
    """Wait for outstanding acks, and check that each gateway has received all of its own."""
    due = [count_acks(devices, sent=count) for count in sent.by_gateway]
    inbox_of, poll = (
        dict(zip((each_socket.fileno() for each_socket in sockets), inboxes, strict=True)),
        build_poll(sockets),
    )
    while any(inbox.acks < expected for inbox, expected in zip(inboxes, due, strict=True)):
        if not (ready := poll.poll(_ACK_TIMEOUT)):
            break
        for number, _ in ready:
            inbox_of[number].read()
    for number, (inbox, expected) in enumerate(zip(inboxes, due, strict=True)):
        if inbox.acks != expected:
            raise RuntimeError(f"{gateway_mac(number)} received {inbox.acks} acks for {expected} samples")
    sent.acks, sent.backfills = sum(due), sum(inbox.backfills for inbox in inboxes)
    return sent


# --- Connecting ---


def _connect_gateways(port: int, gateways: int) -> tuple[list[socket.socket], list[Inbox]]:
    """Connect all gateways, and wait until the service knows their versions."""
    sockets: list[socket.socket] = []
    for begin in range(0, gateways, _BATCH):
        names = [gateway_mac(number) for number in range(begin, min(begin + _BATCH, gateways))]
        opened = connect_all(port, names)
        subscriptions = (
            encode_packet(Subscribe(1, ((f"mt/gateway/{name}/request/#", 1),))) for name in names
        )
        exchange_all(opened, subscriptions, answer=encode_packet(Suback(1, (1,))))
        sockets += opened
    inboxes = [Inbox(each_socket) for each_socket in sockets]
    _answer_version_requests(sockets, inboxes)
    return sockets, inboxes


def _answer_version_requests(sockets: list[socket.socket], inboxes: Sequence[Inbox]) -> None:
    """Respond to the version requests of all gateways, until the broker has acknowledged all responses."""
    poll, until = build_poll(sockets), time.monotonic() + _VERSION_REQUEST_TIMEOUT
    remaining = {each_socket.fileno(): number for number, each_socket in enumerate(sockets)}
    while remaining:
        if time.monotonic() > until:
            raise TimeoutError(f"{len(remaining)} gateways got no request for their version")
        for descriptor, _ in poll.poll(TIMEOUT):
            number = remaining[descriptor]
            if inboxes[number].read():
                poll.unregister(descriptor)
                del remaining[descriptor]
            for request in _drain_requests(inboxes[number]):
                sockets[number].sendall(_encode_version_response(Mac(gateway_mac(number)), request))


def _drain_requests(inbox: Inbox) -> list[bytes]:
    drained, inbox.requests = inbox.requests, []
    return drained


def _encode_version_response(mac: Mac, request: bytes) -> bytes:
    """Encode the response to a version request, the only request before the first report."""
    payload = request[4 + request[3] + 2 :]
    request_id = requests.decode_request_id(payload)
    if request_id is None:
        raise RuntimeError(f"{request!r} was received instead of a version request")
    response = ApiVersionResponse(
        time=from_millis(time.time_ns() // 1_000_000), status=0, id=request_id, version=VERSION
    )
    topic = TopicCodec("").format_topic(ResponseTopic(mac, mac, Operation.APIVERSION))
    return encode_packet(
        Publish(
            topic, responses.encode_response(Operation.APIVERSION, response), 1, packet_id=_RESPONSE_PACKET_ID
        )
    )


if __name__ == "__main__":
    run_role({"push": push, "pace": pace})
