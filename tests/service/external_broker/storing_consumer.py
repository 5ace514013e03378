"""Consumer of reports whose commits tests can block or fail, and a running client for it."""

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
    """Consumer that commits reports to a table that accepts any message."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.offered: list[bytes] = []
        """Payloads of all received reports, also of uncommitted ones."""
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.failures: list[Exception] = []
        """Errors to raise, one per commit."""
        self.repeated = 0
        """Number of messages with the DUP flag."""
        self.has_state_changes = False

    async def commit(self, batch: ReportBatch) -> None:
        """Commit a batch when `is_open` is set, or raise the next failure."""
        self.offered += [message.payload for message in batch.messages]
        self.repeated += sum(message.dup for message in batch.messages)
        self.has_state_changes |= batch.has_changes
        await self.is_open.wait()
        if self.failures:
            raise self.failures.pop(0)
        await self._database.write(self._insert, batch)

    def _insert(self, connection: Connection, batch: ReportBatch) -> None:
        row = {"time": 0, "reason": ""}
        rows = [{**row, "topic": each.topic, "payload": each.payload} for each in batch.messages]
        if rows:
            connection.execute(insert(reject), rows)
        batch.write_changes(connection)

    @property
    def committed(self) -> list[bytes]:
        """Committed payloads, in the order of their commits."""
        query = select(reject.c.payload).order_by(reject.c.id)
        return self._database.read_now(lambda connection: list(connection.execute(query).scalars()))


class RunningClient:
    """Client of an external broker that runs during a block; afterwards its session stays at the broker."""

    def __init__(
        self,
        broker: BrokerAddress,
        consumer: StoringConsumer,
        *,
        prefix: str = "",
        options: MqttOptions = PATIENT,
    ) -> None:
        self._consumer = consumer
        self.client = ExternalBrokerClient(broker, "meshfleet0123", prefix=prefix, options=options)

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.client.run(self._consumer))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        assert self.task.cancelled() or self.task.exception() is None

    async def wait_until_ready(self) -> Self:
        """Wait until the client is subscribed to reports."""
        await wait_until(lambda: self.client.problem is None)
        return self
