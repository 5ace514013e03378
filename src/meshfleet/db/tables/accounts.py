"""Tables of accounts, login sessions, API keys and the audit log."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, LargeBinary, Table, Text

from meshfleet.db.tables.columns import CodePointText, RowId, metadata

secret = Table(
    "secret",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
"""Keys with which the service signs tokens, shared by all processes of a service."""

account = Table(
    "account",
    metadata,
    Column("username", CodePointText, primary_key=True),
    Column("password", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("last_login_at", BigInteger),
)

session = Table(
    "session",
    metadata,
    Column("id", Text, primary_key=True),
    Column(
        "username",
        CodePointText,
        ForeignKey("account.username", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
)
"""Login sessions. The access and refresh tokens of a session are valid only while its row exists."""

api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", CodePointText, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("kind", Text, nullable=False, server_default="program"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("time", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("address", Text),
    Index(None, "time", "id"),
    Index(None, "actor", "time", "id"),
    Index(None, "action", "time", "id"),
    Index(None, "target", "time", "id"),
    sqlite_autoincrement=True,  # ids are never reused, not even after the newest row is deleted
)
