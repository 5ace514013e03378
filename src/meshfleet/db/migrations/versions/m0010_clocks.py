"""Adds the offset of each gateway's clock, and the time correction of samples from a wrong clock."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the columns `clock_offset` and `shift`. On SQLite, the format of sample files needs no change."""
    op.add_column("gateway", sa.Column("clock_offset", sa.BigInteger(), nullable=True))
    if op.get_bind().dialect.name == "postgresql":
        # A column without a default is added to all partitions without rewriting them.
        for table in ("sample", "sample_stray"):
            op.execute(f"ALTER TABLE {table} ADD COLUMN shift bigint")
