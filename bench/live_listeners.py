"""The listeners of `bench.live`, all of them one process: at both doors of our service, or at mosquitto.

python -m bench.live_listeners service URL TOKEN
python -m bench.live_listeners mosquitto PORT -

It prints "ready" when all listen, reads until a line comes in, and prints one JSON object. Events are counted
by what stands in each of them, and of every piece that comes the first and the last one are timed: a listener
that parsed them all would take more CPU time than the service.
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
"""Of the load, and of each gateway."""

EVERYTHING, ONE_GATEWAY, SOME_DEVICES = 30, 10, 10
"""How many listeners want what."""

CHOSEN: Final = 20
"""Devices that a listener for some of them wants."""

_TIME: Final = rb'"time":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z"'
_EVENT: Final = re.compile(rb'"data":\{"device":"bmac-[^}]*?' + _TIME)
_REPORT: Final = re.compile(rb"\{" + _TIME)


class ListenerStats(msgspec.Struct):
    """What all of them heard."""

    count: int
    resyncs: int
    timed: int
    ms_p50: float
    ms_p99: float
    ms_max: float


class ListenerFilter(NamedTuple):
    """What one of them wants; empty: all reports."""

    gateways: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def filters(self) -> dict[str, list[str]]:
        """As our service is asked."""
        chosen = {"Types": ["report"]}
        if self.gateways:
            chosen["Gateway"] = [gateway_mac(each) for each in self.gateways]
        if self.devices:
            chosen["Ids"] = [f"bmac-{each}" for each in self.devices]
        return chosen

    @property
    def topics(self) -> list[str]:
        """As a broker is asked."""
        if self.devices:
            return [f"mt/gateway/+/device/{each}/#" for each in self.devices]
        return [f"mt/gateway/{gateway_mac(each)}/device/#" for each in self.gateways] or [
            "mt/gateway/+/device/#"
        ]


def build_filters() -> list[ListenerFilter]:
    """What each listener wants; neighbours want the same, at different doors."""
    some = [ListenerFilter()] * EVERYTHING
    some += [ListenerFilter(gateways=(number // 2,)) for number in range(ONE_GATEWAY)]
    some += [
        ListenerFilter(devices=tuple(device_mac(number // 2, each) for each in range(CHOSEN)))
        for number in range(SOME_DEVICES)
    ]
    return some


def connect_to_service(url: str, token: str) -> list[socket.socket]:
    """Half of them by server-sent events, half by WebSocket."""
    doors = (_stream, _websocket)
    return [doors[place % 2](url, token, wish.filters) for place, wish in enumerate(build_filters())]


def connect_to_mosquitto(port: str, _: str) -> list[socket.socket]:
    """All of them by MQTT, at QoS 0."""
    ends = []
    for place, wish in enumerate(build_filters()):
        end = socket.create_connection(("127.0.0.1", int(port)), TIMEOUT)
        end.sendall(encode_packet(Connect(f"listener-{place}", keep_alive=600)))
        _expect(end, CONNACK_ACCEPTED)
        end.sendall(encode_packet(Subscribe(1, tuple((topic, 0) for topic in wish.topics))))
        _expect(end, b"\x90")
        ends.append(end)
    return ends


def _stream(url: str, token: str, filters: dict[str, list[str]]) -> socket.socket:
    query = "&".join(f"{name}={','.join(values)}" for name, values in filters.items())
    end = _ask(url, f"/api/v1/stream?{query}", f"Authorization: Bearer {token}\r\n")
    _expect(end, b"HTTP/1.1 200")
    return end


def _websocket(url: str, token: str, filters: dict[str, list[str]]) -> socket.socket:
    fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    end = _ask(url, "/api/v1/live", f"{fields}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")
    _expect(end, b"HTTP/1.1 101")
    end.sendall(_frame({"token": token}) + _frame({"subscribe": filters, "lastEventId": ""}))
    _expect(end, b'"resync"')
    return end


def _ask(url: str, path: str, fields: str) -> socket.socket:
    where = urlsplit(url)
    end = socket.create_connection((where.hostname, where.port), TIMEOUT)
    end.sendall(f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\n{fields}\r\n".encode())
    return end


def _frame(said: object) -> bytes:
    text = json.dumps(said).encode()
    return b"\x81\xfe%b\0\0\0\0%b" % (len(text).to_bytes(2, "big"), text)


def _expect(end: socket.socket, answer: bytes) -> None:
    got = b""
    while answer not in got:
        part = end.recv(4096)
        if not part:
            raise RuntimeError(f"{got!r} came instead of {answer!r}")
        got += part


def listen(ends: list[socket.socket], pattern: re.Pattern[bytes], marker: bytes) -> ListenerStats:
    """Read until somebody says that it is enough; `word` stands once in every event."""
    poll = select.poll()
    at = {end.fileno(): end for end in ends}
    for number in at:
        poll.register(number, select.POLLIN)
    poll.register(sys.stdin.fileno(), select.POLLIN)
    count = resyncs = 0
    lags: list[float] = []
    while True:
        for number, _ in poll.poll():
            if number == sys.stdin.fileno():
                return _heard(count, resyncs, lags)
            data = at[number].recv(1 << 18)
            now = time.time()
            if not data:
                raise RuntimeError("a listener was shown out")
            found = data.count(marker)
            count += found
            resyncs += data.count(b'"type":"resync"')
            first = pattern.search(data)
            last = pattern.search(data, max(0, data.rfind(marker)))
            lags += [
                now - datetime.fromisoformat(f"{each[1].decode()}Z").timestamp()
                for each in (first, last)
                if each
            ]


def _heard(count: int, resyncs: int, lags: list[float]) -> ListenerStats:
    cuts = statistics.quantiles(lags, n=100)
    return ListenerStats(
        count=count,
        resyncs=resyncs,
        timed=len(lags),
        ms_p50=cuts[49] * 1e3,
        ms_p99=cuts[98] * 1e3,
        ms_max=max(lags) * 1e3,
    )


def main() -> None:
    """Listen where the command line says."""
    door, where, token = sys.argv[1:]
    if door == "service":
        ends, pattern, word = connect_to_service(where, token), _EVENT, b'"data":{'
    else:
        ends, pattern, word = connect_to_mosquitto(where, token), _REPORT, b'{"time":"'
    print("ready", flush=True)
    print(msgspec.json.encode(listen(ends, pattern, word)).decode(), flush=True)


if __name__ == "__main__":
    main()
