"""Tables about the service itself: finished backups, and how much disk space each part of the data uses."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Table, Text

from meshfleet.db.tables.columns import metadata

backup = Table(
    "backup",
    metadata,
    Column("finished_at", BigInteger, primary_key=True, autoincrement=False),
    Column("moment", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("has_samples", Boolean, nullable=False),
)
"""Backups that were written and checked. A backup written to a pipe is not checked, and has no row."""

storage_size = Table(
    "storage_size",
    metadata,
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("part", Text, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
)
"""Size in bytes of each part of the data, once per day, for the forecast of the free disk space."""
