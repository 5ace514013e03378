"""Adds the table of visits of devices to zones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table `zone_visit`."""
    op.create_table(
        "zone_visit",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("zone", sa.BigInteger(), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("entered_at", sa.BigInteger(), nullable=False),
        sa.Column("left_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["device"], ["device.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["zone"], ["zone.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_zone_visit")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_zone_visit_zone_entered_at_id"), "zone_visit", ["zone", "entered_at", "id"])
    op.create_index(op.f("ix_zone_visit_device"), "zone_visit", ["device"])
    op.create_index(op.f("ix_zone_visit_left_at"), "zone_visit", ["left_at"])
