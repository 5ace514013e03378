"""Adds a flag to firmware records whose file is a bare image, not a zip archive.

A migration cannot read the files, so existing records of type 1 are classified by their file names. This is
safe, because a file named .zip was accepted only if it was a zip archive.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column `bare`, and set it for existing firmware records."""
    op.add_column("firmware", sa.Column("bare", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("UPDATE firmware SET bare = true WHERE type = 1 AND lower(file_name) NOT LIKE '%.zip'")
