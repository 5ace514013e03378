"""What both sides of a WebSocket share: MQTT in binary frames, whose borders mean nothing [MQTT-6.0.0-2].

`Framed` stands between the network and a connection. To the network it is the protocol; to the connection
it is the transport, which wraps all that is written in frames. The frames themselves are the work of the
library `websockets`, of which we use the part that does no I/O. A side adds how the upgrade is asked for or
answered, and how it ends.
"""

from __future__ import annotations

import asyncio
import logging
import typing
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol

from meshfleet.errors.mqtt import ConnectionLost

if TYPE_CHECKING:
    from websockets.protocol import Event, Protocol
    from websockets.typing import BytesLike

    class InnerProtocol(typing.Protocol):
        """A connection, as a transport sees it."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            """Begin."""

        def data_received(self, data: bytes) -> None:
            """Something came."""

        def eof_received(self) -> bool | None:
            """Nothing more will come."""

        def pause_writing(self) -> None:
            """Write no more for a while."""

        def resume_writing(self) -> None:
            """Write on."""

        def connection_lost(self, exc: Exception | None) -> None:
            """End."""


SUBPROTOCOL: Final = Subprotocol("mqtt")

WEBSOCKETS_LOG: Final = logging.getLogger(f"{__name__}.library")
"""For the library, which would tell of every connection, and write passwords down when it debugs."""
WEBSOCKETS_LOG.setLevel(logging.WARNING)


class WebSocketTransport(asyncio.Transport, asyncio.BaseProtocol):
    """A protocol on the outside, a transport on the inside."""

    _outside: asyncio.Transport  # there before anything else is called, as asyncio promises

    def __init__(self, inside: InnerProtocol, frames: Protocol) -> None:
        super().__init__()
        self._inside = inside
        self._frames = frames
        self._error: ConnectionLost | None = None
        self._is_inner_open = False
        """Whether the connection inside has begun, and not ended."""
        self._is_lost = False
        """Whether the network is done with us."""
        self._is_write_paused = False
        """Whether the network takes no more."""
        self._is_read_paused = self._is_ping_paused = False
        """Whether nothing is read: for the connection, or since pings come whose answers nobody reads."""

    # To the network

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport below."""
        self._outside = cast("asyncio.Transport", transport)  # uvloop's is none, but behaves like one

    def data_received(self, data: bytes) -> None:
        """Unwrap."""
        self._frames.receive_data(data)
        unwrapped = b"".join(map(self._unwrap, self._frames.events_received()))
        if unwrapped and self._is_inner_open and not self.is_closing():
            self._inside.data_received(unwrapped)
        self._flush()
        if self._frames.close_rcvd and self._is_inner_open:
            self._inside.eof_received()
        # And not when we said that nothing follows: the other side has not read it all yet.
        if self._frames.close_rcvd or self._frames.parser_exc or self._frames.eof_sent or self._error:
            self._finish()

    def eof_received(self) -> None:
        """Pass it on. A WebSocket has no half: the transport closes."""
        if self._is_inner_open:
            self._inside.eof_received()

    def pause_writing(self) -> None:
        """Pass it on."""
        self._is_write_paused = True
        if self._is_inner_open:
            self._inside.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._is_write_paused = self._is_ping_paused = False
        self._resume_reading_if_free()
        if self._is_inner_open:
            self._inside.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """A side passes it on."""
        del exc
        self._is_lost = True

    # To the connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Wrap. What comes after the end is lost, as on any transport."""
        if self._frames.state is State.OPEN:
            self._frames.send_binary(data)
            self._flush()

    def can_write_eof(self) -> bool:
        """The end of a WebSocket is a frame, which the other side answers."""
        return True

    def write_eof(self) -> None:
        """Say that nothing follows."""
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()

    def close(self) -> None:
        """Say so, and close what is below."""
        self.write_eof()
        self._outside.close()

    def abort(self) -> None:
        """Close what is below, at once."""
        if not self._is_lost:  # asyncio fails to abort what was closed with bytes to send, and is closed
            self._outside.abort()

    def is_closing(self) -> bool:
        """Whether what is below is closing."""
        return self._outside.is_closing()

    def pause_reading(self) -> None:
        """Let the network wait."""
        self._is_read_paused = True
        self._stop_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._is_read_paused = False
        self._resume_reading_if_free()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known below: `peername`, for one."""
        return self._outside.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """Bytes that the network has not taken yet, frames and all."""
        return self._outside.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When writing pauses, and resumes."""
        self._outside.set_write_buffer_limits(high, low)

    # What a side adds

    def _handle_upgrade(self, event: Event) -> None:
        """The other side's half of the upgrade has come."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Nothing more is read: an end in order, or the frames were wrong."""
        self.close()

    # Inside

    def _unwrap(self, event: Event) -> BytesLike:
        match event:
            case Frame(opcode=Opcode.BINARY | Opcode.CONT) if self._error is None:
                return event.data
            case Frame(opcode=Opcode.TEXT):
                self._error = ConnectionLost("the other side sent text in a WebSocket")  # [MQTT-6.0.0-1]
                self._frames.fail(CloseCode.UNSUPPORTED_DATA, "MQTT is not text")
            case Frame(opcode=Opcode.PING) if self._is_write_paused:
                self._is_ping_paused = True
                self._stop_reading()
            case Frame():
                pass
            case _:
                self._handle_upgrade(event)
        return b""

    def _open_inner(self) -> None:
        self._is_inner_open = True
        self._inside.connection_made(self)

    def _flush(self) -> None:
        """Send what the frames have to send; an empty piece is the end, and the last."""
        pieces = self._frames.data_to_send()
        if not pieces or self.is_closing():
            return
        if data := b"".join(pieces):
            self._outside.write(data)
        if not pieces[-1] and self._outside.can_write_eof():
            with suppress(OSError):  # the other side may have gone before us
                self._outside.write_eof()

    def _stop_reading(self) -> None:
        if not self.is_closing():
            self._outside.pause_reading()

    def _resume_reading_if_free(self) -> None:
        if not (self._is_read_paused or self._is_ping_paused or self.is_closing()):
            self._outside.resume_reading()
