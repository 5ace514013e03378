"""Adds the gateway that reported the last radio reading of a device."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column `radio_gateway`, which is NULL until the next radio reading of the device."""
    op.add_column("device_state", sa.Column("radio_gateway", sa.BigInteger(), nullable=True))
