"""Harness of a sample store: writes, reads, and opens it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from meshfleet.db.samples import NO_SEQ, SampleExtras, SampleKind, SampleQuery, StoredSample
from meshfleet.db.samples.postgresql_store import PostgresqlSampleStore
from meshfleet.db.samples.sqlite_store import CompactionLimits, SqliteSampleStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleRow, SampleRows, SampleStore
    from meshfleet.db.samples.sample import Retention

DEVICE, OTHER = 0xD0CF5E000001, 0xD0CF5E000002
NOON = 1_700_049_600_000
"""2023-11-15T12:00:00.000Z"""
HOUR = 3_600_000
DAY = 24 * HOUR
ALL_TIME = {"since": -(2**60), "until": 2**60}
ALL_KINDS = frozenset(SampleKind)

SMALL_LIMITS = CompactionLimits(memtable_samples=1, merge_count=1000)
"""Limits with which everything is flushed and nothing is merged."""


class StoreHarness:
    """Sample store that a test can close and open again at any time."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder / "samples"
        self.limits = SMALL_LIMITS
        self.retention: Retention = {}
        self.now = NOON
        self.store = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def _open(self) -> SampleStore:
        if not self.database.is_sqlite:
            return PostgresqlSampleStore(self.database, self.retention, now=self.now)
        return SqliteSampleStore(self.database, self.folder, self.retention, now=self.now, limits=self.limits)

    def reopen(self, *, limits: CompactionLimits | None = None, retention: Retention | None = None) -> None:
        """Open the store again: everything that was only in memory is lost."""
        self.store.close()
        self.limits = self.limits if limits is None else limits
        self.retention = self.retention if retention is None else retention
        self.store = self._open()

    def commit(self, rows: SampleRows) -> None:
        """Write and commit rows."""
        number = self.database.write_now(self.store.write, rows, self.now)
        self.store.publish_committed(number, rows)

    def write_without_commit(self, rows: SampleRows) -> None:
        """Write rows and roll back."""

        def write(connection: Connection) -> None:
            self.store.write(connection, rows, self.now)
            connection.rollback()

        self.database.write_now(write)

    async def maintain(self, *, after: int = 0) -> None:
        """Run maintenance after some milliseconds."""
        self.now += after
        await self.store.maintain(self.now)

    async def read(self, device: int = DEVICE, **values: Any) -> list[StoredSample]:
        """Read all samples of a device, or those that match the given fields of a query."""
        return await self.store.read(build_query(device, **values), list)

    async def times(self, device: int = DEVICE, **values: Any) -> list[int]:
        """Return the times of the samples."""
        return [sample.time for sample in await self.read(device, **values)]

    def count(self, table: str) -> int:
        """Count the rows of a table."""
        return self.database.read_now(_count_rows, table)

    @property
    def segment_files(self) -> list[str]:
        """Names of the files in the segment directory."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_file())

    @property
    def quarantined_files(self) -> list[str]:
        """Names of the files that were not registered when the store was opened."""
        return sorted(path.name for path in self.folder.glob("unknown/*"))

    @property
    def registered_files(self) -> list[str]:
        """Names of the files that are registered in the database."""
        return sorted(f"{number:08d}.samples" for number in self.database.read_now(_list_segment_numbers))


def build_query(device: int = DEVICE, **values: Any) -> SampleQuery:
    """Return a query for everything, narrowed by the given fields."""
    return SampleQuery(device=device, **({"kinds": ALL_KINDS} | ALL_TIME | values))


def build_row(  # noqa: PLR0913 # keyword-only
    time: int = NOON,
    number: float | None = 1.0,
    *,
    kind: int = SampleKind.MEASUREMENT,
    identifier: int = 0x8800,
    seq: int = NO_SEQ,
    gateway: int = 0xD0CF5E0000FF,
    raw: bytes | None = None,
    more: SampleExtras | None = None,
) -> SampleRow:
    """Build a row of any device."""
    return time, int(kind), identifier, seq, gateway, number, raw, more


def build_stray_row(time: int = NOON, number: float | None = 1.0, **values: Any) -> SampleRow:
    """Build a row with an implausible time."""
    return build_row(time, number, more=SampleExtras(clock=1), **values)


def to_samples(rows: Iterable[SampleRow]) -> list[StoredSample]:
    """Convert rows to samples as they are read."""
    return [StoredSample(*row) for row in rows]


def _count_rows(connection: Connection, table: str) -> int:
    (count,) = connection.exec_driver_sql(f"SELECT count(*) FROM {table}").one()  # noqa: S608 # a test's own table name
    return int(count)


def _list_segment_numbers(connection: Connection) -> list[int]:
    return [number for (number,) in connection.exec_driver_sql("SELECT id FROM sample_segment")]
