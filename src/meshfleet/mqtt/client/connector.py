"""Opens a connection to an MQTT broker: network, TLS, WebSocket and CONNECT. All errors are `MqttError`s."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from meshfleet import tls
from meshfleet.errors.mqtt import (
    BrokerUnreachable,
    ConnectionLost,
    ConnectionRefused,
    MqttError,
    UntrustedBroker,
)
from meshfleet.mqtt.client.connection import ClientConnection
from meshfleet.mqtt.codec.packets import Connack, Connect, ConnectReturnCode
from meshfleet.mqtt.network_errors import describe_network_error
from meshfleet.mqtt.websocket_transport import SUBPROTOCOL, WEBSOCKETS_LOG, WebSocketTransport

if TYPE_CHECKING:
    from websockets.protocol import Event

    from meshfleet.mqtt.client.address import BrokerAddress
    from meshfleet.mqtt.client.connection import ConnectionListener
    from meshfleet.mqtt.client.options import MqttOptions
    from meshfleet.mqtt.websocket_transport import InnerMqttProtocol


# MQTT inside a WebSocket, client side: sends the upgrade request.

_MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of a received WebSocket frame, which is buffered as a whole. A longer frame ends the
connection."""


class ClientWebSocket(WebSocketTransport):
    """Carries the MQTT connection to a broker in WebSocket frames."""

    _frames: ClientProtocol

    def __init__(self, address: BrokerAddress, inner: InnerMqttProtocol) -> None:
        uri = parse_uri(str(address))
        frames = ClientProtocol(
            uri, subprotocols=[SUBPROTOCOL], max_size=_MAX_FRAME_BYTES, logger=WEBSOCKETS_LOG
        )
        super().__init__(inner, frames)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the WebSocket upgrade request."""
        super().connection_made(transport)
        self._frames.send_request(self._frames.connect())
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the MQTT connection with the error of the upgrade, the WebSocket or the network, if any."""
        super().connection_lost(exc)
        self._is_inner_open = False
        reason = self._error or self._frames.handshake_exc or exc or self._frames.parser_exc
        self._inside.connection_lost(reason)

    def _handle_upgrade(self, event: Event) -> None:  # noqa: ARG002 # the library has parsed it
        if self._frames.handshake_exc is not None:
            return
        if self._frames.subprotocol == SUBPROTOCOL:
            self._start_mqtt_connection()
        else:
            # [MQTT-6.0.0-4]
            self._error = ConnectionLost("the server did not select the WebSocket subprotocol mqtt")

    def _finish(self) -> None:
        if self._error is None:
            self.close()
        else:
            self.abort()  # not an MQTT broker: nothing more to send


_REFUSAL_REASONS: Final = {
    ConnectReturnCode.UNACCEPTABLE_PROTOCOL: "it does not support MQTT 3.1.1",
    ConnectReturnCode.IDENTIFIER_REJECTED: "it rejects the client id",
    ConnectReturnCode.SERVER_UNAVAILABLE: "it is unavailable",
    ConnectReturnCode.BAD_CREDENTIALS: "wrong user name or password",
    ConnectReturnCode.NOT_AUTHORIZED: "not authorized",
}


async def connect_to_broker(
    address: BrokerAddress, connect: Connect, listener: ConnectionListener, options: MqttOptions
) -> tuple[ClientConnection, Connack]:
    """Connect to an MQTT broker and wait for CONNACK. Return the connection and the CONNACK.

    Raises a `MqttError` if the broker is unreachable, is not trusted, or refuses the client.
    """
    connection = ClientConnection(
        connect, listener, max_packet_bytes=options.max_packet_bytes, ping_interval=options.ping_interval
    )
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(options.timeout):
            transport = await _open_transport(address, connection, options)
            connack = await connection.connack
        _check_connack(address, connect, connack)
    except BaseException as error:
        connection.cancel()
        if transport is not None:
            transport.abort()
        if mqtt_error := _to_mqtt_error(address, error, options.timeout):
            raise mqtt_error from error
        raise
    return connection, connack


async def _open_transport(
    address: BrokerAddress, connection: ClientConnection, options: MqttOptions
) -> asyncio.Transport:
    protocol: asyncio.BaseProtocol = connection
    if address.path is not None:
        protocol = ClientWebSocket(address, connection)
    ssl_context = (options.tls or tls.system_tls_context()) if address.tls else None
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: protocol, address.host, address.port, ssl=ssl_context)
    return transport


def _check_connack(address: BrokerAddress, connect: Connect, connack: Connack) -> None:
    """Raise an error if the broker refused the client or kept a session that must be clean."""
    if connack.code != ConnectReturnCode.ACCEPTED:
        raise ConnectionRefused(str(address), connack.code, _REFUSAL_REASONS[connack.code])
    if connect.clean and connack.session_present:
        # [MQTT-3.2.2-1]
        raise ConnectionLost("the broker kept a session although a clean session was requested")


def _to_mqtt_error(address: BrokerAddress, error: BaseException, timeout: float) -> MqttError | None:
    """Convert an error of a connection attempt to a `MqttError`. Return None for any other error."""
    match error:
        case ssl.SSLCertVerificationError():
            return UntrustedBroker(f"{address}: {error.verify_message}")
        case TimeoutError():
            return BrokerUnreachable(f"{address} did not respond within {timeout:g} seconds")
        case OSError() | ConnectionLost():
            return BrokerUnreachable(f"{address}: {describe_network_error(error)}")
    return None
