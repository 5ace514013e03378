"""MQTT inside a WebSocket, the client's side: asks a broker for the upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from meshfleet.errors import ConnectionLost
from meshfleet.link.frames import LIBRARY_LOG, SUBPROTOCOL, Framed

if TYPE_CHECKING:
    import asyncio

    from websockets.protocol import Event

    from meshfleet.link.address import Address
    from meshfleet.link.frames import Inside

_LONGEST_FRAME: Final = 16 * 1024 * 1024
"""Bytes of a frame, which is read as a whole. A message beyond it cannot be passed over."""


class WebSocket(Framed):
    """The frames between a connection and its broker."""

    _frames: ClientProtocol

    def __init__(self, address: Address, inside: Inside) -> None:
        uri = parse_uri(str(address))
        frames = ClientProtocol(uri, subprotocols=[SUBPROTOCOL], max_size=_LONGEST_FRAME, logger=LIBRARY_LOG)
        super().__init__(inside, frames)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        super().connection_made(transport)
        self._frames.send_request(self._frames.connect())
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on, with the reason of the upgrade or the frames if there is one."""
        super().connection_lost(exc)
        self._open = False
        reason = self._reason or self._frames.handshake_exc or exc or self._frames.parser_exc
        self._inside.connection_lost(reason)

    def _greet(self, event: Event) -> None:  # noqa: ARG002 # the frames have read it
        if self._frames.handshake_exc is not None:
            return
        if self._frames.subprotocol == SUBPROTOCOL:
            self._begin()
        else:
            self._reason = ConnectionLost("the WebSocket is not one for MQTT")  # [MQTT-6.0.0-4]

    def _finish(self) -> None:
        if self._reason is None:
            self.close()
        else:
            self.abort()  # who is no broker need not read the rest
