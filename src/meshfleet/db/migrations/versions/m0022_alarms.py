"""Adds the tables of alarms."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables `alarm_condition`, `alarm`, `alarm_event` and `alarm_progress`."""
    op.create_table(
        "alarm_condition",
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("subject", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=True),
        sa.Column("gateway", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("alarm", sa.BigInteger(), nullable=True),
        sa.Column("opens", sa.Integer(), nullable=False),
        sa.Column("remembered_until", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["device"], ["device.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("rule", "subject", name=op.f("pk_alarm_condition")),
    )
    for column in ("device", "gateway", "due", "alarm"):
        op.create_index(op.f(f"ix_alarm_condition_{column}"), "alarm_condition", [column])
    op.create_table(
        "alarm",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("severity", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("gateway", sa.BigInteger(), nullable=True),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("cleared_at", sa.BigInteger(), nullable=True),
        sa.Column("members", sa.Integer(), nullable=False),
        sa.Column("most_members", sa.Integer(), nullable=False),
        sa.Column("affected", sa.Integer(), nullable=False),
        sa.Column("most_affected", sa.Integer(), nullable=False),
        sa.Column("back", sa.Integer(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("recovering_since", sa.BigInteger(), nullable=True),
        sa.Column("acknowledged_by", sa.Text(), nullable=True),
        sa.Column("acknowledged_at", sa.BigInteger(), nullable=True),
        sa.Column("new_members", sa.Integer(), nullable=False),
        sa.Column("reopened", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alarm")),
        sqlite_autoincrement=True,
    )
    open_alarms = sa.text("state <> 'cleared'")
    op.create_index(
        "ix_alarm_open_key",
        "alarm",
        ["key"],
        unique=True,
        sqlite_where=open_alarms,
        postgresql_where=open_alarms,
    )
    op.create_index(op.f("ix_alarm_key_cleared_at"), "alarm", ["key", "cleared_at"])
    op.create_index(op.f("ix_alarm_state_severity_id"), "alarm", ["state", "severity", "id"])
    op.create_index(op.f("ix_alarm_cleared_at"), "alarm", ["cleared_at"])
    op.create_table(
        "alarm_event",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("alarm", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["alarm"], ["alarm.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alarm_event")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_alarm_event_alarm_id"), "alarm_event", ["alarm", "id"])
    op.create_table(
        "alarm_progress",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("evaluated_at", sa.BigInteger(), nullable=False),
        sa.Column("quiet_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alarm_progress")),
    )
