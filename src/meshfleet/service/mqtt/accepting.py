"""Lets clients in at the entrances, and nobody in whom there is no room for.

Connections are counted as soon as they are accepted: a stranger who never ends a TLS handshake, or a request
for a WebSocket, takes the same room as a client.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from meshfleet.broker.websocket import WebSocket
from meshfleet.link.words import words

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from meshfleet.broker import Broker
    from meshfleet.service.mqtt.listeners import Entrance
    from meshfleet.settings import Settings

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 16
"""Connections that are accepted in a row; then others have their turn."""

_PAUSE: Final = 0.5
"""Seconds before the next try when the system has no more files for us."""


async def accept_clients(broker: Broker, entrances: Sequence[Entrance], settings: Settings) -> None:
    """Let clients in at all entrances until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for entrance in entrances:
            tasks.create_task(_Gate(broker, entrance, settings).stand_open(), name=f"mqtt {entrance}")


class _Gate:
    """One entrance."""

    def __init__(self, broker: Broker, entrance: Entrance, settings: Settings) -> None:
        self._broker = broker
        self._listener = entrance.listener
        self._is_websocket = entrance.scheme in {"ws", "wss"}
        self._limits = settings.limits
        self._tls = _tls(settings) if entrance.scheme in {"mqtts", "wss"} else None

    async def stand_open(self) -> None:
        """Accept whoever comes."""
        self._listener.setblocking(False)  # noqa: FBT003 # it takes no name
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            for number in count():
                try:
                    client, (address, *_) = await loop.sock_accept(self._listener)
                except OSError as exc:
                    _log.warning("cannot accept connections: %s", words(exc))
                    await asyncio.sleep(_PAUSE)
                    continue
                if self._broker.crowd.expect(address):
                    tasks.create_task(self._greet(client, address))
                else:
                    client.close()
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _greet(self, client: socket.socket, address: str) -> None:
        """Bring a client as far as MQTT."""
        crowd = self._broker.crowd
        try:
            goes_on = await crowd.wait_turn(address)
        except asyncio.CancelledError:
            client.close()
            raise
        if not goes_on:
            client.close()
            crowd.miss(address)
            crowd.turned_away += 1
            return
        missed = partial(crowd.fail, address)
        patience = None if self._tls is None else self._limits.connect_seconds
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make(address, missed), client, ssl=self._tls, ssl_handshake_timeout=patience
            )
        except OSError:  # of TLS too
            missed()

    def _make(self, address: str, missed: Callable[[], None]) -> asyncio.BaseProtocol:
        connection = self._broker.connection(address)
        if not self._is_websocket:
            return connection
        return WebSocket(
            connection,
            buffer=self._broker.buffer,
            largest=4 * self._limits.packet_size,  # clients may put several packets into one frame
            patience=self._limits.connect_seconds,
            missed=missed,
        )


def _tls(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert, settings.tls_key)  # type: ignore[arg-type] # checked with the settings
    return context
