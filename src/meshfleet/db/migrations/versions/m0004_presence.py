"""Adds tables for the connectivity history of devices and for the gaps in their sample series."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables `connectivity`, `series` and `hole`, and add the usual heartbeat interval."""
    op.add_column("device_state", sa.Column("rhythm", sa.BigInteger(), nullable=True))
    op.create_table(
        "connectivity",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("connected", sa.Boolean(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("gateway", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_connectivity")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_connectivity_time"), "connectivity", ["time"])
    op.create_index(op.f("ix_connectivity_device_id"), "connectivity", ["device", "id"])
    op.create_table(
        "series",
        *_series_key_columns(),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.SmallInteger(), nullable=False),
        sa.Column("unfilled", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device", "kind", "identifier", name=op.f("pk_series")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "hole",
        *_series_key_columns(),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("found_at", sa.BigInteger(), nullable=False),
        sa.Column("lost_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("device", "kind", "identifier", "since", name=op.f("pk_hole")),
        sqlite_with_rowid=False,
    )


def _series_key_columns() -> list[sa.Column[int]]:
    return [
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.Column("identifier", sa.BigInteger(), nullable=False),
    ]
