"""Where MQTT clients come in: TCP, TLS and WebSocket."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.mqtt.broker.websocket import ServerWebSocket
from meshfleet.mqtt.network_errors import describe_network_error
from meshfleet.service.sockets import open_listener

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from meshfleet.mqtt.broker import Broker
    from meshfleet.settings import Settings


# Lets clients in at the entrances, and nobody in whom there is no room for.

_log = logging.getLogger(__name__)

_ACCEPTS_PER_YIELD: Final = 16
"""Connections that are accepted in a row; then others have their turn."""

_RETRY_SECONDS: Final = 0.5
"""Seconds before the next try when the system has no more files for us."""


async def accept_clients(broker: Broker, listeners: Sequence[MqttListener], settings: Settings) -> None:
    """Let clients in at all entrances until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for entrance in listeners:
            tasks.create_task(_Acceptor(broker, entrance, settings).run(), name=f"mqtt {entrance}")


class _Acceptor:
    """One entrance."""

    def __init__(self, broker: Broker, listener: MqttListener, settings: Settings) -> None:
        self._broker = broker
        self._socket = listener.bound_socket
        self._is_websocket = listener.scheme in {"ws", "wss"}
        self._limits = settings.limits
        self._tls = _build_tls_context(settings) if listener.scheme in {"mqtts", "wss"} else None

    async def run(self) -> None:
        """Accept whoever comes."""
        self._socket.setblocking(False)  # noqa: FBT003 # it takes no name
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            for number in count():
                try:
                    client, (address, *_) = await loop.sock_accept(self._socket)
                except OSError as exc:
                    _log.warning("cannot accept connections: %s", describe_network_error(exc))
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if self._broker.connections.reserve_slot(address):
                    tasks.create_task(self._start_connection(client, address))
                else:
                    client.close()
                if number % _ACCEPTS_PER_YIELD == 0:
                    await asyncio.sleep(0)

    async def _start_connection(self, client: socket.socket, address: str) -> None:
        """Bring a client as far as MQTT."""
        crowd = self._broker.connections
        try:
            goes_on = await crowd.wait_for_login_turn(address)
        except asyncio.CancelledError:
            client.close()
            raise
        if not goes_on:
            client.close()
            crowd.release_slot(address)
            crowd.rejected_count += 1
            return
        missed = partial(crowd.release_failed_slot, address)
        patience = None if self._tls is None else self._limits.connect_seconds
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._build_protocol(address, missed),
                client,
                ssl=self._tls,
                ssl_handshake_timeout=patience,
            )
        except OSError:  # of TLS too
            missed()

    def _build_protocol(self, address: str, on_failure: Callable[[], None]) -> asyncio.BaseProtocol:
        connection = self._broker.create_connection(address)
        if not self._is_websocket:
            return connection
        return ServerWebSocket(
            connection,
            buffer=self._broker.read_buffer,
            max_frame_bytes=4 * self._limits.packet_size,  # clients may put several packets into one frame
            timeout=self._limits.connect_seconds,
            on_upgrade_failed=on_failure,
        )


def _build_tls_context(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert, settings.tls_key)  # type: ignore[arg-type] # checked with the settings
    return context


class MqttListener(NamedTuple):
    """A socket that listens, and what is spoken there."""

    bound_socket: socket.socket
    scheme: str
    """mqtt, mqtts, ws or wss."""

    def __str__(self) -> str:
        host, port = self.bound_socket.getsockname()[:2]
        return f"{self.scheme}://[{host}]:{port}" if ":" in host else f"{self.scheme}://{host}:{port}"


@contextmanager
def open_mqtt_listeners(settings: Settings) -> Iterator[list[MqttListener]]:
    """Where MQTT clients will come in; nobody is let in yet."""
    tls = settings.tls_cert is not None
    wanted = (
        (settings.mqtt, "mqtt", "mqtt"),
        (settings.mqtt_tls, "mqtt-tls", "mqtts"),
        (settings.mqtt_ws, "mqtt-ws", "wss" if tls else "ws"),
    )
    with ExitStack() as stack:
        yield [
            MqttListener(stack.enter_context(open_listener(place, name)), scheme)
            for place, name, scheme in wanted
            if place is not None
        ]


def apply_bound_ports(settings: Settings, listeners: list[MqttListener]) -> Settings:
    """The settings with the ports that we got where any would do: gateways are told them."""
    ports = {each.scheme: each.bound_socket.getsockname()[1] for each in listeners}
    changes = {
        name: listen._replace(port=ports[scheme])
        for name, scheme, listen in (
            ("mqtt", "mqtt", settings.mqtt),
            ("mqtt_tls", "mqtts", settings.mqtt_tls),
            ("mqtt_ws", "ws" if settings.tls_cert is None else "wss", settings.mqtt_ws),
        )
        if listen is not None
    }
    return replace(settings, **changes)
