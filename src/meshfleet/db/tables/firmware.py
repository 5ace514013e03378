"""Tables of firmware records and images."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from meshfleet.db.tables.columns import CodePointText, metadata

firmware = Table(
    "firmware",
    metadata,
    Column("id", Text, primary_key=True),
    Column("model", Integer, nullable=False),
    Column("version", CodePointText, nullable=False),
    Column("type", SmallInteger, nullable=False),
    Column("bare", Boolean, nullable=False, server_default=false()),
    Column("file_name", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", LargeBinary, nullable=False, index=True),
    Column("hardware", Text, nullable=False),
    Column("min_version", Text),
    Column("notes", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("released_at", BigInteger),
    UniqueConstraint("model", "version"),
    Index(None, "created_at", "id"),
)
"""Firmware records.

`hardware` is a JSON list of the supported hardware versions, each of three parts; empty if all are supported.
"""

image_chunk = Table(
    "image_chunk",
    metadata,
    Column("sha256", LargeBinary, primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("content", LargeBinary, nullable=False),
)
"""Firmware images on PostgreSQL, in pieces ordered by `place` (rest-174). With SQLite, images are files."""
