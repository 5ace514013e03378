"""MQTT inside a WebSocket, the server's side: answers a client's request for the upgrade.

The connection inside begins when the upgrade is done, and hears nothing of one that fails. Who does not get
that far in time is cut off, as is who does not let go in time of a WebSocket that we closed.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from websockets.exceptions import NegotiationError
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from meshfleet.mqtt.websocket_transport import SUBPROTOCOL, WEBSOCKETS_LOG, WebSocketTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from websockets.protocol import Event
    from websockets.typing import Subprotocol

    from meshfleet.mqtt.websocket_transport import InnerProtocol

_PATHS: Final = frozenset({"/mqtt", "/"})

_MAX_UPGRADE_BYTES: Final = 32 * 1024
"""Bytes of a request for the upgrade, a browser's cookies included. Whoever sends it is still a stranger."""


_READ_BYTES: Final = 16 * 1024
"""Bytes that are read at once. They may be thousands of frames, and others wait meanwhile."""


class ServerWebSocket(WebSocketTransport, asyncio.BufferedProtocol):
    """The frames between a client and the connection that serves it.

    A frame has `largest` bytes at most. `buffer` is for reading into; connections may share it.
    `missed` is called when it ends before it was upgraded.
    """

    _frames: ServerProtocol

    def __init__(
        self,
        inner: InnerProtocol,
        *,
        buffer: memoryview,
        max_frame_bytes: int,
        timeout: float,
        on_upgrade_failed: Callable[[], None] = lambda: None,
    ) -> None:
        frames = ServerProtocol(
            select_subprotocol=_select_subprotocol,
            max_size=(
                None,
                max_frame_bytes,
            ),  # a message is passed on frame by frame, so its own size is no matter
            logger=WEBSOCKETS_LOG,
        )
        super().__init__(inner, frames)
        self._buffer = buffer[:_READ_BYTES]
        self._timeout = timeout
        self._on_upgrade_failed = on_upgrade_failed
        self._timer: asyncio.TimerHandle | None = None
        self._request_bytes_left = _MAX_UPGRADE_BYTES
        self._is_upgraded = False

    # To the network

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request."""
        super().connection_made(transport)
        self._start_timer()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read to: nobody else uses it before `buffer_updated` returns."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Something was read."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Read the request line by line, so that it is answered before anything behind it is read."""
        while data and self._frames.state is State.CONNECTING and not self._frames.eof_sent:
            line, end, data = data.partition(b"\n")
            self._request_bytes_left -= len(line) + len(end)
            if self._request_bytes_left < 0:
                self.abort()
                return
            super().data_received(line + end)
        if data and not self._frames.eof_sent:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        super().connection_lost(exc)
        self._stop_timer()
        if not self._is_upgraded:
            self._on_upgrade_failed()
        self._close_inner(exc)

    # To the connection

    def close(self) -> None:
        """Say so, send the rest, and close what is below; in time."""
        super().close()
        self._start_timer()

    # Inside

    def _handle_upgrade(self, event: Event) -> None:
        if isinstance(event, Request):
            response = self._respond(event)
            self._frames.send_response(response)
            if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                self._stop_timer()
                self._is_upgraded = True
                self._open_inner()

    def _respond(self, request: Request) -> Response:
        if request.path.partition("?")[0] not in _PATHS:
            return self._frames.reject(HTTPStatus.NOT_FOUND, "MQTT is spoken at /mqtt.\n")
        # The library fails to quote what is not ASCII, and no part of the upgrade is anything else.
        foreign = {name.lower() for name, value in request.headers.raw_items() if not value.isascii()}
        for name in foreign:
            del request.headers[name]
        return self._frames.accept(request)

    def _finish(self) -> None:
        # A socket that is closed with unread bytes resets the connection, and the reason may be lost with it.
        # So a client that was refused is the one to close; what it still sends is not read any more.
        if self._frames.close_rcvd or not self._outside.can_write_eof():
            self.close()
        else:
            self._close_inner(None)
            self.resume_reading()  # whoever paused it is gone
            self._start_timer()

    def _close_inner(self, exc: Exception | None) -> None:
        if self._is_inner_open:
            self._is_inner_open = False
            self._inside.connection_lost(self._error or exc or self._frames.parser_exc)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _select_subprotocol(_: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol:
    """The only one we speak [MQTT-6.0.0-4]."""
    if SUBPROTOCOL not in offered:
        raise NegotiationError(f"the client does not offer the subprotocol {SUBPROTOCOL}")
    return SUBPROTOCOL
