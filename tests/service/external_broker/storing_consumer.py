"""Somebody who takes reports in tests, and does it when it is told to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace
from sqlalchemy import insert, select

from meshfleet.db.tables import reject
from meshfleet.service.external_broker.client import ExternalBrokerClient
from tests.mqtt.client.scripted_broker import QUICK_OPTIONS, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.mqtt.broker import ReportBatch
    from meshfleet.mqtt.client import BrokerAddress, MqttOptions

PATIENT = replace(QUICK_OPTIONS, retry_first_connect=True)


class StoringConsumer:
    """Commits reports, in a table that has room for any message."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.offered: list[bytes] = []
        """The payloads of all that was to be taken, also of what was not."""
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.failures: list[Exception] = []
        """Raised one after the other."""
        self.repeated = 0
        """How many messages came marked as sent before."""
        self.has_news = False

    async def commit(self, batch: ReportBatch) -> None:
        """Commit a batch, when there is nothing against it."""
        self.offered += [message.payload for message in batch.messages]
        self.repeated += sum(message.dup for message in batch.messages)
        self.has_news |= batch.has_changes
        await self.is_open.wait()
        if self.failures:
            raise self.failures.pop(0)
        await self._database.write(self._put, batch)

    def _put(self, connection: Connection, batch: ReportBatch) -> None:
        row = {"time": 0, "reason": ""}
        rows = [{**row, "topic": each.topic, "payload": each.payload} for each in batch.messages]
        if rows:
            connection.execute(insert(reject), rows)
        batch.write_changes(connection)

    @property
    def committed(self) -> list[bytes]:
        """What is in the database, in its order."""
        query = select(reject.c.payload).order_by(reject.c.id)
        return self._database.read_now(lambda connection: list(connection.execute(query).scalars()))


class RunningClient:
    """Another broker is listened to while a block runs; behind it the session stays at the broker."""

    def __init__(
        self,
        broker: BrokerAddress,
        shelf: StoringConsumer,
        *,
        prefix: str = "",
        options: MqttOptions = PATIENT,
    ) -> None:
        self.client = ExternalBrokerClient(
            broker, "meshfleet0123", prefix=prefix, consumer=shelf, options=options
        )

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.client.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        assert self.task.cancelled() or self.task.exception() is None

    async def until_fine(self) -> Self:
        """Wait until reports come."""
        await wait_until(lambda: self.client.trouble is None)
        return self
