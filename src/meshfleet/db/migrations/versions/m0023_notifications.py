"""Adds the tables of notifications, and what was announced of each alarm."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables of notifications. Alarms that were opened before are not announced."""
    op.create_table(
        "channel",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=True),
        sa.Column("old_secret", sa.Text(), nullable=True),
        sa.Column("old_secret_until", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("failing_since", sa.BigInteger(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("retry_at", sa.BigInteger(), nullable=True),
        sa.Column("tried_at", sa.BigInteger(), nullable=True),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_channel")),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "notification_route",
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_notification_route")),
    )
    op.create_table(
        "notification",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("channel", sa.BigInteger(), nullable=False),
        sa.Column("alarm", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("hold", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("failed_at", sa.BigInteger(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("carrier", sa.BigInteger(), nullable=True),
        sa.Column("retried_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["alarm"], ["alarm.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["channel"], ["channel.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notification")),
        sqlite_autoincrement=True,
    )
    for name, columns, condition in (
        ("ix_notification_waiting", ["channel", "alarm", "id"], "state = 'waiting'"),
        ("ix_notification_due", ["channel", "due"], "state IN ('held', 'waiting')"),
        ("ix_notification_sent", ["channel", "finished_at"], "state = 'sent'"),
    ):
        op.create_index(
            name,
            "notification",
            columns,
            sqlite_where=sa.text(condition),
            postgresql_where=sa.text(condition),
        )
    op.create_index(op.f("ix_notification_channel_state_id"), "notification", ["channel", "state", "id"])
    op.create_index(op.f("ix_notification_alarm_channel"), "notification", ["alarm", "channel"])
    op.create_index(op.f("ix_notification_carrier"), "notification", ["carrier"])
    op.create_index(op.f("ix_notification_finished_at"), "notification", ["finished_at"])
    op.create_table(
        "channel_alarm",
        sa.Column("channel", sa.BigInteger(), nullable=False),
        sa.Column("alarm", sa.BigInteger(), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("severity", sa.SmallInteger(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("new_members", sa.Integer(), nullable=False),
        sa.Column("acknowledged_at", sa.BigInteger(), nullable=True),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("told_at", sa.BigInteger(), nullable=False),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("check_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["alarm"], ["alarm.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["channel"], ["channel.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("channel", "alarm", name=op.f("pk_channel_alarm")),
    )
    op.create_index(op.f("ix_channel_alarm_alarm"), "channel_alarm", ["alarm"])
    op.create_index(op.f("ix_channel_alarm_check_at"), "channel_alarm", ["check_at"])
    op.add_column("alarm", sa.Column("announced_version", sa.Integer(), nullable=False, server_default="0"))
    for name, kind in (
        ("silenced_until", sa.BigInteger()),
        ("silenced_by", sa.Text()),
        ("facts", sa.Text()),
    ):
        op.add_column("alarm", sa.Column(name, kind, nullable=True))
    op.execute("UPDATE alarm SET announced_version = version")
    not_announced = sa.text("announced_version <> version")
    op.create_index(
        "ix_alarm_not_announced",
        "alarm",
        ["id"],
        sqlite_where=not_announced,
        postgresql_where=not_announced,
    )
    op.create_index(op.f("ix_alarm_silenced_until"), "alarm", ["silenced_until"])
    for name, table, column, condition in (
        ("ix_device_state_low_battery", "device_state", "battery", "battery <= 15"),
        ("ix_hole_lost_at", "hole", "lost_at", "lost_at IS NOT NULL"),
    ):
        op.create_index(
            name, table, [column], sqlite_where=sa.text(condition), postgresql_where=sa.text(condition)
        )
