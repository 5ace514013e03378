"""Metadata and column types shared by all tables."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, MetaData, Text

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
)

# SQLite uses an INTEGER PRIMARY KEY, and no other type, as the rowid.
RowId = BigInteger().with_variant(Integer(), "sqlite")
CodePointText = Text().with_variant(Text(collation="C"), "postgresql")
