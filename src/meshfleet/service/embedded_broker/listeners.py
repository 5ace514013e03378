"""Listening sockets of the embedded broker (TCP, TLS and WebSocket), and the tasks that accept clients."""

from __future__ import annotations

import asyncio
import logging
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
    import ssl
    from collections.abc import Callable, Iterator, Sequence

    from meshfleet.mqtt.broker import Broker
    from meshfleet.settings import ListenAddress, Settings


# Accepting connections within the limits of the broker.

_log = logging.getLogger(__name__)

_ACCEPTS_PER_YIELD: Final = 16
"""Maximum connections that are accepted in a row before other tasks run."""

_RETRY_SECONDS: Final = 0.5
"""Seconds to wait after accepting a connection failed, for example because of too many open files."""


async def accept_clients(broker: Broker, listeners: Sequence[MqttListener]) -> None:
    """Accept MQTT clients on all listeners until canceled."""
    async with asyncio.TaskGroup() as tasks:
        for listener in listeners:
            tasks.create_task(_Acceptor(broker, listener).run(), name=f"mqtt {listener}")


class _Acceptor:
    """Accepts the MQTT clients of one listener."""

    def __init__(self, broker: Broker, listener: MqttListener) -> None:
        self._broker = broker
        self._socket = listener.bound_socket
        self._is_websocket = listener.scheme in {"ws", "wss"}
        self._tls = listener.tls

    async def run(self) -> None:
        """Accept connections until canceled. Close a connection that exceeds a connection limit."""
        self._socket.setblocking(False)  # noqa: FBT003 # positional-only parameter
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            for number in count():
                try:
                    client, (address, *_) = await loop.sock_accept(self._socket)
                except OSError as exc:
                    _log.warning(
                        "cannot accept MQTT connections, will retry: %s", describe_network_error(exc)
                    )
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if self._broker.connections.reserve_slot(address):
                    tasks.create_task(self._start_connection(client, address))
                else:
                    client.close()
                if number % _ACCEPTS_PER_YIELD == 0:
                    await asyncio.sleep(0)

    async def _start_connection(self, client: socket.socket, address: str) -> None:
        """Wait until a client may log in, then start its MQTT connection, over TLS if the listener has it.

        Close the connection if too many logins from the network of the client have failed.
        """
        connections = self._broker.connections
        try:
            is_admitted = await connections.wait_for_login_turn(address)
        except asyncio.CancelledError:
            client.close()
            raise
        if not is_admitted:
            client.close()
            connections.release_slot(address)
            connections.rejected_count += 1
            return
        release_slot = partial(connections.release_failed_slot, address)
        handshake_timeout = None if self._tls is None else self._broker.limits.connect_seconds
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._build_protocol(address, release_slot),
                client,
                ssl=self._tls,
                ssl_handshake_timeout=handshake_timeout,
            )
        except OSError:  # ssl.SSLError included
            release_slot()

    def _build_protocol(self, address: str, on_failure: Callable[[], None]) -> asyncio.BaseProtocol:
        connection = self._broker.create_connection(address)
        if not self._is_websocket:
            return connection
        limits = self._broker.limits
        return ServerWebSocket(
            connection,
            buffer=self._broker.read_buffer,
            max_frame_bytes=4 * limits.packet_size,  # clients may put several packets into one frame
            timeout=limits.connect_seconds,
            on_upgrade_failed=on_failure,
        )


class MqttListener(NamedTuple):
    """Listening socket of the broker, and the protocol of its clients."""

    bound_socket: socket.socket
    scheme: str
    """URL scheme: mqtt, mqtts, ws or wss."""
    tls: ssl.SSLContext | None = None
    """TLS context of a listener with mqtts or wss; None without TLS."""

    def __str__(self) -> str:
        host, port = self.bound_socket.getsockname()[:2]
        return f"{self.scheme}://[{host}]:{port}" if ":" in host else f"{self.scheme}://{host}:{port}"


@contextmanager
def open_mqtt_listeners(
    settings: Settings, tls: ssl.SSLContext | None = None
) -> Iterator[list[MqttListener]]:
    """Open the MQTT listening sockets of the settings for the `with` block, without accepting connections.

    `tls` is the TLS context of the service; None if the settings have no certificate.
    """
    with ExitStack() as stack:
        yield [
            MqttListener(
                stack.enter_context(open_listener(address, name.replace("_", "-"))),
                scheme,
                tls if scheme in {"mqtts", "wss"} else None,
            )
            for name, address, scheme in _list_configured(settings)
        ]


def apply_bound_ports(settings: Settings, listeners: list[MqttListener]) -> Settings:
    """Return the settings with the actual ports in place of port 0. Gateways are sent these ports."""
    ports = {each.scheme: each.bound_socket.getsockname()[1] for each in listeners}
    changes = {
        name: address._replace(port=ports[scheme]) for name, address, scheme in _list_configured(settings)
    }
    return replace(settings, **changes)


def _list_configured(settings: Settings) -> Iterator[tuple[str, ListenAddress, str]]:
    """Yield the name, the address and the URL scheme of each MQTT listener that the settings turn on."""
    websocket_scheme = "ws" if settings.tls_cert is None else "wss"
    for name, scheme in (("mqtt", "mqtt"), ("mqtt_tls", "mqtts"), ("mqtt_ws", websocket_scheme)):
        if (address := getattr(settings, name)) is not None:
            yield name, address, scheme
