"""Tables for the ingest of reports and the backfill of samples, except the samples themselves."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, SmallInteger, Table, Text, text

from meshfleet.db.tables.columns import RowId, metadata

reading_journal = Table(
    "reading_journal",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("readings", LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # never reused: a new row must not get an id that is about to be deleted
)
"""Heartbeats and radio readings that are not yet included in device states and roll-ups."""

foreign_name = Table(
    "foreign_name",
    metadata,
    Column("number", RowId, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
)
"""Names of identifiers that are not in the catalogue. Samples contain `number` in place of the name."""

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
"""State of each series of acknowledged samples: time and `seq` of the newest sample, and unfilled gaps.

`unfilled` is the number of gaps in a row that were never filled. Rows are written every few seconds, so newer
samples may exist: the stored samples are authoritative.
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
    Index(
        "ix_hole_lost_at",
        "lost_at",
        sqlite_where=text("lost_at IS NOT NULL"),
        postgresql_where=text("lost_at IS NOT NULL"),
    ),
    sqlite_with_rowid=False,
)
"""Gaps in series: according to `seq`, samples are missing between the samples at `since` and at `until`.

`lost_at` is the time at which the missing samples were given up; NULL while the samples are still expected.
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
"""Reports that could not be processed, with the reason. Only the newest such reports are kept."""
