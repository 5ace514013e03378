"""Adds the kind of an API key: for programs, or for Home Assistant."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the column `kind`. All keys so far are for programs."""
    op.add_column("api_key", sa.Column("kind", sa.Text(), server_default="program", nullable=False))
