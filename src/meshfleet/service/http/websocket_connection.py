"""WebSocket connection with timeouts that uvicorn lacks; can send frames encoded once for many clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from asyncio import BaseTransport, TimerHandle

MAX_MESSAGE_BYTES: Final = 64 * 1024
"""Maximum size in bytes of a WebSocket message from a client."""

_WRITE_TIMEOUT_SECONDS: Final = 30.0
"""Maximum seconds that a WebSocket client may leave data unread before the connection is aborted."""

_CLOSE_NOT_UTF8: Final = 1007


class WebSocketConnection(WebSocketsSansIOProtocol):
    """WebSocket connection of one client, with timeouts for the handshake and for sending."""

    handshake_seconds: ClassVar = 20.0
    """Maximum seconds for the application to answer the handshake, before other timeouts apply."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._write_deadline: TimerHandle | None = None
        self._handshake_deadline: TimerHandle | None = None
        self._early_data = b""

    def connection_made(self, transport: BaseTransport) -> None:
        """Start the handshake timeout, and pause reading until the handshake is answered."""
        super().connection_made(transport)
        self.transport.pause_reading()
        self._handshake_deadline = self.loop.call_later(self.handshake_seconds, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """Parse received data. Before the handshake is answered, buffer the data: uvicorn would reject it."""
        if self.handshake_initiated and not self.handshake_complete:
            self._early_data += data
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.abort()  # uvicorn would wait forever

    async def send(self, message: Any) -> None:
        """Send an ASGI message. If the message has the key `frames`, write its bytes unchanged."""
        frames = message.get("frames")
        if frames is None:
            await super().send(message)
            if self.handshake_complete and self._handshake_deadline is not None:
                self._finish_handshake()
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(frames)

    async def receive(self) -> Any:
        """Return the next ASGI message, and resume reading from the socket if possible."""
        message = await super().receive()
        self._update_reading()
        return message

    def pause_writing(self) -> None:
        """Start the write timeout, because the client does not read its data.

        Pause reading, too: a client that sends pings and reads nothing would fill the buffer with pongs.
        """
        super().pause_writing()
        self._update_reading()
        self._write_deadline = self.loop.call_later(_WRITE_TIMEOUT_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the write timeout, because the client reads again."""
        super().resume_writing()
        self._cancel_write_deadline()
        self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timeouts of the lost WebSocket connection."""
        self._cancel_write_deadline()
        self._cancel_handshake_deadline()
        super().connection_lost(exc)

    def keepalive_timeout(self) -> None:
        """Abort the connection of a client that does not respond to pings: a close would wait for it."""
        super().keepalive_timeout()
        self.transport.abort()

    def shutdown(self) -> None:
        """Close the connection, or abort it if the client does not read, so that the service can stop."""
        super().shutdown()
        if not self.writable.is_set():
            self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        """Pass a message to the application. Reject text messages that are not UTF-8."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(_CLOSE_NOT_UTF8)  # also if a close frame followed immediately
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """Close the connection after a protocol error. Abort it if no close frame can be sent."""
        if self.conn.close_sent is None:
            self.transport.abort()
        else:
            super().handle_parser_exception()

    def _finish_handshake(self) -> None:
        """Process the data that the client sent before the handshake was answered."""
        self._cancel_handshake_deadline()
        early_data, self._early_data = self._early_data, b""
        if early_data:
            self.data_received(early_data)
        self._update_reading()

    def _update_reading(self) -> None:
        """Read from the socket only after the handshake, and while neither direction is paused."""
        if self.handshake_complete and self.writable.is_set() and not self.read_paused:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _cancel_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _cancel_handshake_deadline(self) -> None:
        if self._handshake_deadline is not None:
            self._handshake_deadline.cancel()
            self._handshake_deadline = None
