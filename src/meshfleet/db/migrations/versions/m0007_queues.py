"""Adds indexes of executions: by position in the queue, and by job, state and device.

The indexes of active executions are rebuilt with a condition of ORs instead of IN, which is slow in SQLite.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

REWRITTEN_TABLE = "execution"

_QUEUED = sa.text("state = 'QUEUED'")
_ACTIVE = sa.text(
    "(state = 'DISPATCHED' OR state = 'TRANSFERRING' OR state = 'VERIFYING' OR state = 'STAGED'"
    " OR state = 'APPLYING' OR state = 'CONFIRMING')"
)


def upgrade() -> None:
    """Replace the index of queued executions by two indexes, and recreate those of active executions."""
    op.drop_index("ix_execution_job_state_wave_due", "execution")
    op.create_index(op.f("ix_execution_job_state_device"), "execution", ["job", "state", "device"])
    op.create_index(
        "ix_execution_queue",
        "execution",
        ["job", "wave", "due"],
        sqlite_where=_QUEUED,
        postgresql_where=_QUEUED,
    )
    for name, column in (("active", "device"), ("at_gateway", "gateway"), ("due", "due")):
        op.drop_index(f"ix_execution_{name}", "execution")
        op.create_index(
            f"ix_execution_{name}",
            "execution",
            [column],
            unique=name == "active",
            sqlite_where=_ACTIVE,
            postgresql_where=_ACTIVE,
        )
