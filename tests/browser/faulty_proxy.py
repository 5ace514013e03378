"""TCP proxy between a browser and the service, which can stop forwarding without closing connections."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.service_process import ServiceProcess

_CHUNK_SIZE = 0x1_0000


class FaultyProxy:
    """Proxy that forwards bytes in both directions.

    Frozen connections stay open and carry nothing any more. New connections work, unless `ignores_new`.
    """

    def __init__(self, service: ServiceProcess) -> None:
        address = urlsplit(service.url)
        self._service = (str(address.hostname), int(address.port or 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        """URL for the browser, in place of that of the service."""
        self.ignores_new = False
        """Whether new connections are accepted but not forwarded."""
        self.truncated_request: bytes | None = None
        """Beginning of a request whose response breaks off after its head; None for no such request."""
        self._frozen = Event()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._sockets):
            _close(each)

    def freeze_connections(self) -> None:
        """Stop forwarding on all existing connections without closing them."""
        self._frozen.set()
        self._frozen = Event()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # the listener was closed at the end of the test
            if self.ignores_new:
                self._sockets.append(client)
                continue
            server = socket.create_connection(self._service)
            self._sockets += client, server
            frozen = self._frozen
            is_cut = Event()
            Thread(target=self._forward_requests, args=(client, server, frozen, is_cut), daemon=True).start()
            Thread(target=_forward_responses, args=(server, client, frozen, is_cut), daemon=True).start()

    def _forward_requests(
        self, client: socket.socket, server: socket.socket, frozen: Event, is_cut: Event
    ) -> None:
        for chunk in _read_chunks(client, frozen):
            if self.truncated_request is not None and chunk.startswith(self.truncated_request):
                is_cut.set()
            _send(server, chunk)
        if not frozen.is_set():
            _close(server)


def _forward_responses(server: socket.socket, client: socket.socket, frozen: Event, is_cut: Event) -> None:
    for chunk in _read_chunks(server, frozen):
        head, end, _ = chunk.partition(b"\r\n\r\n")
        if is_cut.is_set() and end:
            _send(client, head + end)
            break
        _send(client, chunk)
    if not frozen.is_set():
        _close(client)


def _read_chunks(source: socket.socket, frozen: Event) -> Iterator[bytes]:
    with suppress(OSError):  # the other side may close first
        while chunk := source.recv(_CHUNK_SIZE):
            if not frozen.is_set():
                yield chunk


def _send(target: socket.socket, chunk: bytes) -> None:
    with suppress(OSError):  # the other side has closed
        target.sendall(chunk)


def _close(end: socket.socket) -> None:
    with suppress(OSError):  # it may be closed already
        end.shutdown(socket.SHUT_RDWR)
    end.close()
