"""Requests to devices."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table, Text, text

from meshfleet.db.tables.columns import metadata

_OPEN = text("finished_at IS NULL")

request = Table(
    "request",
    metadata,
    Column("id", Text, primary_key=True),
    Column("device", BigInteger, nullable=False),
    Column("gateway", BigInteger),
    Column("actor", Text, nullable=False),
    Column("requested_at", BigInteger, nullable=False, index=True),
    Column("finished_at", BigInteger),
    Column("state", Text, nullable=False),
    Column("asked", Text, nullable=False),
    Column("answer", Text),
    Column("problem", Text),
    Column("key", Text, unique=True),
    Column("digest", Text),
    Index(None, "device", "requested_at", "id"),
    Index("ix_request_open", "id", sqlite_where=_OPEN, postgresql_where=_OPEN),
)
"""Requests that somebody sent to devices, and what became of them. Never with a key of a mesh (request-31).

`asked`, `answer` and `problem` are JSON as it is shown. `key` is the idempotency key with whose it is, and
`digest` the request that came with it, both as hashes.
"""
