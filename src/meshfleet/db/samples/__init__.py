"""Sample store: keeps every value that devices reported until its retention ends.

On SQLite, new samples are in a journal (a table) and in a memtable (in memory). A full memtable is written to
segment files, which compaction merges. On PostgreSQL, samples are in a table with a partition for each day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.db.samples.postgresql_store import PostgresqlSampleStore
from meshfleet.db.samples.sample import (
    DAY_MS,
    NO_SEQ,
    ClockFlag,
    SampleExtras,
    SampleIdentity,
    SampleKind,
    SampleQuery,
    SampleRow,
    SampleRows,
    SampleStore,
    StoredSample,
)
from meshfleet.db.samples.sqlite_store import SqliteSampleStore

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db.database import Database
    from meshfleet.db.samples.sample import Retention

__all__ = [
    "DAY_MS",
    "NO_SEQ",
    "ClockFlag",
    "SampleExtras",
    "SampleIdentity",
    "SampleKind",
    "SampleQuery",
    "SampleRow",
    "SampleRows",
    "SampleStore",
    "StoredSample",
    "open_sample_store",
]


def open_sample_store(database: Database, folder: Path, retention: Retention, *, now: int) -> SampleStore:
    """Open the sample store of a database; on SQLite, segment files are in `folder`/samples."""
    if database.is_sqlite:
        return SqliteSampleStore(database, folder / "samples", retention, now=now)
    return PostgresqlSampleStore(database, retention, now=now)
