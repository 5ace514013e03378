"""A store of samples that can be told to fail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sqlalchemy.exc import OperationalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from meshfleet.db.samples import SampleQuery, SampleRow, SampleRows, SampleStore
    from meshfleet.db.samples.sample import Result, SampleConsumer


class FailingStore:
    """The real store. It does its work, and then the database fails, or refuses what was written."""

    def __init__(self, store: SampleStore) -> None:
        self.real = store
        self.failures = 0
        """How many of the next writes fail."""
        self.refuses: Callable[[SampleRow], bool] = lambda _: False
        """Which rows the database will never take."""
        self.on_write: Exception | None = None
        """What each write ends with."""
        self.on_tend: Exception | None = None
        """The same for each time that it is tended."""
        self.has_capacity = asyncio.Event()
        self.has_capacity.set()

    def write(self, transaction: Connection, rows: SampleRows, now: int) -> int:
        """See `SampleStore`."""
        number = self.real.write(transaction, rows, now)
        if self.on_write is not None:
            raise self.on_write
        if self.failures:
            self.failures -= 1
            raise OperationalError("COMMIT", None, ConnectionError("the server is gone"))
        if any(self.refuses(row) for samples in rows.values() for row in samples):
            transaction.exec_driver_sql("INSERT INTO foreign_name (number, name) VALUES (1, NULL)")
        return number

    def publish_committed(self, number: int, rows: SampleRows) -> None:
        """See `SampleStore`."""
        self.real.publish_committed(number, rows)

    async def wait_for_capacity(self) -> None:
        """See `SampleStore`."""
        await self.has_capacity.wait()
        await self.real.wait_for_capacity()

    async def read(self, query: SampleQuery, consume: SampleConsumer[Result]) -> Result:
        """See `SampleStore`."""
        return await self.real.read(query, consume)

    async def ensure_capacity(self, now: int) -> None:
        """See `SampleStore`."""
        await self.real.ensure_capacity(now)

    async def maintain(self, now: int) -> None:
        """See `SampleStore`."""
        if self.on_tend is not None:
            raise self.on_tend
        await self.real.maintain(now)

    def close(self) -> None:
        """See `SampleStore`."""
        self.real.close()
