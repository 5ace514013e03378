"""Subscribers of `bench.live`, all in one process: of the service's live events, or of mosquitto.

python -m bench.live_listeners service URL TOKEN
python -m bench.live_listeners mosquitto PORT -

It prints "ready" when all have subscribed, reads until a line arrives on standard input, and prints one JSON
object. Events are counted by a marker that each contains, and only the first and last event of each received
chunk are timed: parsing them all would take more CPU time than the service.
"""

from __future__ import annotations

import json
import re
import select
import socket
import statistics
import sys
import time
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from bench.broker_clients import CONNACK_ACCEPTED, TIMEOUT, gateway_mac
from bench.ingest_reports import device_mac
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connect, Subscribe

GATEWAYS, DEVICES = 20, 50
"""Gateways of the load, and devices per gateway."""

EVERYTHING, ONE_GATEWAY, SOME_DEVICES = 30, 10, 10
"""Numbers of subscribers to all reports, to one gateway, and to some devices."""

CHOSEN: Final = 20
"""Devices per subscriber to some devices."""

_TIME: Final = rb'"time":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z"'
_EVENT: Final = re.compile(rb'"data":\{"device":"bmac-[^}]*?' + _TIME)
_REPORT: Final = re.compile(rb"\{" + _TIME)


class ListenerStats(msgspec.Struct):
    """Statistics of all subscribers."""

    count: int
    resyncs: int
    timed: int
    ms_p50: float
    ms_p99: float
    ms_max: float


class ListenerFilter(NamedTuple):
    """Filter of one subscriber; empty: all reports."""

    gateways: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def filters(self) -> dict[str, list[str]]:
        """Filters of the service's live events."""
        chosen = {"Types": ["report"]}
        if self.gateways:
            chosen["Gateway"] = [gateway_mac(each) for each in self.gateways]
        if self.devices:
            chosen["Ids"] = [f"bmac-{each}" for each in self.devices]
        return chosen

    @property
    def topics(self) -> list[str]:
        """MQTT topic filters."""
        if self.devices:
            return [f"mt/gateway/+/device/{each}/#" for each in self.devices]
        return [f"mt/gateway/{gateway_mac(each)}/device/#" for each in self.gateways] or [
            "mt/gateway/+/device/#"
        ]


def build_filters() -> list[ListenerFilter]:
    """Return the filter of each subscriber; pairs have the same filter, for both kinds of connection."""
    filters = [ListenerFilter()] * EVERYTHING
    filters += [ListenerFilter(gateways=(number // 2,)) for number in range(ONE_GATEWAY)]
    filters += [
        ListenerFilter(devices=tuple(device_mac(number // 2, each) for each in range(CHOSEN)))
        for number in range(SOME_DEVICES)
    ]
    return filters


def connect_to_service(url: str, token: str) -> list[socket.socket]:
    """Connect half of the subscribers by server-sent events, half by WebSocket."""
    transports = (_stream, _websocket)
    return [transports[n % 2](url, token, each.filters) for n, each in enumerate(build_filters())]


def connect_to_mosquitto(port: str, _: str) -> list[socket.socket]:
    """Connect all subscribers by MQTT, at QoS 0."""
    sockets = []
    for number, listener_filter in enumerate(build_filters()):
        connection = socket.create_connection(("127.0.0.1", int(port)), TIMEOUT)
        connection.sendall(encode_packet(Connect(f"listener-{number}", keep_alive=600)))
        _expect(connection, CONNACK_ACCEPTED)
        connection.sendall(encode_packet(Subscribe(1, tuple((topic, 0) for topic in listener_filter.topics))))
        _expect(connection, b"\x90")
        sockets.append(connection)
    return sockets


def _stream(url: str, token: str, filters: dict[str, list[str]]) -> socket.socket:
    query = "&".join(f"{name}={','.join(values)}" for name, values in filters.items())
    connection = _send_get(url, f"/api/v1/stream?{query}", f"Authorization: Bearer {token}\r\n")
    _expect(connection, b"HTTP/1.1 200")
    return connection


def _websocket(url: str, token: str, filters: dict[str, list[str]]) -> socket.socket:
    fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    connection = _send_get(url, "/api/v1/live", f"{fields}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")
    _expect(connection, b"HTTP/1.1 101")
    connection.sendall(_frame({"token": token}) + _frame({"subscribe": filters, "lastEventId": ""}))
    _expect(connection, b'"resync"')
    return connection


def _send_get(url: str, path: str, fields: str) -> socket.socket:
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), TIMEOUT)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n{fields}\r\n".encode())
    return connection


def _frame(message: object) -> bytes:
    text = json.dumps(message).encode()
    return b"\x81\xfe%b\0\0\0\0%b" % (len(text).to_bytes(2, "big"), text)


def _expect(connection: socket.socket, expected: bytes) -> None:
    received = b""
    while expected not in received:
        part = connection.recv(4096)
        if not part:
            raise RuntimeError(f"received {received!r} instead of {expected!r}")
        received += part


def listen(sockets: list[socket.socket], pattern: re.Pattern[bytes], marker: bytes) -> ListenerStats:
    """Read until a line arrives on standard input; `marker` occurs once in every event."""
    poll = select.poll()
    by_descriptor = {connection.fileno(): connection for connection in sockets}
    for number in by_descriptor:
        poll.register(number, select.POLLIN)
    poll.register(sys.stdin.fileno(), select.POLLIN)
    count = resyncs = 0
    latencies: list[float] = []
    while True:
        for number, _ in poll.poll():
            if number == sys.stdin.fileno():
                return _build_stats(count, resyncs, latencies)
            data = by_descriptor[number].recv(1 << 18)
            now = time.time()
            if not data:
                raise RuntimeError("the connection of a subscriber was closed")
            found = data.count(marker)
            count += found
            resyncs += data.count(b'"type":"resync"')
            first = pattern.search(data)
            last = pattern.search(data, max(0, data.rfind(marker)))
            latencies += [
                now - datetime.fromisoformat(f"{each[1].decode()}Z").timestamp()
                for each in (first, last)
                if each
            ]


def _build_stats(count: int, resyncs: int, latencies: list[float]) -> ListenerStats:
    cuts = statistics.quantiles(latencies, n=100)
    return ListenerStats(
        count=count,
        resyncs=resyncs,
        timed=len(latencies),
        ms_p50=cuts[49] * 1e3,
        ms_p99=cuts[98] * 1e3,
        ms_max=max(latencies) * 1e3,
    )


def main() -> None:
    """Subscribe at the destination named on the command line."""
    destination, address, token = sys.argv[1:]
    if destination == "service":
        sockets, pattern, marker = connect_to_service(address, token), _EVENT, b'"data":{'
    else:
        sockets, pattern, marker = connect_to_mosquitto(address, token), _REPORT, b'{"time":"'
    print("ready", flush=True)
    print(msgspec.json.encode(listen(sockets, pattern, marker)).decode(), flush=True)


if __name__ == "__main__":
    main()
