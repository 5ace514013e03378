"""The clients of `bench.broker`: who they are, how they get in, and what they publish, as ready-made bytes.

A broker is measured by them, so they must cost less than it does. All reports of a gateway are packets of
the same length: a piece of many is numbered, counted and acknowledged by slices, never packet by packet.
"""

from __future__ import annotations

import socket
from itertools import cycle
from typing import TYPE_CHECKING, Final

from bench.link_ends import DEVICES, PAYLOAD
from meshfleet.wire.mqtt.encoder import encode
from meshfleet.wire.mqtt.packets import Connack, Connect, Puback, Publish

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PATIENCE: Final = 60.0
"""Seconds of silence after which a client gives up."""

PIECE, WINDOW = 100, 500
"""A publisher writes so many reports at once, and has so many at most without an acknowledgement."""

SIP = 20
"""A subscriber waits for so many reports. A broker with a smaller window would wait for it in turn."""

ACCEPTED: Final = encode(Connack())
_PUBACK: Final = encode(Puback(1))
PUBACK_LENGTH: Final = len(_PUBACK)

_AT_ONCE = 50
"""Connections that are opened together: mosquitto has room for 100 that wait to be accepted."""

PEOPLE_AT_ONCE = 5
"""The same for people: our service checks ten passwords at most at a time that come from one address."""

_LARGEST_NUMBERED = 65_500
"""The last packet id that fills a piece."""

_NUMBERS: Final = tuple(
    (bytes(n >> 8 for n in piece), bytes(n & 0xFF for n in piece))
    for piece in (range(first, first + PIECE) for first in range(1, _LARGEST_NUMBERED, PIECE))
)
"""The packet ids of each piece: their high bytes, and their low bytes."""


def gateway(number: int) -> str:
    """The MAC of a gateway, which is its user name and client id too."""
    return f"02005e{number:06x}"


def viewer(number: int) -> str:
    """The user name and client id of somebody who subscribes to what gateways report."""
    return f"viewer-{number}"


def introduction(name: str) -> bytes:
    """The CONNECT of an account."""
    return encode(Connect(name, keep_alive=600, user=name, password=f"secret-{name}".encode()))


def connect_all(port: int, names: Iterable[str], *, at_once: int = _AT_ONCE) -> list[socket.socket]:
    """A connection for each account, with its CONNACK received."""
    waiting, connections = list(names), []
    for begin in range(0, len(waiting), at_once):
        some = waiting[begin : begin + at_once]
        fresh = [_dial(port) for _ in some]
        ask_all(fresh, map(introduction, some), answer=ACCEPTED)
        connections += fresh
    return connections


def ask_all(connections: Sequence[socket.socket], questions: Iterable[bytes], *, answer: bytes) -> None:
    """Send each its question, then see that each gets this answer."""
    for connection, question in zip(connections, questions, strict=True):
        connection.sendall(question)
    for connection in connections:
        if (got := connection.recv(len(answer))) != answer:
            raise RuntimeError(f"{got.hex()} came instead of {answer.hex()}")


def _dial(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def reports(number: int, *, qos: int = 1) -> list[bytes]:
    """A report of each device of a gateway, with packet ids from 1."""
    name = gateway(number)
    topics = (
        f"mt/gateway/{name}/device/d0cf{number:04x}{device:04x}/measurement-decoded/temperature"
        for device in range(DEVICES)
    )
    return [
        encode(Publish(topic, PAYLOAD, qos, packet_id=qos and device + 1))
        for device, topic in enumerate(topics)
    ]


class Stride:
    """Where things lie in a row of reports: the packet ids are in the middle of packets of one length."""

    def __init__(self, report: bytes) -> None:
        length, at = len(report), len(report) - len(PAYLOAD) - 2
        self.length = length
        self.first, self.high, self.low = (slice(n, None, length) for n in (0, at, at + 1))


class Publisher:
    """A connection that publishes a number of pieces, and keeps its window full."""

    def __init__(self, connection: socket.socket, number: int, pieces: int) -> None:
        some = reports(number)
        self._piece = bytearray(b"".join(some * (PIECE // len(some))))
        self._stride = Stride(some[0])
        self._numbers = cycle(_NUMBERS)
        self._unwritten = self._unacknowledged = pieces
        self._connection = connection
        connection.settimeout(0)
        # Readable when a whole piece is acknowledged. The buffer holds a window, so that no write is cut.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, PIECE * PUBACK_LENGTH)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * WINDOW * self._stride.length)

    def begin(self) -> None:
        """Fill the window."""
        for _ in range(WINDOW // PIECE):
            self._write()

    def go_on(self) -> bool:
        """Take the acknowledgements of a piece and write another; whether more are to come."""
        got = self._connection.recv(PIECE * PUBACK_LENGTH)
        if len(got) != PIECE * PUBACK_LENGTH:
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
        report = reports(0, qos=qos)[0]
        self._left = count
        self._stride = Stride(report)
        self._firsts = report[:1] * SIP
        self._acknowledges = qos > 0
        self._connection = connection
        connection.settimeout(0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, SIP * self._stride.length)

    def go_on(self) -> bool:
        """Take some reports; whether more are to come."""
        got = self._connection.recv(SIP * self._stride.length)
        if got[self._stride.first] != self._firsts:
            raise RuntimeError(f"a subscriber got something else than {SIP} reports: {got!r}")
        if self._acknowledges:
            pubacks = bytearray(_PUBACK * SIP)
            pubacks[2::4], pubacks[3::4] = got[self._stride.high], got[self._stride.low]
            self._connection.sendall(pubacks)
        self._left -= SIP
        return self._left > 0
