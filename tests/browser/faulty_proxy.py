"""The way between a browser and the service, on the loopback interface: it can fall silent without a word."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.service_process import ServiceProcess

_PIECE = 0x1_0000


class FaultyProxy:
    """Passes bytes on in both directions.

    Connections that are there when it is muted stay, and carry nothing any more; new ones
    are as good as ever, unless it is deaf.
    """

    def __init__(self, service: ServiceProcess) -> None:
        place = urlsplit(service.url)
        self._service = (str(place.hostname), int(place.port or 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        """Where the service seems to be."""
        self.ignores_new = False
        """Whether nothing that new connections say is heard, though nobody refuses them."""
        self.truncated_request: bytes | None = None
        """The beginning of a request whose answer ends after its head, with the connection."""
        self._frozen = Event()
        self._ends: list[socket.socket] = []

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._ends):
            _end(each)

    def freeze_connections(self) -> None:
        """Let all connections die that are there, and nobody notice."""
        self._frozen.set()
        self._frozen = Event()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # the test is over
            if self.ignores_new:
                self._ends.append(near)
                continue
            far = socket.create_connection(self._service)
            self._ends += near, far
            muted = self._frozen
            is_cut = Event()
            Thread(target=self._forward_requests, args=(near, far, muted, is_cut), daemon=True).start()
            Thread(target=_forward_responses, args=(far, near, muted, is_cut), daemon=True).start()

    def _forward_requests(self, near: socket.socket, far: socket.socket, muted: Event, is_cut: Event) -> None:
        for piece in _pieces(near, muted):
            if self.truncated_request is not None and piece.startswith(self.truncated_request):
                is_cut.set()
            _send(far, piece)
        if not muted.is_set():
            _end(far)


def _forward_responses(far: socket.socket, near: socket.socket, muted: Event, is_cut: Event) -> None:
    for piece in _pieces(far, muted):
        head, end, _ = piece.partition(b"\r\n\r\n")
        if is_cut.is_set() and end:
            _send(near, head + end)
            break
        _send(near, piece)
    if not muted.is_set():
        _end(near)


def _pieces(source: socket.socket, muted: Event) -> Iterator[bytes]:
    with suppress(OSError):  # the other end may go first
        while piece := source.recv(_PIECE):
            if not muted.is_set():
                yield piece


def _send(sink: socket.socket, piece: bytes) -> None:
    with suppress(OSError):  # the other end is gone
        sink.sendall(piece)


def _end(end: socket.socket) -> None:
    with suppress(OSError):  # it may be over already
        end.shutdown(socket.SHUT_RDWR)
    end.close()
