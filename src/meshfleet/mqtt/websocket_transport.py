"""Base class for MQTT over WebSocket, in client and broker: MQTT in binary frames [MQTT-6.0.0-2].

`WebSocketTransport` stands between the network and an MQTT connection. To asyncio it is a protocol; to the
MQTT connection it is a transport, which wraps written bytes in frames. The part of the `websockets` library
without I/O parses and builds the frames. The subclasses for client and server add the upgrade and the close.
"""

from __future__ import annotations

import asyncio
import logging
import typing
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Event, Protocol, State
from websockets.typing import BytesLike, Subprotocol

from meshfleet.errors.mqtt import ConnectionLost

if TYPE_CHECKING:

    class InnerMqttProtocol(typing.Protocol):
        """Methods that `WebSocketTransport` calls on the MQTT connection inside the WebSocket."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            """Start the MQTT connection on `transport`."""

        def data_received(self, data: bytes) -> None:
            """Parse received MQTT bytes and handle the packets."""

        def eof_received(self) -> bool | None:
            """Handle the end of the received stream: the other side has stopped sending."""

        def pause_writing(self) -> None:
            """Stop writing to the transport until `resume_writing` is called."""

        def resume_writing(self) -> None:
            """Resume writing to the transport."""

        def connection_lost(self, exc: Exception | None) -> None:
            """End the MQTT connection, because the transport has closed."""


SUBPROTOCOL: Final = Subprotocol("mqtt")

WEBSOCKETS_LOG: Final = logging.getLogger(f"{__name__}.library")
"""Logger of the `websockets` library, set to WARNING: the library logs passwords at DEBUG."""
WEBSOCKETS_LOG.setLevel(logging.WARNING)


class WebSocketTransport(asyncio.Transport, asyncio.BaseProtocol):
    """Wraps MQTT bytes in WebSocket frames: a protocol to asyncio, a transport to the MQTT connection."""

    _outside: asyncio.Transport  # set by connection_made, which asyncio calls first

    def __init__(self, inside: InnerMqttProtocol, frames: Protocol) -> None:
        super().__init__()
        self._inside = inside
        self._frames = frames
        self._error: ConnectionLost | None = None
        self._is_inner_open = False
        """Whether the MQTT connection was started and has not ended."""
        self._is_lost = False
        """Whether the network connection has ended."""
        self._is_write_paused = False
        """Whether writing is paused because the write buffer of the network connection is full."""
        self._is_read_paused = self._is_ping_paused = False
        """Two reasons why reading may be paused: the MQTT connection asked for it, or the other side sends
        WebSocket pings without reading the pongs."""

    # Protocol side, called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the network connection."""
        # uvloop's transport has another base class, but the same methods.
        self._outside = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Unwrap received WebSocket frames, and pass their payload to the MQTT connection."""
        self._frames.receive_data(data)
        unwrapped = b"".join(map(self._handle_event, self._frames.events_received()))
        if unwrapped and self._is_inner_open and not self.is_closing():
            self._inside.data_received(unwrapped)
        self._flush()
        if self._frames.close_rcvd and self._is_inner_open:
            self._inside.eof_received()
        # A close frame of our own is no reason to finish: the other side may not have read everything yet.
        if self._frames.close_rcvd or self._frames.parser_exc or self._frames.eof_sent or self._error:
            self._finish()

    def eof_received(self) -> None:
        """Tell the MQTT connection that the other side stopped sending. asyncio then closes the transport."""
        if self._is_inner_open:
            self._inside.eof_received()

    def pause_writing(self) -> None:
        """Tell the MQTT connection to stop writing."""
        self._is_write_paused = True
        if self._is_inner_open:
            self._inside.pause_writing()

    def resume_writing(self) -> None:
        """Tell the MQTT connection to write again, and resume reading if pings had paused it."""
        self._is_write_paused = self._is_ping_paused = False
        self._resume_reading_unless_paused()
        if self._is_inner_open:
            self._inside.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the network connection has ended. Subclasses also end the MQTT connection."""
        del exc
        self._is_lost = True

    # Transport side, called by the MQTT connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send MQTT bytes in a binary WebSocket frame; discard the bytes if the WebSocket is not open."""
        if self._frames.state is State.OPEN:
            self._frames.send_binary(data)
            self._flush()

    def can_write_eof(self) -> bool:
        """Return True: `write_eof` sends a close frame."""
        return True

    def write_eof(self) -> None:
        """Send a WebSocket close frame if the WebSocket is open."""
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()

    def close(self) -> None:
        """Send a WebSocket close frame, then close the network connection."""
        self.write_eof()
        self._outside.close()

    def abort(self) -> None:
        """Abort the network connection."""
        if not self._is_lost:  # asyncio cannot abort a closed transport that still had bytes to send
            self._outside.abort()

    def is_closing(self) -> bool:
        """Return whether the network connection is closing."""
        return self._outside.is_closing()

    def pause_reading(self) -> None:
        """Stop reading from the network connection."""
        self._is_read_paused = True
        self._stop_reading()

    def resume_reading(self) -> None:
        """Resume reading from the network connection, unless reading is also paused because of pings."""
        self._is_read_paused = False
        self._resume_reading_unless_paused()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the network connection, such as `peername`."""
        return self._outside.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """Return the number of written bytes that were not sent yet, WebSocket frame headers included."""
        return self._outside.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the sizes of the write buffer in bytes at which writing pauses (`high`) and resumes (`low`)."""
        self._outside.set_write_buffer_limits(high, low)

    # Implemented by client and server

    def _handle_upgrade(self, event: Event) -> None:
        """Handle the WebSocket upgrade request of a client, or the upgrade response of a server."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Close the WebSocket after a close frame, an invalid frame, or the end of the output."""
        self.close()

    # Internal

    def _handle_event(self, event: Event) -> BytesLike:
        """Handle a received WebSocket frame or upgrade. Return the MQTT bytes in it, often none."""
        match event:
            case Frame(opcode=Opcode.BINARY | Opcode.CONT) if self._error is None:
                return event.data
            case Frame(opcode=Opcode.TEXT):
                # [MQTT-6.0.0-1]
                self._error = ConnectionLost("the other side sent a text frame in a WebSocket")
                self._frames.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")
            case Frame(opcode=Opcode.PING) if self._is_write_paused:
                self._is_ping_paused = True
                self._stop_reading()
            case Frame():
                pass
            case _:
                self._handle_upgrade(event)
        return b""

    def _start_mqtt_connection(self) -> None:
        """Start the MQTT connection inside the WebSocket, after the upgrade."""
        self._is_inner_open = True
        self._inside.connection_made(self)

    def _flush(self) -> None:
        """Write the output of the `websockets` library. An empty last chunk closes the sending side."""
        chunks = self._frames.data_to_send()
        if not chunks or self.is_closing():
            return
        if data := b"".join(chunks):
            self._outside.write(data)
        if not chunks[-1] and self._outside.can_write_eof():
            with suppress(OSError):  # the other side may have closed the connection already
                self._outside.write_eof()

    def _stop_reading(self) -> None:
        if not self.is_closing():
            self._outside.pause_reading()

    def _resume_reading_unless_paused(self) -> None:
        if not (self._is_read_paused or self._is_ping_paused or self.is_closing()):
            self._outside.resume_reading()
