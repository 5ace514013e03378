"""Adds the number of devices, their availability by hour, and what each user has seen of the alarms."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0023"

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables, and count the devices once. Events before the upgrade count as seen."""
    op.create_table(
        "fleet_count",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("devices", sa.BigInteger(), nullable=False),
        sa.Column("connected", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fleet_count")),
        sqlite_autoincrement=True,
    )
    op.execute(
        "INSERT INTO fleet_count (devices, connected)"
        " SELECT count(*), coalesce(sum(CASE WHEN connected THEN 1 ELSE 0 END), 0) FROM device"
    )
    op.create_table(
        "availability",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("known_ms", sa.BigInteger(), nullable=False),
        sa.Column("device_ms", sa.BigInteger(), nullable=False),
        sa.Column("online_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=False),
        sa.Column("devices_end", sa.BigInteger(), nullable=False),
        sa.Column("online_end", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hour", name=op.f("pk_availability")),
    )
    op.create_table(
        "alarm_seen",
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("event", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["username"], ["account.username"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("username", name=op.f("pk_alarm_seen")),
    )
    op.execute(
        "INSERT INTO alarm_seen (username, event)"
        " SELECT username, (SELECT max(id) FROM alarm_event) FROM account"
        " WHERE EXISTS (SELECT 1 FROM alarm_event)"
    )
    for name, column, condition in (
        ("ix_alarm_event_news", "id", "kind IN ('opened', 'reopened', 'severity', 'cleared')"),
        ("ix_alarm_event_opened", "time", "kind IN ('opened', 'reopened')"),
    ):
        op.create_index(
            name,
            "alarm_event",
            [column],
            sqlite_where=sa.text(condition),
            postgresql_where=sa.text(condition),
        )
    op.create_index(op.f("ix_job_started_at"), "job", ["started_at"])
