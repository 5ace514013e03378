"""Clients of `bench.broker`: their accounts, connections, and the reports they publish as prepared bytes.

They measure a broker, so they must cost less than it does. All reports of a gateway are packets of the same
length: a chunk of many is numbered, counted and acknowledged by slices, never packet by packet.
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
"""Seconds without data after which a client gives up."""

CHUNK, WINDOW = 100, 500
"""Reports that a publisher writes in one call, and its maximum of unacknowledged reports."""

SUBSCRIBER_CHUNK = 20
"""Reports that a subscriber waits for. A broker with a smaller in-flight window would deadlock with it."""

CONNACK_ACCEPTED: Final = encode_packet(Connack())
_PUBACK: Final = encode_packet(Puback(1))
PUBACK_LENGTH: Final = len(_PUBACK)

_MAX_CONNECTING = 50
"""Connections opened concurrently: the backlog of mosquitto is 100."""

MAX_USERS_CONNECTING = 5
"""Connections of users opened concurrently: the service checks at most ten passwords per address at once."""

_LARGEST_NUMBERED = 65_500
"""Last packet id that fills a chunk."""

_NUMBERS: Final = tuple(
    (bytes(n >> 8 for n in chunk), bytes(n & 0xFF for n in chunk))
    for chunk in (range(first, first + CHUNK) for first in range(1, _LARGEST_NUMBERED, CHUNK))
)
"""Packet ids of each chunk: their high bytes, and their low bytes."""


def gateway_mac(number: int) -> str:
    """Return the MAC of a gateway, which is also its user name and client id."""
    return f"02005e{number:06x}"


def viewer_name(number: int) -> str:
    """Return the user name and client id of a user that subscribes to reports."""
    return f"viewer-{number}"


def encode_connect(name: str) -> bytes:
    """Encode the CONNECT packet of an account."""
    return encode_packet(Connect(name, keep_alive=600, user=name, password=f"secret-{name}".encode()))


def connect_all(port: int, names: Iterable[str], *, at_once: int = _MAX_CONNECTING) -> list[socket.socket]:
    """Open a connection for each account, and wait for the CONNACKs."""
    waiting, connections = list(names), []
    for begin in range(0, len(waiting), at_once):
        batch = waiting[begin : begin + at_once]
        opened = [_open_connection(port) for _ in batch]
        exchange_all(opened, map(encode_connect, batch), answer=CONNACK_ACCEPTED)
        connections += opened
    return connections


def exchange_all(connections: Sequence[socket.socket], questions: Iterable[bytes], *, answer: bytes) -> None:
    """Send one packet on each connection, then check that each receives the expected packet."""
    for connection, question in zip(connections, questions, strict=True):
        connection.sendall(question)
    for connection in connections:
        if (received := connection.recv(len(answer))) != answer:
            raise RuntimeError(f"received {received.hex()} instead of {answer.hex()}")


def _open_connection(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def encode_device_reports(number: int, *, qos: int = 1) -> list[bytes]:
    """Encode one report of each device of a gateway, with packet ids from 1."""
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
    """Slices of the packet ids in a sequence of reports, which are packets of one length."""

    def __init__(self, report: bytes) -> None:
        length, offset = len(report), len(report) - len(PAYLOAD) - 2
        self.length = length
        self.first, self.high, self.low = (slice(n, None, length) for n in (0, offset, offset + 1))


class Publisher:
    """Connection that publishes a number of chunks, and keeps its in-flight window full."""

    def __init__(self, connection: socket.socket, number: int, chunks: int) -> None:
        reports = encode_device_reports(number)
        self._chunk = bytearray(b"".join(reports * (CHUNK // len(reports))))
        self._layout = PacketLayout(reports[0])
        self._numbers = cycle(_NUMBERS)
        self._unwritten = self._unacknowledged = chunks
        self._connection = connection
        connection.settimeout(0)
        # Readable when a whole chunk is acknowledged. The buffer holds a window, so that no write is partial.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, CHUNK * PUBACK_LENGTH)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * WINDOW * self._layout.length)

    def start(self) -> None:
        """Fill the in-flight window."""
        for _ in range(WINDOW // CHUNK):
            self._write()

    def on_readable(self) -> bool:
        """Receive the PUBACKs of a chunk and write another. Return whether more PUBACKs are expected."""
        received = self._connection.recv(CHUNK * PUBACK_LENGTH)
        if len(received) != CHUNK * PUBACK_LENGTH:
            raise RuntimeError("the broker has closed the connection of a publisher")
        self._unacknowledged -= 1
        self._write()
        return self._unacknowledged > 0

    def _write(self) -> None:
        if self._unwritten:
            self._unwritten -= 1
            self._chunk[self._layout.high], self._chunk[self._layout.low] = next(self._numbers)
            self._connection.sendall(self._chunk)


class Subscriber:
    """Connection that counts received reports, and acknowledges them at QoS 1."""

    def __init__(self, connection: socket.socket, *, qos: int, count: int) -> None:
        report = encode_device_reports(0, qos=qos)[0]
        self._remaining = count
        self._layout = PacketLayout(report)
        self._firsts = report[:1] * SUBSCRIBER_CHUNK
        self._acknowledges = qos > 0
        self._connection = connection
        connection.settimeout(0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, SUBSCRIBER_CHUNK * self._layout.length)

    def on_readable(self) -> bool:
        """Receive a chunk of reports. Return whether more are expected."""
        received = self._connection.recv(SUBSCRIBER_CHUNK * self._layout.length)
        if received[self._layout.first] != self._firsts:
            raise RuntimeError(
                f"a subscriber received something other than {SUBSCRIBER_CHUNK} reports: {received!r}"
            )
        if self._acknowledges:
            pubacks = bytearray(_PUBACK * SUBSCRIBER_CHUNK)
            pubacks[2::4], pubacks[3::4] = received[self._layout.high], received[self._layout.low]
            self._connection.sendall(pubacks)
        self._remaining -= SUBSCRIBER_CHUNK
        return self._remaining > 0
