"""Executions that wait are found by their place in the queue, all of a job by state and device.

Those under way have indexes of their own, whose condition is not a list any more: SQLite is slow with lists.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_QUEUED = sa.text("state = 'QUEUED'")
_ACTIVE = sa.text(
    "(state = 'DISPATCHED' OR state = 'TRANSFERRING' OR state = 'VERIFYING' OR state = 'STAGED'"
    " OR state = 'APPLYING' OR state = 'CONFIRMING')"
)


def upgrade() -> None:
    """Make two indexes out of one, and three anew."""
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
