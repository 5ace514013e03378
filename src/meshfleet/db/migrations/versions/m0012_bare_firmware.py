"""Flag of firmware records whose file is a bare image.

Before, a file of type 1 was a bare image unless it was a zip archive, and a file named .zip had to be one.
The content is not available here, so existing records are classified by their file names.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column and set it for existing records."""
    op.add_column("firmware", sa.Column("bare", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("UPDATE firmware SET bare = true WHERE type = 1 AND lower(file_name) NOT LIKE '%.zip'")
