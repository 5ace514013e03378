"""Adds indexes of the audit log by time, alone and with an actor, an action or a target."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"

REWRITTEN_TABLE = "audit"


def upgrade() -> None:
    """Replace the audit log's indexes by actor and by target, and add indexes by time and by action."""
    for column in ("actor", "target"):
        op.drop_index(f"ix_audit_{column}_id", "audit")
    op.create_index(op.f("ix_audit_time_id"), "audit", ["time", "id"])
    for column in ("actor", "action", "target"):
        op.create_index(op.f(f"ix_audit_{column}_time_id"), "audit", [column, "time", "id"])
