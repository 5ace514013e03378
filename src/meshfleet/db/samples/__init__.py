"""The sample store: every value that devices reported, until its retention ends.

On SQLite a batch of samples is a row of the journal and part of a memtable; full memtables become segment
files, which compaction merges. On PostgreSQL each day has a partition.
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
    """Open the sample store of a database; on SQLite its files are in `folder`/samples."""
    if database.is_sqlite:
        return SqliteSampleStore(database, folder / "samples", retention, now=now)
    return PostgresqlSampleStore(database, retention, now=now)
