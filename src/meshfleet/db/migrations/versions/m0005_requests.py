"""Adds the table of requests to devices and their results."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the table `request` and its indexes."""
    op.create_table(
        "request",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("gateway", sa.BigInteger(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_request")),
        sa.UniqueConstraint("key"),
    )
    op.create_index(op.f("ix_request_requested_at"), "request", ["requested_at"])
    op.create_index(op.f("ix_request_device_requested_at_id"), "request", ["device", "requested_at", "id"])
    is_open = sa.text("finished_at IS NULL")
    op.create_index("ix_request_open", "request", ["id"], sqlite_where=is_open, postgresql_where=is_open)
