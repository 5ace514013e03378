"""Adds the tables of the embedded broker: sessions, queued messages, retained messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables of the embedded broker."""
    op.create_table(
        "broker_owner",
        sa.Column("token", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("token", name=op.f("pk_broker_owner")),
    )
    op.create_table(
        "broker_session",
        sa.Column("number", _KEY, autoincrement=False, nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("left_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_broker_session")),
    )
    op.create_table(
        "broker_subscription",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("qos", sa.SmallInteger(), nullable=False),
        _session_foreign_key(),
        sa.PrimaryKeyConstraint("session", "wanted", name=op.f("pk_broker_subscription")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "broker_message",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("packet_id", sa.Integer(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("retain", sa.Boolean(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=True),
        _session_foreign_key(),
        sa.PrimaryKeyConstraint("session", "packet_id", name=op.f("pk_broker_message")),
    )
    op.create_table(
        "broker_received",
        sa.Column("session", sa.BigInteger(), nullable=False),
        sa.Column("packet_id", sa.Integer(), nullable=False),
        _session_foreign_key(),
        sa.PrimaryKeyConstraint("session", "packet_id", name=op.f("pk_broker_received")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "broker_retained",
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("qos", sa.SmallInteger(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("topic", name=op.f("pk_broker_retained")),
    )


def _session_foreign_key() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["session"], ["broker_session.number"], ondelete="CASCADE")
