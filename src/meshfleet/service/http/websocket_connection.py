"""A WebSocket with limits that uvicorn does not have, and a way out for frames that are made once for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from asyncio import BaseTransport, TimerHandle

MAX_MESSAGE_BYTES: Final = 64 * 1024
"""Bytes that a client may send at once."""

_WRITE_TIMEOUT_SECONDS: Final = 30.0
"""For a client to take what it asked for."""

_CLOSE_NOT_UTF8: Final = 1007


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One client's WebSocket."""

    handshake_seconds: ClassVar = 20.0
    """For us to answer; until then nobody else ends the connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._write_deadline: TimerHandle | None = None
        self._handshake_deadline: TimerHandle | None = None
        self._early_data = b""

    def connection_made(self, transport: BaseTransport) -> None:
        """A handshake comes; what the client says behind it waits until it is answered."""
        super().connection_made(transport)
        self.transport.pause_reading()
        self._handshake_deadline = self.loop.call_later(self.handshake_seconds, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """Read on; a frame before our answer would be taken for a mistake."""
        if self.handshake_initiated and not self.handshake_complete:
            self._early_data += data
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.abort()  # uvicorn would wait for ever

    async def send(self, message: Any) -> None:
        """Send a message; also one of `frames`, which go out as they are."""
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
        """The next message."""
        message = await super().receive()
        self._update_reading()
        return message

    def pause_writing(self) -> None:
        """The client does not take what it gets; it has some time, and then the connection ends.

        Until then it is not heard either: who only pings would have us keep all the pongs.
        """
        super().pause_writing()
        self._update_reading()
        self._write_deadline = self.loop.call_later(_WRITE_TIMEOUT_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._cancel_write_deadline()
        self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._cancel_write_deadline()
        self._cancel_handshake_deadline()
        super().connection_lost(exc)

    def keepalive_timeout(self) -> None:
        """The client is dead: closing would wait until it has read all."""
        super().keepalive_timeout()
        self.transport.abort()

    def shutdown(self) -> None:
        """Say goodbye to who listens; the service does not wait for others to."""
        super().shutdown()
        if not self.writable.is_set():
            self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        """Pass a message on; uvicorn would log a traceback for one that is no text."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(_CLOSE_NOT_UTF8)  # also when a goodbye came right behind it
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """End it with a reason, if there is still one to tell."""
        if self.conn.close_sent is None:
            self.transport.abort()
        else:
            super().handle_parser_exception()

    def _finish_handshake(self) -> None:
        """The handshake is answered: go on with what came in the meantime."""
        self._cancel_handshake_deadline()
        early, self._early_data = self._early_data, b""
        if early:
            self.data_received(early)
        self._update_reading()

    def _update_reading(self) -> None:
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
