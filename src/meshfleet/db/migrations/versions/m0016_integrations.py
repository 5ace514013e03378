"""Adds tables for the positions of integrations that read all samples, and for unread samples."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Create the tables `sample_reader` and `sample_log`."""
    op.create_table(
        "sample_reader",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("missed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_sample_reader")),
    )
    op.create_table(
        "sample_log",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("written_at", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("batch", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sample_log")),
    )
    op.create_index(
        op.f("ix_sample_log_id_written_at_samples"), "sample_log", ["id", "written_at", "samples"]
    )
