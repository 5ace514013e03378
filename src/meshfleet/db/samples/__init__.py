"""Where samples are kept: whatever devices reported, for as long as it is wanted.

sample ── what is kept, and what can be asked of a store
in_files ── head ── chunk        on SQLite: a journal, a head in memory, and segments
    ├ segments ── sweep          which are read piece by piece
    └ folder                     and files that nobody knows
in_tables ── copying             on PostgreSQL: a partition for each day
scan, retention                  both, day by day
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
    """The samples that belong to a database; on SQLite they are beside it in that folder."""
    if database.is_sqlite:
        return SqliteSampleStore(database, folder / "samples", retention, now=now)
    return PostgresqlSampleStore(database, retention, now=now)
