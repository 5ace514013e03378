"""A WebSocket with limits that uvicorn does not have, and a way out for frames that are made once for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from asyncio import BaseTransport, TimerHandle

LARGEST_MESSAGE: Final = 64 * 1024
"""Bytes that a client may send at once."""

_READ_SECONDS: Final = 30.0
"""For a client to take what it asked for."""

_NOT_UTF8: Final = 1007


class Socket(WebSocketsSansIOProtocol):
    """One client's WebSocket."""

    handshake_seconds: ClassVar = 20.0
    """For us to answer; until then nobody else ends the connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread: TimerHandle | None = None
        self._deadline: TimerHandle | None = None
        self._early = b""

    def connection_made(self, transport: BaseTransport) -> None:
        """A handshake comes; what the client says behind it waits until it is answered."""
        super().connection_made(transport)
        self.transport.pause_reading()
        self._deadline = self.loop.call_later(self.handshake_seconds, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """Read on; a frame before our answer would be taken for a mistake."""
        if self.handshake_initiated and not self.handshake_complete:
            self._early += data
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.abort()  # uvicorn would wait for ever

    async def send(self, message: Any) -> None:
        """Send a message; also one of `frames`, which go out as they are."""
        frames = message.get("frames")
        if frames is None:
            await super().send(message)
            if self.handshake_complete and self._deadline is not None:
                self._begin()
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(frames)

    async def receive(self) -> Any:
        """The next message."""
        message = await super().receive()
        self._read_or_wait()
        return message

    def pause_writing(self) -> None:
        """The client does not take what it gets; it has some time, and then the connection ends.

        Until then it is not heard either: who only pings would have us keep all the pongs.
        """
        super().pause_writing()
        self._read_or_wait()
        self._unread = self.loop.call_later(_READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._reads_again()
        self._read_or_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._reads_again()
        self._stop_waiting()
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
                self.conn.fail(_NOT_UTF8)  # also when a goodbye came right behind it
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """End it with a reason, if there is still one to tell."""
        if self.conn.close_sent is None:
            self.transport.abort()
        else:
            super().handle_parser_exception()

    def _begin(self) -> None:
        """The handshake is answered: go on with what came in the meantime."""
        self._stop_waiting()
        early, self._early = self._early, b""
        if early:
            self.data_received(early)
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        if self.handshake_complete and self.writable.is_set() and not self.read_paused:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _reads_again(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
