"""Adds the tables of ingest: samples, reported device state, rejected reports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_TIMES = ("status", "radio", "battery", "gateway", "model", "variant", "firmware", "hardware")

_SQLITE = (
    # Received batches of samples that no segment contains yet.
    "CREATE TABLE sample_journal (id INTEGER PRIMARY KEY, batch BLOB NOT NULL)",
    # Segment files, each with samples of one day; `day` is NULL for samples with an implausible time.
    # `origin` is the lowest id among the files from which a file was merged. Ids are never reused: a file
    # with a lower id than the newest that is not registered here is no longer needed.
    """CREATE TABLE sample_segment (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        day INTEGER,
        level INTEGER NOT NULL,
        samples INTEGER NOT NULL,
        kinds INTEGER NOT NULL,
        written_at INTEGER NOT NULL,
        origin INTEGER NOT NULL
    )""",
)

_COLUMNS = """
    device bigint NOT NULL,
    time bigint NOT NULL,
    gateway bigint NOT NULL,
    identifier bigint NOT NULL,
    number double precision,
    kind smallint NOT NULL,
    seq smallint NOT NULL,
    raw bytea,
    text text COLLATE "C",
    ext text COLLATE "C",
    error bigint,
    error_ext bigint,
"""
_IDENTITY = "PRIMARY KEY (device, kind, identifier, time, seq)"
_POSTGRESQL = (
    f"CREATE TABLE sample ({_COLUMNS} CONSTRAINT pk_sample {_IDENTITY}) PARTITION BY LIST (kind)",
    # Reported samples, and values per minute rolled up from other reports; their retention differs. Each has
    # a partition per day, created in advance or with the first sample of the day.
    "CREATE TABLE sample_reported PARTITION OF sample FOR VALUES IN (0, 1, 2, 3) PARTITION BY RANGE (time)",
    "CREATE TABLE sample_rolled PARTITION OF sample FOR VALUES IN (4, 5) PARTITION BY RANGE (time)",
    f"""CREATE TABLE sample_stray ({_COLUMNS}
        clock smallint NOT NULL,
        received_at bigint NOT NULL,
        CONSTRAINT pk_sample_stray {_IDENTITY})""",
)


def upgrade() -> None:
    """Create the tables of ingest, and add the columns of reported device state."""
    for name in _TIMES:
        op.add_column("device_state", sa.Column(f"{name}_at", sa.BigInteger(), nullable=True))
    op.add_column("gateway", sa.Column("broker_hash", sa.Text(), nullable=True))
    op.create_table(
        "reading_journal",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("readings", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reading_journal")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "foreign_name",
        sa.Column("number", _KEY, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_foreign_name")),
    )
    op.create_table(
        "reject",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("gateway", sa.BigInteger(), nullable=True),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reject")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_reject_gateway_id"), "reject", ["gateway", "id"])
    for statement in _SQLITE if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL:
        op.execute(statement)
