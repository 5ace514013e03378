"""MQTT inside a WebSocket: binary frames, whose borders mean nothing [MQTT-6.0.0-2].

`WebSocket` stands between the network and a connection. To the network it is the protocol; to the connection
it is the transport, which wraps all that is written in frames. The frames themselves are the work of the
library `websockets`, of which we use the part that does no I/O.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from meshfleet.errors import ConnectionLost

if TYPE_CHECKING:
    from websockets.protocol import Event

    from meshfleet.link.address import Address

_SUBPROTOCOL: Final = Subprotocol("mqtt")

_LONGEST_FRAME: Final = 16 * 1024 * 1024
"""Bytes of a frame, which is read as a whole. A message beyond it cannot be passed over."""


class WebSocket(asyncio.Transport, asyncio.Protocol):
    """A protocol on the outside, a transport on the inside."""

    def __init__(self, address: Address, inside: asyncio.Protocol) -> None:
        super().__init__()
        self._inside = inside
        self._outside: asyncio.Transport | None = None
        self._reason: ConnectionLost | None = None
        self._frames = ClientProtocol(
            parse_uri(str(address)), subprotocols=[_SUBPROTOCOL], max_size=_LONGEST_FRAME
        )

    # To the network

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self._outside = cast("asyncio.Transport", transport)  # uvloop's is none, but behaves like one
        self._frames.send_request(self._frames.connect())
        self._pump()

    def data_received(self, data: bytes) -> None:
        """Unwrap."""
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            self._take(event)
        self._pump()
        if self._frames.close_rcvd or self._frames.parser_exc or self._frames.handshake_exc:
            self.close()  # and not when we said that nothing follows: the broker has not read it all yet

    def pause_writing(self) -> None:
        """Pass it on."""
        self._inside.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._inside.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on, with the reason of the upgrade or the frames if there is one."""
        reason = self._reason or self._frames.handshake_exc or exc or self._frames.parser_exc
        self._inside.connection_lost(reason)

    # To the connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Wrap. What comes after the end is lost, as on any transport."""
        if self._frames.state is State.OPEN:
            self._frames.send_binary(data)
            self._pump()

    def close(self) -> None:
        """Close what is below."""
        if self._outside is not None:
            self._outside.close()

    def abort(self) -> None:
        """Close what is below, at once."""
        if self._outside is not None:
            self._outside.abort()

    def is_closing(self) -> bool:
        """Whether what is below is closing."""
        return self._outside is None or self._outside.is_closing()

    def pause_reading(self) -> None:
        """Let the network wait."""
        if self._outside is not None:
            self._outside.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._outside is not None:
            self._outside.resume_reading()

    def can_write_eof(self) -> bool:
        """The end of a WebSocket is a frame, which the broker answers by closing."""
        return True

    def write_eof(self) -> None:
        """Say that nothing follows."""
        if self._frames.state is State.OPEN:
            self._frames.send_close()
            self._pump()

    # Inside

    def _take(self, event: Event) -> None:
        match event:
            case Response() if self._frames.handshake_exc is None:
                self._begin()
            case Frame(opcode=Opcode.BINARY | Opcode.CONT):
                self._inside.data_received(bytes(event.data))
            case Frame(opcode=Opcode.TEXT):
                self._refuse("the broker sent text in a WebSocket")  # [MQTT-6.0.0-1]

    def _begin(self) -> None:
        if self._frames.subprotocol == _SUBPROTOCOL:
            self._inside.connection_made(self)
        else:
            self._refuse("the WebSocket is not one for MQTT")  # [MQTT-6.0.0-4]

    def _refuse(self, reason: str) -> None:
        self._reason = ConnectionLost(reason)
        self.abort()

    def _pump(self) -> None:
        """Send what the frames have to send; an empty piece is the end."""
        if self._outside is not None and not self._outside.is_closing():
            for piece in self._frames.data_to_send():
                if piece:
                    self._outside.write(piece)
                elif self._outside.can_write_eof():
                    self._outside.write_eof()
