"""Tables of integrations: how far each one has read the samples, and samples that not all have read."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Table, Text

from meshfleet.db.tables.columns import RowId, metadata

sample_reader = Table(
    "sample_reader",
    metadata,
    Column("name", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("missed", BigInteger, nullable=False),
)
"""Readers of all samples. `position` is the number of the last batch of samples that a reader has processed.

`missed` counts the samples whose retention ended before the reader read them.
"""

sample_log = Table(
    "sample_log",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=False),
    Column("written_at", BigInteger, nullable=False),
    Column("samples", Integer, nullable=False),
    Column("batch", LargeBinary, nullable=False),
    # For the number of unread samples, without reading the batches themselves.
    Index(None, "id", "written_at", "samples"),
)
"""Committed batches of samples that at least one reader has not processed; empty without readers.

On SQLite, batches that are still in the journal are not in this table.
"""
