"""The embedded broker alone: it forgets everything when it ends, and needs no database."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from meshfleet.broker import Account, Broker, Kind, Saved
from meshfleet.errors import MalformedMac
from meshfleet.service import clock
from meshfleet.settings import Limits
from meshfleet.wire.ids import parse_mac
from meshfleet.wire.rest import Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.broker import Batch
    from meshfleet.wire.mqtt.packets import Connect

_ANYBODY: Final = "anybody"

_LIMITS: Final = Limits(connections_per_account=1000, sessions_per_account=1000)
"""Everybody shares one account."""


class _Door:
    """Lets everybody in: who comes with a MAC as user name is that gateway, all others are operators."""

    async def admit(self, connect: Connect, address: str) -> Account:  # noqa: ARG002 # as the broker asks
        user = connect.user or _ANYBODY
        try:
            return Account(kind=Kind.GATEWAY, name=parse_mac(user.lower()))
        except MalformedMac:
            return Account(kind=Kind.PERSON, name=user, role=Role.OPERATOR)

    def forbidden(self, account: Account, address: str, deed: str, topic: str) -> None:
        """Nobody wants to know."""


class _Consumer:
    """Takes no reports, and writes nothing down."""

    async def take(self, batch: Batch) -> None:
        """What subscribers are owed is in memory, and that is enough here."""


@asynccontextmanager
async def running_broker(prefix: str) -> AsyncIterator[int]:
    """A broker on a free port of the loopback interface, which is given."""
    broker = Broker(
        door=_Door(),
        consumer=_Consumer(),
        consumed=(),
        limits=_LIMITS,
        saved=Saved(sessions={}, subscriptions=[], messages=[], received=[], retained={}),
        owner=b"",
        now=clock.steady,
        wall=clock.now,
        prefix=prefix,
    )
    running = asyncio.create_task(broker.run(), name="broker")
    try:
        await broker.lobby.is_open.wait()
        listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        server = await asyncio.get_running_loop().create_server(broker.connection, sock=listener)
        try:
            yield listener.getsockname()[1]
        finally:
            server.close()
    finally:
        running.cancel()
        await asyncio.wait((running,))
    if not running.cancelled():
        running.result()
