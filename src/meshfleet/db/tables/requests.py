"""Table of the requests of users to devices."""

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
"""Requests of users to devices and their results. Never contains a mesh key (request-31).

`asked`, `answer` and `problem` are JSON as the REST API returns it. `key` is the hash of the idempotency key
and the account that sent the key. `digest` is the hash of the request sent with the key.
"""
