"""Adds tables for sites with their floors and plans, for places of devices, and for zones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SORTED = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Create the tables `site`, `floor`, `plan`, `plan_chunk`, `place` and `zone`."""
    _create_site_tables()
    _create_plan_tables()
    _create_tables_on_floors()


def _create_site_tables() -> None:
    op.create_table(
        "site",
        sa.Column("id", _ROW_ID, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_site")),
    )
    op.create_table(
        "floor",
        sa.Column("site", sa.BigInteger(), nullable=False),
        sa.Column("floor", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("min_x", sa.Double(), nullable=False),
        sa.Column("min_y", sa.Double(), nullable=False),
        sa.Column("max_x", sa.Double(), nullable=False),
        sa.Column("max_y", sa.Double(), nullable=False),
        sa.Column("walkable", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["site"], ["site.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("site", "floor", name=op.f("pk_floor")),
    )


def _create_plan_tables() -> None:
    op.create_table(
        "plan",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("site", sa.BigInteger(), nullable=False),
        sa.Column("floor", sa.SmallInteger(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("width", sa.Double(), nullable=False),
        sa.Column("height", sa.Double(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["site", "floor"], ["floor.site", "floor.floor"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plan")),
        sa.UniqueConstraint("site", "floor"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "plan_chunk",
        sa.Column("plan", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["plan"], ["plan.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("plan", "position", name=op.f("pk_plan_chunk")),
    )


def _create_tables_on_floors() -> None:
    op.create_table(
        "place",
        sa.Column("device", _ROW_ID, autoincrement=False, nullable=False),
        sa.Column("site", sa.BigInteger(), nullable=False),
        sa.Column("floor", sa.SmallInteger(), nullable=False),
        sa.Column("x", sa.Double(), nullable=False),
        sa.Column("y", sa.Double(), nullable=False),
        sa.Column("set_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["device.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["site", "floor"], ["floor.site", "floor.floor"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_place")),
    )
    op.create_index(op.f("ix_place_site_device"), "place", ["site", "device"])
    op.create_index(op.f("ix_place_site_floor"), "place", ["site", "floor"])
    op.create_table(
        "zone",
        sa.Column("id", _ROW_ID, autoincrement=False, nullable=False),
        sa.Column("site", sa.BigInteger(), nullable=False),
        sa.Column("floor", sa.SmallInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("name_key", _SORTED, nullable=False),
        sa.Column("polygon", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["site", "floor"], ["floor.site", "floor.floor"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_zone")),
        sa.UniqueConstraint("site", "name_key"),
    )
    op.create_index(op.f("ix_zone_site_floor"), "zone", ["site", "floor"])
