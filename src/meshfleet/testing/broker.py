"""The embedded broker alone: it forgets everything when it ends, and needs no database."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from meshfleet.errors.protocol import MalformedMac
from meshfleet.mqtt.broker import Account, AccountKind, Broker, StoredState
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.protocol.ids import parse_mac
from meshfleet.rest import Role
from meshfleet.service import clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.mqtt.broker import ReportBatch
    from meshfleet.mqtt.codec.packets import Connect

_DEFAULT_USER: Final = "anybody"

_LIMITS: Final = BrokerLimits(connections_per_account=1000, sessions_per_account=1000)
"""Everybody shares one account."""


class _OpenAuthenticator:
    """Lets everybody in: who comes with a MAC as user name is that gateway, all others are operators."""

    async def authenticate(self, connect: Connect, address: str) -> Account:  # noqa: ARG002 # as the broker asks
        user = connect.user or _DEFAULT_USER
        try:
            return Account(kind=AccountKind.GATEWAY, name=parse_mac(user.lower()))
        except MalformedMac:
            return Account(kind=AccountKind.USER, name=user, role=Role.OPERATOR)

    def on_access_denied(self, account: Account, address: str, action: str, topic: str) -> None:
        """Nobody wants to know."""


class _DiscardingConsumer:
    """Takes no reports, and writes nothing down."""

    async def commit(self, batch: ReportBatch) -> None:
        """What subscribers are owed is in memory, and that is enough here."""


@asynccontextmanager
async def running_broker(prefix: str) -> AsyncIterator[int]:
    """A broker on a free port of the loopback interface, which is given."""
    broker = Broker(
        authenticator=_OpenAuthenticator(),
        consumer=_DiscardingConsumer(),
        consumed_filters=(),
        limits=_LIMITS,
        stored_state=StoredState(sessions={}, subscriptions=[], messages=[], unreleased_ids=[], retained={}),
        owner_token=b"",
        steady_clock=clock.steady,
        wall_clock=clock.now,
        topic_prefix=prefix,
    )
    running = asyncio.create_task(broker.run(), name="broker")
    try:
        await broker.connect_handler.accepting.wait()
        listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        server = await asyncio.get_running_loop().create_server(broker.create_connection, sock=listener)
        try:
            yield listener.getsockname()[1]
        finally:
            server.close()
    finally:
        running.cancel()
        await asyncio.wait((running,))
    if not running.cancelled():
        running.result()
