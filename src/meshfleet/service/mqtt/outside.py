"""Reports from another broker, in the place of the embedded one.

The broker keeps a session for us: what it has sent it sends again until we acknowledge it, and we do so when
the database has committed it (broker-22). So a service that stops, crashes or waits for its database loses
nothing; what comes twice is recognised where reports are stored.

What is not committed is held here only up to a limit. Beyond it nothing is read from the network, and the
reports wait at the broker.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from meshfleet.broker import Batch
from meshfleet.broker.changes import Changes
from meshfleet.errors import DatabaseUnavailable, LinkClosed, SubscriptionRefused
from meshfleet.link import Delays, Link, Options
from meshfleet.link.tls import context
from meshfleet.service.secrets import obtain
from meshfleet.wire.topics import Topics

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.broker import Consumer
    from meshfleet.link import Address
    from meshfleet.settings import Settings

_log = logging.getLogger(__name__)

_BACKLOG: Final = 1024 * 1024
"""Bytes of reports that wait for their turn, with as many again in the commit before: some thousand usual
ones. The tiniest, which only somebody who means harm would send, take a hundred times as much in memory."""

_RETURN: Final = Delays(most=10.0)
"""One service in front of a broker is no crowd: it may try more often than a fleet."""

_COMMIT: Final = Delays(first=0.1, most=5.0)
"""Between two tries when the database does not answer."""


def options_of(settings: Settings) -> Options:
    """How to connect to the broker that is set."""
    return Options(
        tls=None if settings.broker_ca is None else context(authorities=settings.broker_ca),
        patient=True,
        delays=_RETURN,
        backlog=_BACKLOG,
        largest=settings.limits.packet_size,
    )


def client_id(connection: Connection) -> str:
    """The name of our session: the same for the same database, and nobody else's.

    As every broker must take it: 23 letters and digits. Who knew it could throw us out of a broker that lets
    clients choose their names, so it cannot be guessed.
    """
    return f"meshfleet{obtain(connection, 'mqtt-client').hex()[:14]}"


class Outside:
    """Takes reports from another broker, and acknowledges what is committed."""

    def __init__(
        self, address: Address, client_id: str, *, prefix: str, consumer: Consumer, options: Options
    ) -> None:
        self._link = Link(address, client_id, clean=False, options=options)
        self._reports = Topics(prefix).reports()
        self._pauses = options.delays
        self._consumer = consumer
        self._unsubscribed: str | None = f"{address} does not send reports yet"
        self._uncommitted: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why no reports are taken at the moment; None: all is well."""
        if self._uncommitted is not None:
            return self._uncommitted
        if self._link.trouble is not None and not isinstance(self._link.trouble, LinkClosed):
            return str(self._link.trouble)
        return self._unsubscribed

    async def run(self) -> None:
        """Take reports until cancelled. A broker that is away, or refuses us, is waited for."""
        async with self._link, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._subscribe(), name="outside.subscribe")
            tasks.create_task(self._receive(), name="outside.receive")

    async def _subscribe(self) -> None:
        """Ask for reports until the broker sends them; the link asks again when the broker forgets."""
        for pause in self._pauses:
            try:
                await self._link.subscribe(self._reports)
            except SubscriptionRefused as exc:
                if str(exc) != self._unsubscribed:
                    _log.error("no reports come: %s", exc)
                self._unsubscribed = str(exc)
            else:
                self._unsubscribed = None
                return
            await asyncio.sleep(pause)

    async def _receive(self) -> None:
        async for received in self._link:
            await self._commit(Batch(received.messages, Changes(), b""))
            received.acknowledge()

    async def _commit(self, batch: Batch) -> None:
        """Try until it is committed; until then nothing is acknowledged, and nothing is lost."""
        for pause in _COMMIT:
            try:
                await self._consumer.take(batch)
            except DatabaseUnavailable as exc:
                if self._uncommitted is None:
                    _log.error("cannot commit, reports wait at the broker: %s", exc)
                self._uncommitted = str(exc)
            else:
                self._uncommitted = None
                return
            await asyncio.sleep(pause)
