"""Server side of MQTT over WebSocket: responds to the upgrade request of a client.

The MQTT connection starts when the upgrade is complete, and is not notified of an upgrade that fails. A
client that does not complete the upgrade, or does not close its side, in time is disconnected.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from websockets.exceptions import NegotiationError
from websockets.http11 import Request, Response
from websockets.protocol import Event, State
from websockets.server import ServerProtocol

from meshfleet.mqtt.websocket_transport import SUBPROTOCOL, WEBSOCKETS_LOG, WebSocketTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from websockets.typing import Subprotocol

    from meshfleet.mqtt.websocket_transport import InnerMqttProtocol

_PATHS: Final = frozenset({"/mqtt", "/"})

_MAX_UPGRADE_BYTES: Final = 32 * 1024
"""Maximum bytes of an upgrade request, cookies included: the client is not authenticated yet."""


_READ_BYTES: Final = 16 * 1024
"""Maximum bytes per read: so few may already hold thousands of frames, while other connections wait."""


class ServerWebSocket(WebSocketTransport, asyncio.BufferedProtocol):
    """Carries the MQTT connection of a client in WebSocket frames.

    Bytes are read into `buffer`, which connections may share. `timeout` is the maximum time in seconds for
    the upgrade and for the close. `on_upgrade_failed` is called if the WebSocket closes before the upgrade.
    """

    _frames: ServerProtocol

    def __init__(
        self,
        inner: InnerMqttProtocol,
        *,
        buffer: memoryview,
        max_frame_bytes: int,
        timeout: float,
        on_upgrade_failed: Callable[[], None] = lambda: None,
    ) -> None:
        frames = ServerProtocol(
            select_subprotocol=_select_subprotocol,
            # Messages are forwarded frame by frame, so only the size of a frame is limited.
            max_size=(None, max_frame_bytes),
            logger=WEBSOCKETS_LOG,
        )
        super().__init__(inner, frames)
        self._buffer = buffer[:_READ_BYTES]
        self._timeout = timeout
        self._on_upgrade_failed = on_upgrade_failed
        self._timer: asyncio.TimerHandle | None = None
        self._request_bytes_left = _MAX_UPGRADE_BYTES
        self._is_upgraded = False

    # Protocol side, called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer that aborts the connection if no upgrade request arrives."""
        super().connection_made(transport)
        self._start_timer()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the shared read buffer: no other connection uses it before `buffer_updated` returns."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes of one read from the socket."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Parse an upgrade request line by line, so that the response is sent before later bytes are read."""
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
        """Close the MQTT connection, or call `on_upgrade_failed` if the upgrade is not complete."""
        super().connection_lost(exc)
        self._stop_timer()
        if not self._is_upgraded:
            self._on_upgrade_failed()
        self._end_mqtt_connection(exc)

    # Transport side, called by the MQTT connection

    def close(self) -> None:
        """Send a close frame and the rest of the output, then close the network connection.

        Abort it if this takes longer than `timeout`.
        """
        super().close()
        self._start_timer()

    # Internal

    def _handle_upgrade(self, event: Event) -> None:
        if isinstance(event, Request):
            response = self._build_upgrade_response(event)
            self._frames.send_response(response)
            if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                self._stop_timer()
                self._is_upgraded = True
                self._start_mqtt_connection()

    def _build_upgrade_response(self, request: Request) -> Response:
        if request.path.partition("?")[0] not in _PATHS:
            return self._frames.reject(HTTPStatus.NOT_FOUND, "The path of MQTT is /mqtt.\n")
        # The library fails to quote values that are not ASCII, and no header of the upgrade needs one.
        non_ascii = {name.lower() for name, value in request.headers.raw_items() if not value.isascii()}
        for name in non_ascii:
            del request.headers[name]
        return self._frames.accept(request)

    def _finish(self) -> None:
        # Closing a socket with unread bytes resets the connection, and the response may be lost with it. So a
        # refused client has to close first; its remaining bytes are read and ignored.
        if self._frames.close_rcvd or not self._outside.can_write_eof():
            self.close()
        else:
            self._end_mqtt_connection(None)
            self.resume_reading()  # the MQTT connection that may have paused it is closed
            self._start_timer()

    def _end_mqtt_connection(self, exc: Exception | None) -> None:
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
    """Select `mqtt`, the only supported subprotocol [MQTT-6.0.0-4]."""
    if SUBPROTOCOL not in offered:
        raise NegotiationError(f"the client does not offer the subprotocol {SUBPROTOCOL}")
    return SUBPROTOCOL
