"""Tables of ingest and backfill other than the samples."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, SmallInteger, Table, Text

from meshfleet.db.tables.columns import RowId, metadata

reading_journal = Table(
    "reading_journal",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("readings", LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # never reused: a new row must not get an id that is about to be deleted
)
"""Heartbeats and radio readings until they are merged into device state and roll-ups."""

foreign_name = Table(
    "foreign_name",
    metadata,
    Column("number", RowId, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
)
"""Names of identifiers that are not in the catalogue, by the number that represents them in samples."""

series = Table(
    "series",
    metadata,
    Column("device", BigInteger, primary_key=True),
    Column("kind", SmallInteger, primary_key=True),
    Column("identifier", BigInteger, primary_key=True),
    Column("time", BigInteger, nullable=False),
    Column("seq", SmallInteger, nullable=False),
    Column("unfilled", SmallInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Series with acknowledged samples: the newest sample, and the number of consecutive gaps never filled.

Written every few seconds, so it may lag behind the samples, which are authoritative.
"""

hole = Table(
    "hole",
    metadata,
    Column("device", BigInteger, primary_key=True),
    Column("kind", SmallInteger, primary_key=True),
    Column("identifier", BigInteger, primary_key=True),
    Column("since", BigInteger, primary_key=True),
    Column("until", BigInteger, nullable=False),
    Column("found_at", BigInteger, nullable=False),
    Column("lost_at", BigInteger),
    sqlite_with_rowid=False,
)
"""Gaps: missing samples of a series between the times of two existing ones, in the order of `seq`.

`lost_at` is the time at which the missing samples were given up; NULL: they are still expected.
"""

reject = Table(
    "reject",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("time", BigInteger, nullable=False),
    Column("gateway", BigInteger),
    Column("topic", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Index(None, "gateway", "id"),
    sqlite_autoincrement=True,
)
"""Newest reports that could not be processed."""
