"""From an address to a connection that the broker has accepted, or to the reason why not."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

from meshfleet.errors import (
    BrokerUnreachable,
    ConnectionLost,
    ConnectionRefused,
    LinkError,
    UntrustedBroker,
)
from meshfleet.link import tls
from meshfleet.link.connection import Connection
from meshfleet.link.websocket import WebSocket
from meshfleet.link.words import words
from meshfleet.wire.mqtt.packets import Accept

if TYPE_CHECKING:
    from meshfleet.link.address import Address
    from meshfleet.link.connection import Owner
    from meshfleet.link.options import Options
    from meshfleet.wire.mqtt.packets import Connack, Connect

_WORDS: Final = {
    Accept.UNACCEPTABLE_PROTOCOL: "it does not speak MQTT 3.1.1",
    Accept.IDENTIFIER_REJECTED: "it does not take the client id",
    Accept.SERVER_UNAVAILABLE: "it is not available now",
    Accept.BAD_CREDENTIALS: "wrong user name or password",
    Accept.NOT_AUTHORIZED: "not authorised",
}


async def dial(
    address: Address, connect: Connect, owner: Owner, options: Options
) -> tuple[Connection, Connack]:
    """Connect, and wait for the broker's answer."""
    connection = Connection(connect, owner, largest=options.largest, ping_interval=options.ping_interval)
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(options.patience):
            transport = await _open(address, connection, options)
            answer = await connection.accepted
        _check(address, connect, answer)
    except BaseException as problem:
        connection.abandon()
        if transport is not None:
            transport.abort()
        if translated := _translated(address, problem, options.patience):
            raise translated from problem
        raise
    return connection, answer


async def _open(address: Address, connection: Connection, options: Options) -> asyncio.Transport:
    protocol: asyncio.BaseProtocol = connection
    if address.path is not None:
        protocol = WebSocket(address, connection)
    trust = (options.tls or tls.system()) if address.tls else None
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: protocol, address.host, address.port, ssl=trust)
    return transport


def _check(address: Address, connect: Connect, answer: Connack) -> None:
    if answer.code != Accept.ACCEPTED:
        raise ConnectionRefused(str(address), answer.code, _WORDS[answer.code])
    if connect.clean and answer.session_present:
        raise ConnectionLost("the broker kept a session that should be clean")  # [MQTT-3.2.2-1]


def _translated(address: Address, problem: BaseException, patience: float) -> LinkError | None:
    match problem:
        case ssl.SSLCertVerificationError():
            return UntrustedBroker(f"{address}: {problem.verify_message}")
        case TimeoutError():
            return BrokerUnreachable(f"{address} does not answer within {patience:g} seconds")
        case OSError() | ConnectionLost():
            return BrokerUnreachable(f"{address}: {words(problem)}")
    return None
