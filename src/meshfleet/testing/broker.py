"""MQTT broker for tests, which keeps all data in memory."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from meshfleet.errors.protocol import MalformedMac
from meshfleet.mqtt.broker import Account, AccountKind, Broker, StoredState
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.protocol.ids import parse_mac
from meshfleet.rest.accounts import Role
from meshfleet.service import clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.mqtt.broker import ReportBatch
    from meshfleet.mqtt.codec.packets import Connect

_DEFAULT_USER: Final = "anonymous"

_LIMITS: Final = BrokerLimits(connections_per_account=1000, sessions_per_account=1000)
"""Broker limits; high, because all MQTT clients of a test may share one account."""


class _OpenAuthenticator:
    """Accepts every MQTT client: as a gateway if the user name is a MAC, otherwise as an operator."""

    async def authenticate(self, connect: Connect, address: str) -> Account:  # noqa: ARG002 # signature of Authenticator
        user = connect.user or _DEFAULT_USER
        try:
            return Account(kind=AccountKind.GATEWAY, name=parse_mac(user.lower()))
        except MalformedMac:
            return Account(kind=AccountKind.USER, name=user, role=Role.OPERATOR)

    def on_access_denied(self, account: Account, address: str, action: str, topic: str) -> None:
        """Do nothing: refused publishes and subscriptions are not recorded."""


class _DiscardingConsumer:
    """Report consumer that discards all reports."""

    async def commit(self, batch: ReportBatch) -> None:
        """Return at once, so that the broker acknowledges the reports, although they are not stored."""


@asynccontextmanager
async def running_broker(prefix: str) -> AsyncIterator[int]:
    """Run an MQTT broker on a free port of the loopback interface. Yield the port."""
    broker = Broker(
        authenticator=_OpenAuthenticator(),
        consumed_filters=(),
        limits=_LIMITS,
        stored_state=StoredState(sessions={}, subscriptions=[], messages=[], unreleased_ids=[], retained={}),
        owner_token=b"",
        monotonic_clock=clock.monotonic,
        wall_clock=clock.now,
        topic_prefix=prefix,
    )
    broker_task = asyncio.create_task(broker.run(_DiscardingConsumer()), name="broker")
    try:
        await broker.connect_handler.accepting.wait()
        listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        server = await asyncio.get_running_loop().create_server(broker.create_connection, sock=listener)
        try:
            yield listener.getsockname()[1]
        finally:
            server.close()
    finally:
        broker_task.cancel()
        await asyncio.wait((broker_task,))
    if not broker_task.cancelled():
        broker_task.result()
