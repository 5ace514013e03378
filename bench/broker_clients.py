"""The clients of `bench.broker`: who they are, how they get in, and what they publish, as ready-made bytes.

A broker is measured by them, so they must cost less than it does. All reports of a gateway are packets of
the same length: a piece of many is numbered, counted and acknowledged by slices, never packet by packet.
"""

from __future__ import annotations

import socket
from itertools import cycle
from typing import TYPE_CHECKING, Final

from bench.link_programs import DEVICES, PAYLOAD
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connack, Connect, Puback, Publish

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TIMEOUT: Final = 60.0
"""Seconds of silence after which a client gives up."""

CHUNK, WINDOW = 100, 500
"""A publisher writes so many reports at once, and has so many at most without an acknowledgement."""

SUBSCRIBER_CHUNK = 20
"""A subscriber waits for so many reports. A broker with a smaller window would wait for it in turn."""

CONNACK_ACCEPTED: Final = encode_packet(Connack())
_PUBACK: Final = encode_packet(Puback(1))
PUBACK_LENGTH: Final = len(_PUBACK)

_MAX_CONNECTING = 50
"""Connections that are opened together: mosquitto has room for 100 that wait to be accepted."""

MAX_USERS_CONNECTING = 5
"""The same for people: our service checks ten passwords at most at a time that come from one address."""

_LARGEST_NUMBERED = 65_500
"""The last packet id that fills a piece."""

_NUMBERS: Final = tuple(
    (bytes(n >> 8 for n in piece), bytes(n & 0xFF for n in piece))
    for piece in (range(first, first + CHUNK) for first in range(1, _LARGEST_NUMBERED, CHUNK))
)
"""The packet ids of each piece: their high bytes, and their low bytes."""


def gateway_mac(number: int) -> str:
    """The MAC of a gateway, which is its user name and client id too."""
    return f"02005e{number:06x}"


def viewer_name(number: int) -> str:
    """The user name and client id of somebody who subscribes to what gateways report."""
    return f"viewer-{number}"


def encode_connect(name: str) -> bytes:
    """The CONNECT of an account."""
    return encode_packet(Connect(name, keep_alive=600, user=name, password=f"secret-{name}".encode()))


def connect_all(port: int, names: Iterable[str], *, at_once: int = _MAX_CONNECTING) -> list[socket.socket]:
    """A connection for each account, with its CONNACK received."""
    waiting, connections = list(names), []
    for begin in range(0, len(waiting), at_once):
        some = waiting[begin : begin + at_once]
        fresh = [_dial(port) for _ in some]
        exchange_all(fresh, map(encode_connect, some), answer=CONNACK_ACCEPTED)
        connections += fresh
    return connections


def exchange_all(connections: Sequence[socket.socket], questions: Iterable[bytes], *, answer: bytes) -> None:
    """Send each its question, then see that each gets this answer."""
    for connection, question in zip(connections, questions, strict=True):
        connection.sendall(question)
    for connection in connections:
        if (got := connection.recv(len(answer))) != answer:
            raise RuntimeError(f"{got.hex()} came instead of {answer.hex()}")


def _dial(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def encode_device_reports(number: int, *, qos: int = 1) -> list[bytes]:
    """A report of each device of a gateway, with packet ids from 1."""
    name = gateway_mac(number)
    topics = (
        f"mt/gateway/{name}/device/d0cf{number:04x}{device:04x}/measurement-decoded/temperature"
        for device in range(DEVICES)
    )
    return [
        encode_packet(Publish(topic, PAYLOAD, qos, packet_id=qos and device + 1))
        for device, topic in enumerate(topics)
    ]


class PacketLayout:
    """Where things lie in a row of reports: the packet ids are in the middle of packets of one length."""

    def __init__(self, report: bytes) -> None:
        length, at = len(report), len(report) - len(PAYLOAD) - 2
        self.length = length
        self.first, self.high, self.low = (slice(n, None, length) for n in (0, at, at + 1))


class Publisher:
    """A connection that publishes a number of pieces, and keeps its window full."""

    def __init__(self, connection: socket.socket, number: int, pieces: int) -> None:
        some = encode_device_reports(number)
        self._piece = bytearray(b"".join(some * (CHUNK // len(some))))
        self._stride = PacketLayout(some[0])
        self._numbers = cycle(_NUMBERS)
        self._unwritten = self._unacknowledged = pieces
        self._connection = connection
        connection.settimeout(0)
        # Readable when a whole piece is acknowledged. The buffer holds a window, so that no write is cut.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, CHUNK * PUBACK_LENGTH)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * WINDOW * self._stride.length)

    def start(self) -> None:
        """Fill the window."""
        for _ in range(WINDOW // CHUNK):
            self._write()

    def on_readable(self) -> bool:
        """Take the acknowledgements of a piece and write another; whether more are to come."""
        got = self._connection.recv(CHUNK * PUBACK_LENGTH)
        if len(got) != CHUNK * PUBACK_LENGTH:
            raise RuntimeError("the broker has closed the connection of a publisher")
        self._unacknowledged -= 1
        self._write()
        return self._unacknowledged > 0

    def _write(self) -> None:
        if self._unwritten:
            self._unwritten -= 1
            self._piece[self._stride.high], self._piece[self._stride.low] = next(self._numbers)
            self._connection.sendall(self._piece)


class Subscriber:
    """A connection that counts the reports it gets, and at QoS 1 acknowledges them."""

    def __init__(self, connection: socket.socket, *, qos: int, count: int) -> None:
        report = encode_device_reports(0, qos=qos)[0]
        self._left = count
        self._stride = PacketLayout(report)
        self._firsts = report[:1] * SUBSCRIBER_CHUNK
        self._acknowledges = qos > 0
        self._connection = connection
        connection.settimeout(0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, SUBSCRIBER_CHUNK * self._stride.length)

    def on_readable(self) -> bool:
        """Take some reports; whether more are to come."""
        got = self._connection.recv(SUBSCRIBER_CHUNK * self._stride.length)
        if got[self._stride.first] != self._firsts:
            raise RuntimeError(f"a subscriber got something else than {SUBSCRIBER_CHUNK} reports: {got!r}")
        if self._acknowledges:
            pubacks = bytearray(_PUBACK * SUBSCRIBER_CHUNK)
            pubacks[2::4], pubacks[3::4] = got[self._stride.high], got[self._stride.low]
            self._connection.sendall(pubacks)
        self._left -= SUBSCRIBER_CHUNK
        return self._left > 0
