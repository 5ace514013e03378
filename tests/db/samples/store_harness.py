"""A store on trial: it is written to, dropped and opened again, and asked what it has."""

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
"""Whatever is there is written out, and stays apart."""


class StoreHarness:
    """A store that forgets whatever is not safe as often as the test wants."""

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
        """What is in memory alone is lost, as when the program ends."""
        self.store.close()
        self.limits = self.limits if limits is None else limits
        self.retention = self.retention if retention is None else retention
        self.store = self._open()

    def commit(self, rows: SampleRows) -> None:
        """Write and commit."""
        number = self.database.write_now(self.store.write, rows, self.now)
        self.store.publish_committed(number, rows)

    def write_without_commit(self, rows: SampleRows) -> None:
        """Write, and do not commit."""

        def write(connection: Connection) -> None:
            self.store.write(connection, rows, self.now)
            connection.rollback()

        self.database.write_now(write)

    async def maintain(self, *, after: int = 0) -> None:
        """Let the store put itself in order some milliseconds later."""
        self.now += after
        await self.store.maintain(self.now)

    async def read(self, device: int = DEVICE, **values: Any) -> list[StoredSample]:
        """All that is there, or some of it."""
        return await self.store.read(build_query(device, **values), list)

    async def times(self, device: int = DEVICE, **values: Any) -> list[int]:
        """When the samples are from."""
        return [sample.time for sample in await self.read(device, **values)]

    def count(self, table: str) -> int:
        """How many rows a table has."""
        return self.database.read_now(_count, table)

    @property
    def segment_files(self) -> list[str]:
        """The files in the folder."""
        return sorted(place.name for place in self.folder.iterdir() if place.is_file())

    @property
    def quarantined_files(self) -> list[str]:
        """The files that the database did not know when it was opened."""
        return sorted(place.name for place in self.folder.glob("unknown/*"))

    @property
    def registered_files(self) -> list[str]:
        """The files that the database knows."""
        return sorted(f"{number:08d}.samples" for number in self.database.read_now(_numbers))


def build_query(device: int = DEVICE, **values: Any) -> SampleQuery:
    """A question for everything, or for less."""
    return SampleQuery(device=device, **({"kinds": ALL_KINDS} | ALL_TIME | values))


def build_row(  # noqa: PLR0913 # by name
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
    """A row of any device."""
    return time, int(kind), identifier, seq, gateway, number, raw, more


def build_stray_row(time: int = NOON, number: float | None = 1.0, **values: Any) -> SampleRow:
    """A row whose time is not believed."""
    return build_row(time, number, more=SampleExtras(clock=1), **values)


def to_samples(rows: Iterable[SampleRow]) -> list[StoredSample]:
    """Rows as they are read."""
    return [StoredSample(*each) for each in rows]


def _count(connection: Connection, table: str) -> int:
    (count,) = connection.exec_driver_sql(f"SELECT count(*) FROM {table}").one()  # noqa: S608 # of a test
    return int(count)


def _numbers(connection: Connection) -> list[int]:
    return [number for (number,) in connection.exec_driver_sql("SELECT id FROM sample_segment")]
