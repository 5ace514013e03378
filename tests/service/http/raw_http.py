"""HTTP by hand, byte by byte: for what no decent client would send."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from http.client import parse_headers
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

    from tests.service.http.running_service import RunningService

_PATIENCE = 60.0
"""Seconds until a server must have answered; reached only when it is broken."""


class RawResponse(NamedTuple):
    """What a server answered."""

    status: int
    headers: Message
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class RawConnection:
    """A connection to a service."""

    def __init__(self, connection: socket.socket, stream: BinaryIO) -> None:
        self._connection = connection
        self._stream = stream

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def read(self) -> RawResponse | None:
        """The next answer; None: the server has hung up."""
        try:
            line = self._stream.readline()
            if not line:
                return None
            headers = parse_headers(self._stream)
            body = self._stream.read(int(headers.get("content-length", 0)))
        except ConnectionResetError:  # it hung up on something that we had sent
            return None
        return RawResponse(int(line.split()[1]), headers, body)

    def read_rest(self) -> bytes:
        """Read all that comes until the server hangs up."""
        return self._stream.read()

    def is_cut_off(self) -> bool:
        """Wait until the server ends a connection that we do not read from: it then takes no more from us."""

        def takes_no_more() -> bool:
            try:
                self.send(b"\r\n")
            except OSError:
                return True
            return False

        return eventually(takes_no_more, "the end of the connection")

    def hang_up(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def connect_raw(service: RunningService) -> Iterator[RawConnection]:
    """Connect to a service."""
    place = urlsplit(service.url)
    assert place.hostname is not None
    with (
        socket.create_connection((place.hostname, place.port or 80), _PATIENCE) as connection,
        connection.makefile("rb") as stream,
    ):
        yield RawConnection(connection, stream)


def exchange_raw(service: RunningService, data: bytes) -> RawResponse | None:
    """The first answer to some bytes."""
    with connect_raw(service) as connection:
        connection.send(data)
        return connection.read()


def build_head(line: str, *headers: str) -> bytes:
    """The head of a request."""
    return "\r\n".join([f"{line} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode("latin-1")


def build_bearer_header(service: RunningService) -> str:
    """The header with which an admin comes."""
    return f"Authorization: {service.admin.headers['Authorization']}"
