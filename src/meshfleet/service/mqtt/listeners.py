"""Where MQTT clients come in: TCP, TLS and WebSocket."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from meshfleet.broker.websocket import WebSocket
from meshfleet.service.sockets import listening

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterator, Sequence

    from meshfleet.broker import Broker
    from meshfleet.settings import Settings


class Entrance(NamedTuple):
    """A socket that listens, and what is spoken there."""

    listener: socket.socket
    scheme: str
    """mqtt, mqtts, ws or wss."""

    def __str__(self) -> str:
        host, port = self.listener.getsockname()[:2]
        return f"{self.scheme}://[{host}]:{port}" if ":" in host else f"{self.scheme}://{host}:{port}"


@contextmanager
def entrances_of(settings: Settings) -> Iterator[list[Entrance]]:
    """Where MQTT clients will come in; nobody is let in yet."""
    tls = settings.tls_cert is not None
    wanted = (
        (settings.mqtt, "mqtt", "mqtt"),
        (settings.mqtt_tls, "mqtt-tls", "mqtts"),
        (settings.mqtt_ws, "mqtt-ws", "wss" if tls else "ws"),
    )
    with ExitStack() as stack:
        yield [
            Entrance(stack.enter_context(listening(place, name)), scheme)
            for place, name, scheme in wanted
            if place is not None
        ]


def with_ports(settings: Settings, entrances: list[Entrance]) -> Settings:
    """The settings with the ports that we got where any would do: gateways are told them."""
    ports = {each.scheme: each.listener.getsockname()[1] for each in entrances}
    changes = {
        name: listen._replace(port=ports[scheme])
        for name, scheme, listen in (
            ("mqtt", "mqtt", settings.mqtt),
            ("mqtt_tls", "mqtts", settings.mqtt_tls),
        )
        if listen is not None
    }
    return replace(settings, **changes)


@asynccontextmanager
async def open_to_clients(
    broker: Broker, entrances: Sequence[Entrance], settings: Settings
) -> AsyncIterator[None]:
    """Let clients in at all entrances."""
    loop = asyncio.get_running_loop()
    servers = []
    try:
        for entrance in entrances:
            make = (
                partial(_websocket, broker, settings)
                if entrance.scheme.startswith("ws")
                else broker.connection
            )
            tls = _tls(settings) if entrance.scheme in {"mqtts", "wss"} else None
            patience = None if tls is None else settings.limits.connect_seconds
            servers.append(
                await loop.create_server(
                    make, sock=entrance.listener, ssl=tls, ssl_handshake_timeout=patience, backlog=4096
                )
            )
        yield
    finally:
        for server in servers:
            server.close()


def _websocket(broker: Broker, settings: Settings) -> WebSocket:
    limits = settings.limits
    # Clients may put several packets into one frame.
    return WebSocket(
        broker.connection(),
        buffer=broker.buffer,
        largest=4 * limits.packet_size,
        patience=limits.connect_seconds,
    )


def _tls(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert, settings.tls_key)  # type: ignore[arg-type] # checked with the settings
    return context
