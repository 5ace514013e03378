"""A WebSocket with limits that uvicorn does not have, and a way out for frames that are made once for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from asyncio import TimerHandle

LARGEST_MESSAGE: Final = 64 * 1024
"""Bytes that a client may send at once."""

_READ_SECONDS: Final = 30.0
"""For a client to take what it asked for."""

_NOT_UTF8: Final = 1007


class Socket(WebSocketsSansIOProtocol):
    """One client's WebSocket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread: TimerHandle | None = None

    async def send(self, message: Any) -> None:
        """Send a message; also one of `frames`, which go out as they are."""
        frames = message.get("frames")
        if frames is None:
            await super().send(message)
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(frames)

    def pause_writing(self) -> None:
        """The client does not take what it gets; it has some time, and then the connection ends."""
        super().pause_writing()
        self._unread = self.loop.call_later(_READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._reads_again()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._reads_again()
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
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(_NOT_UTF8)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def _reads_again(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
