"""Firmware records say whether their image is a bare one.

Until now a file of type 1 was taken for a bare image when it was no zip, and one called .zip had to be a zip.
The content is not at hand here, so older records are judged by the names of their files.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column, and fill it for older records."""
    op.add_column("firmware", sa.Column("bare", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("UPDATE firmware SET bare = true WHERE type = 1 AND lower(file_name) NOT LIKE '%.zip'")
