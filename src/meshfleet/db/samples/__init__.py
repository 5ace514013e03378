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

from meshfleet.db.samples.in_files import SamplesInFiles
from meshfleet.db.samples.in_tables import SamplesInTables
from meshfleet.db.samples.sample import (
    DAY,
    NO_SEQ,
    Clock,
    Identity,
    More,
    Row,
    Rows,
    Sample,
    SampleKind,
    SampleStore,
    Wanted,
)

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db.database import Database
    from meshfleet.db.samples.retention import Retention

__all__ = [
    "DAY",
    "NO_SEQ",
    "Clock",
    "Identity",
    "More",
    "Row",
    "Rows",
    "Sample",
    "SampleKind",
    "SampleStore",
    "Wanted",
    "open_samples",
]


def open_samples(database: Database, folder: Path, retention: Retention, *, now: int) -> SampleStore:
    """The samples that belong to a database; on SQLite they are beside it in that folder."""
    if database.is_sqlite:
        return SamplesInFiles(database, folder / "samples", retention, now=now)
    return SamplesInTables(database, retention, now=now)
