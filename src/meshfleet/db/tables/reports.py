"""What ingest and acknowledgements keep beside the samples."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, SmallInteger, Table, Text

from meshfleet.db.tables.columns import RowId, metadata

reading_journal = Table(
    "reading_journal",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("readings", LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # what is written meanwhile must never have a number that is to be forgotten
)
"""Heartbeats and readings of the radio, until they are in states and roll-ups."""

foreign_name = Table(
    "foreign_name",
    metadata,
    Column("number", RowId, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
)
"""Names of identifiers that the catalogue does not know, by the number that stands for each in samples."""

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
"""Series whose samples are acknowledged: the newest sample of each, and how many holes in turn never filled.

Written every other second, so it may lag behind the samples, which decide.
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
"""Where samples of a series are missing: between the times of two that are there, in the order of `seq`.

`lost_at` tells since when nobody expects them any more.
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
"""The newest reports that could not be taken."""
