"""Adds tables for finished backups and for the sizes of the parts of the data."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Create the tables `backup` and `storage_size`."""
    op.create_table(
        "backup",
        sa.Column("finished_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("moment", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("has_samples", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("finished_at", name=op.f("pk_backup")),
    )
    op.create_table(
        "storage_size",
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "part", name=op.f("pk_storage_size")),
    )
