"""Adds the tables of firmware records and update jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SORTED = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_OPEN = sa.text("finished_at IS NULL")
_ACTIVE = sa.text("state IN ('DISPATCHED', 'TRANSFERRING', 'VERIFYING', 'STAGED', 'APPLYING', 'CONFIRMING')")
_IN_LINE = sa.text("waiting = 'gateway-busy'")
_TOGETHER = sa.text("batch IS NOT NULL")
_AGAIN = sa.text("state = 'QUEUED' AND expires IS NOT NULL")


def upgrade() -> None:
    """Create the tables of firmware records and update jobs."""
    _create_firmware_tables()
    _create_job_tables()
    _create_execution_tables()
    _create_history_tables()
    _create_outbox_tables()


def _create_firmware_tables() -> None:
    op.create_table(
        "firmware",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("model", sa.Integer(), nullable=False),
        sa.Column("version", _SORTED, nullable=False),
        sa.Column("type", sa.SmallInteger(), nullable=False),
        sa.Column("file_name", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("min_version", sa.Text(), nullable=True),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("released_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_firmware")),
        sa.UniqueConstraint("model", "version"),
    )
    op.create_index(op.f("ix_firmware_created_at_id"), "firmware", ["created_at", "id"])
    op.create_index(op.f("ix_firmware_sha256"), "firmware", ["sha256"])
    op.create_table(
        "image_chunk",
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", "place", name=op.f("pk_image_chunk")),
    )


def _create_job_tables() -> None:
    op.create_table(
        "job_draft",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_draft")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "job",
        sa.Column("id", _KEY, autoincrement=False, nullable=False),
        sa.Column("firmware", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("stop_cause", sa.Text(), nullable=True),
        sa.Column("pause_reason", sa.Text(), nullable=True),
        sa.Column("start_at", sa.BigInteger(), nullable=True),
        sa.Column("deadline", sa.BigInteger(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("waves", sa.Text(), nullable=False),
        sa.Column("wave", sa.Integer(), nullable=False),
        sa.Column("soaks_until", sa.BigInteger(), nullable=True),
        sa.Column("paced_until", sa.BigInteger(), nullable=False),
        sa.Column("queue_until", sa.BigInteger(), nullable=True),
        sa.Column("applied_at", sa.BigInteger(), nullable=True),
        sa.Column("armed", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("parent", sa.BigInteger(), nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["firmware"],
            ["firmware.id"],
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
        sa.UniqueConstraint("key"),
    )
    op.create_index(op.f("ix_job_firmware"), "job", ["firmware"])
    op.create_index("ix_job_open", "job", ["id"], sqlite_where=_OPEN, postgresql_where=_OPEN)


def _create_execution_tables() -> None:
    op.create_table(
        "execution",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("wave", sa.Integer(), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("method", sa.Text(), nullable=True),
        sa.Column("gateway", sa.BigInteger(), nullable=True),
        sa.Column("from_version", sa.Text(), nullable=True),
        sa.Column("progress", sa.SmallInteger(), nullable=False),
        sa.Column("waiting", sa.Text(), nullable=True),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("step", sa.Text(), nullable=True),
        sa.Column("ask", sa.Text(), nullable=True),
        sa.Column("tries", sa.SmallInteger(), nullable=False),
        sa.Column("batch", sa.Text(), nullable=True),
        sa.Column("expires", sa.BigInteger(), nullable=True),
        sa.Column("total_until", sa.BigInteger(), nullable=True),
        sa.Column("moved_at", sa.BigInteger(), nullable=True),
        sa.Column("status_before", sa.Integer(), nullable=True),
        sa.Column("beat_at", sa.BigInteger(), nullable=True),
        sa.Column("beats", sa.SmallInteger(), nullable=False),
        sa.Column("is_read", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job", "device", name=op.f("pk_execution")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_execution_active",
        "execution",
        ["device"],
        unique=True,
        sqlite_where=_ACTIVE,
        postgresql_where=_ACTIVE,
    )
    op.create_index(
        "ix_execution_batch", "execution", ["batch"], sqlite_where=_TOGETHER, postgresql_where=_TOGETHER
    )
    op.create_index(
        "ix_execution_again", "execution", ["expires"], sqlite_where=_AGAIN, postgresql_where=_AGAIN
    )
    op.create_index(
        "ix_execution_at_gateway", "execution", ["gateway"], sqlite_where=_ACTIVE, postgresql_where=_ACTIVE
    )
    op.create_index("ix_execution_due", "execution", ["due"], sqlite_where=_ACTIVE, postgresql_where=_ACTIVE)
    op.create_index(
        "ix_execution_in_line",
        "execution",
        ["gateway", "due"],
        sqlite_where=_IN_LINE,
        postgresql_where=_IN_LINE,
    )
    op.create_index(op.f("ix_execution_job_state_wave_due"), "execution", ["job", "state", "wave", "due"])
    op.create_table(
        "tally",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("wave", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job", "wave", "state", name=op.f("pk_tally")),
        sqlite_with_rowid=False,
    )


def _create_history_tables() -> None:
    op.create_table(
        "evidence",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evidence")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_evidence_job_device_id"), "evidence", ["job", "device", "id"])
    op.create_table(
        "transition",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=True),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("evidence", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_transition")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_transition_job_device_id"), "transition", ["job", "device", "id"])


def _create_outbox_tables() -> None:
    op.create_table(
        "job_outbox",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("gateway", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.BigInteger(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("identifier", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=True),
        sa.Column("taken_until", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_outbox")),
    )
    op.create_index(op.f("ix_job_outbox_job_device"), "job_outbox", ["job", "device"])
    op.create_index(op.f("ix_job_outbox_taken_until"), "job_outbox", ["taken_until"])
    op.create_table(
        "pace",
        sa.Column("gateway", sa.BigInteger(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("rate", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("gateway", "method", name=op.f("pk_pace")),
        sqlite_with_rowid=False,
    )
