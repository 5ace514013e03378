"""The gateway that brought the last reading of the radio is kept with it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add a column. Until the next reading of a device nobody knows which gateway brought the last one."""
    op.add_column("device_state", sa.Column("radio_gateway", sa.BigInteger(), nullable=True))
