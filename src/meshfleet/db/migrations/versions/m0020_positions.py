"""Adds tables for survey points, calibrations of sites, and single readings of anchors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables `survey_point`, `calibration` and `anchor_reading`."""
    op.create_table(
        "survey_point",
        sa.Column("id", _ROW_ID, autoincrement=False, nullable=False),
        sa.Column("site", sa.BigInteger(), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("floor", sa.SmallInteger(), nullable=False),
        sa.Column("x", sa.Double(), nullable=False),
        sa.Column("y", sa.Double(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("levels", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["site"], ["site.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_survey_point")),
    )
    op.create_index(op.f("ix_survey_point_site_created_at_id"), "survey_point", ["site", "created_at", "id"])
    op.create_table(
        "calibration",
        sa.Column("site", sa.BigInteger(), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("fingerprints", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["site"], ["site.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("site", name=op.f("pk_calibration")),
    )
    op.create_table(
        "anchor_reading",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("arrived_at", sa.BigInteger(), nullable=False),
        sa.Column("readings", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_anchor_reading")),
        sqlite_autoincrement=True,
    )
