"""Sample store that fails on demand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sqlalchemy.exc import OperationalError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import Connection

    from meshfleet.db.samples import SampleQuery, SampleRow, SampleRows, SampleStore
    from meshfleet.db.samples.sample import Result, SampleConsumer, WindowConsumer, WindowQuery
    from meshfleet.db.samples.sample_log import SampleReader


class FailingStore:
    """Wraps a real store: after its work is done, the database fails or refuses the rows."""

    def __init__(self, store: SampleStore) -> None:
        self.real = store
        self.retention = store.retention
        self.failures = 0
        """Number of the next writes that fail."""
        self.refuses: Callable[[SampleRow], bool] = lambda _: False
        """Returns whether the database refuses a row."""
        self.on_write: Exception | None = None
        """Exception of every write; None: no failure."""
        self.on_maintain: Exception | None = None
        """Exception of every maintenance; None: no failure."""
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

    async def read_window(self, query: WindowQuery, consume: WindowConsumer[Result]) -> Result:
        return await self.real.read_window(query, consume)

    async def open_reader(self, name: str) -> SampleReader:
        return await self.real.open_reader(name)

    async def remove_other_readers(self, names: Collection[str]) -> list[str]:
        return await self.real.remove_other_readers(names)

    async def ensure_capacity(self, now: int) -> None:
        """See `SampleStore`."""
        await self.real.ensure_capacity(now)

    async def maintain(self, now: int) -> None:
        """See `SampleStore`."""
        if self.on_maintain is not None:
            raise self.on_maintain
        await self.real.maintain(now)

    def close(self) -> None:
        """See `SampleStore`."""
        self.real.close()
