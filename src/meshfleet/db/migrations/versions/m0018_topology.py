"""Adds a table for the parent changes of devices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Create the table `parent_change`."""
    op.create_table(
        "parent_change",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.BigInteger(), nullable=False),
        sa.Column("previous", sa.BigInteger(), nullable=True),
        sa.Column("gateway", sa.BigInteger(), nullable=False),
        sa.Column("established", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_parent_change")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_parent_change_time"), "parent_change", ["time"])
    op.create_index(op.f("ix_parent_change_device_id"), "parent_change", ["device", "id"])
    op.create_index(op.f("ix_parent_change_gateway_device"), "parent_change", ["gateway", "device"])
