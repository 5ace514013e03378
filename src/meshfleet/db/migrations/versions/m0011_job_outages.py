"""Adds columns that suspend the deadlines of executions in an outage, and a deadline for the last request."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add four columns to executions, and a table for the time at which a process last ran the jobs."""
    for name in ("suspended_at", "resumed_at", "outage_left", "final_until"):
        op.add_column("execution", sa.Column(name, sa.BigInteger(), nullable=True))
    op.create_table(
        "job_engine",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("alive_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_engine")),
    )
