"""HTTP over a raw socket, for requests that no HTTP library sends."""

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

_TIMEOUT_SECONDS = 60.0
"""Seconds until a server must have answered; reached only if it is broken."""


class RawResponse(NamedTuple):
    """Response of a server."""

    status: int
    headers: Message
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class RawConnection:
    """Raw connection to a service."""

    def __init__(self, connection: socket.socket, stream: BinaryIO) -> None:
        self._connection = connection
        self._stream = stream

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def read(self) -> RawResponse | None:
        """Return the next response; None: the server has closed the connection."""
        try:
            line = self._stream.readline()
            if not line:
                return None
            headers = parse_headers(self._stream)
            body = self._stream.read(int(headers.get("content-length", 0)))
        except ConnectionResetError:  # the server closed while data was in flight
            return None
        return RawResponse(int(line.split()[1]), headers, body)

    def read_rest(self) -> bytes:
        """Read until the server closes the connection."""
        return self._stream.read()

    def is_cut_off(self) -> bool:
        """Wait until the server aborts the connection, without reading from it: then sending fails."""

        def has_failed() -> bool:
            try:
                self.send(b"\r\n")
            except OSError:
                return True
            return False

        return eventually(has_failed, "the end of the connection")

    def hang_up(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def connect_raw(service: RunningService) -> Iterator[RawConnection]:
    """Connect to a service."""
    parsed_url = urlsplit(service.url)
    assert parsed_url.hostname is not None
    with (
        socket.create_connection(
            (parsed_url.hostname, parsed_url.port or 80), _TIMEOUT_SECONDS
        ) as connection,
        connection.makefile("rb") as stream,
    ):
        yield RawConnection(connection, stream)


def exchange_raw(service: RunningService, data: bytes) -> RawResponse | None:
    """Send bytes on a new connection and return the first response."""
    with connect_raw(service) as connection:
        connection.send(data)
        return connection.read()


def build_head(line: str, *headers: str) -> bytes:
    """Return a request head."""
    return "\r\n".join([f"{line} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode("latin-1")


def build_bearer_header(service: RunningService) -> str:
    """Return the Authorization header of an admin."""
    return f"Authorization: {service.admin.headers['Authorization']}"
