"""Adds silences of alarms (maintenance windows), and the conditions of devices that are parked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table of silences, and name the silence of an alarm."""
    op.create_table(
        "silence",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("starts_at", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.Column("check_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_silence")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_silence_check_at"), "silence", ["check_at"])
    op.add_column("alarm", sa.Column("silence", sa.BigInteger(), nullable=True))
    for name, table, column, condition in (
        ("ix_alarm_silence", "alarm", "silence", "silence IS NOT NULL"),
        ("ix_alarm_condition_parked", "alarm_condition", "subject", "cause = 'parked'"),
    ):
        op.create_index(
            name,
            table,
            [column],
            sqlite_where=sa.text(condition),
            postgresql_where=sa.text(condition),
        )
