"""Update jobs."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    text,
)

from meshfleet.db.tables.columns import RowId, metadata

job_draft = Table(
    "job_draft",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("created_at", BigInteger, nullable=False),
    sqlite_autoincrement=True,  # what a broken-off draft left behind must never belong to another job
)
"""Jobs whose targets are being written down. Nobody sees them; the number will be that of the job.

With 0 as `created_at`: a draft that was broken off, or a deleted job, of which rows are still to be removed.
"""

_IS_OPEN = text("finished_at IS NULL")

job = Table(
    "job",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=False),
    Column("firmware", Text, ForeignKey("firmware.id"), nullable=False, index=True),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("outcome", Text),
    Column("stop_cause", Text),
    Column("pause_reason", Text),
    Column("start_at", BigInteger),
    Column("deadline", BigInteger),
    Column("seed", BigInteger, nullable=False),
    Column("waves", Text, nullable=False),
    Column("wave", Integer, nullable=False),
    Column("soaks_until", BigInteger),
    Column("paced_until", BigInteger, nullable=False),
    Column("queue_until", BigInteger),
    Column("applied_at", BigInteger),
    Column("armed", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("parent", BigInteger),
    Column("key", Text, unique=True),
    Column("digest", Text),
    Index("ix_job_open", "id", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
)
"""Jobs.

`body` is the order as JSON, `waves` the waves as they fell, and `wave` the number of the one that runs.
`armed` holds the counts from which abort criteria count, since somebody has resumed the job. `paced_until`
is up to when the rate is used up; `queue_until` ends the patience with what was never begun.
"""

_ACTIVE_STATES = ("DISPATCHED", "TRANSFERRING", "VERIFYING", "STAGED", "APPLYING", "CONFIRMING")


def active_condition(state: str = "state") -> str:
    """Whether an execution is under way, in statements: word for word as in the indexes of only these.

    One by one, not as a list: of that SQLite makes a table, for each row that changes and each such index.
    """
    return "(" + " OR ".join(f"{state} = '{each}'" for each in _ACTIVE_STATES) + ")"


_IS_ACTIVE = text(active_condition())

_IS_WAITING_FOR_GATEWAY = text("waiting = 'gateway-busy'")

_IS_BATCHED = text("batch IS NOT NULL")
_IS_QUEUED = text("state = 'QUEUED'")
_IS_RETRY = text("state = 'QUEUED' AND expires IS NOT NULL")

execution = Table(
    "execution",
    metadata,
    Column("job", BigInteger, primary_key=True),
    Column("device", BigInteger, primary_key=True),
    Column("state", Text, nullable=False),
    Column("wave", Integer, nullable=False),
    Column("due", BigInteger, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("method", Text),
    Column("gateway", BigInteger),
    Column("from_version", Text),
    Column("progress", SmallInteger, nullable=False),
    Column("waiting", Text),
    Column("code", Text),
    Column("reason", Text),
    Column("step", Text),
    Column("ask", Text),
    Column("tries", SmallInteger, nullable=False),
    Column("batch", Text),
    Column("expires", BigInteger),
    Column("total_until", BigInteger),
    Column("moved_at", BigInteger),
    Column("status_before", Integer),
    Column("beat_at", BigInteger),
    Column("beats", SmallInteger, nullable=False),
    Column("is_read", Boolean, nullable=False),
    Column("started_at", BigInteger),
    Column("updated_at", BigInteger, nullable=False),
    Column("version", Integer, nullable=False),
    Column("suspended_at", BigInteger),
    Column("resumed_at", BigInteger),
    Column("outage_left", BigInteger),
    Column("final_until", BigInteger),
    Index(None, "job", "state", "device"),
    Index("ix_execution_queue", "job", "wave", "due", sqlite_where=_IS_QUEUED, postgresql_where=_IS_QUEUED),
    # A device is in one update at a time, whatever any program believes (rest-142).
    Index(
        "ix_execution_active",
        "device",
        unique=True,
        sqlite_where=_IS_ACTIVE,
        postgresql_where=_IS_ACTIVE,
    ),
    Index("ix_execution_at_gateway", "gateway", sqlite_where=_IS_ACTIVE, postgresql_where=_IS_ACTIVE),
    Index("ix_execution_due", "due", sqlite_where=_IS_ACTIVE, postgresql_where=_IS_ACTIVE),
    Index(
        "ix_execution_in_line",
        "gateway",
        "due",
        sqlite_where=_IS_WAITING_FOR_GATEWAY,
        postgresql_where=_IS_WAITING_FOR_GATEWAY,
    ),
    Index("ix_execution_batch", "batch", sqlite_where=_IS_BATCHED, postgresql_where=_IS_BATCHED),
    Index("ix_execution_again", "expires", sqlite_where=_IS_RETRY, postgresql_where=_IS_RETRY),
    sqlite_with_rowid=False,
)
"""The part of one device in a job.

`due` tells when to look at it again; of one that was never looked at it is its place in the queue, which is
before any time. `wave` is -1 for who was left out from the beginning. `ask` is the request that is on its
way for it. `expires` ends its state, `total_until` all states together. `beat_at` is the last heartbeat that
was counted, by the clock of whoever reported it; `beats` how many good ones came in a row, and `is_read`
tells that the version was read back and is the right one.

While nothing can be sent to its gateway, `suspended_at` holds since when its clocks stand still, and
`outage_left` for how many milliseconds they still may (NULL: as long as the job lets executions queue).
`resumed_at` is when they last went on after an outage. `final_until` ends the wait for the answer to the last
question before it is given up.
"""

tally = Table(
    "tally",
    metadata,
    Column("job", BigInteger, primary_key=True),
    Column("wave", Integer, primary_key=True),
    Column("state", Text, primary_key=True),
    Column("count", Integer, nullable=False),
    sqlite_with_rowid=False,
)
"""How many executions are in which state, written with every transition."""

evidence = Table(
    "evidence",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("job", BigInteger, nullable=False),
    Column("device", BigInteger, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("content", Text, nullable=False),
    Index(None, "job", "device", "id"),
    sqlite_autoincrement=True,
)
"""Reports and responses that moved executions, or came too late to do so. `content` is JSON."""

transition = Table(
    "transition",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("job", BigInteger, nullable=False),
    Column("device", BigInteger),
    Column("time", BigInteger, nullable=False),
    Column("before", Text),
    Column("after", Text, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("version", Integer, nullable=False),
    Column("actor", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("evidence", BigInteger),
    Index(None, "job", "device", "id"),
    sqlite_autoincrement=True,
)
"""Every step of every execution, and of jobs themselves, which have no device."""

job_outbox = Table(
    "job_outbox",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job", BigInteger, nullable=False),
    Column("device", BigInteger, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("step", Text, nullable=False),
    Column("gateway", BigInteger, nullable=False),
    Column("target", BigInteger, nullable=False),
    Column("operation", Text, nullable=False),
    Column("identifier", Text, nullable=False),
    Column("value", Text),
    Column("taken_until", BigInteger, index=True),
    Index(None, "job", "device"),
)
"""Requests of jobs that are to be sent, or were sent and are not answered.

A runner that sends one says until when it waits for the answer; what is older was left behind by one that
has ended, and nobody knows whether it was sent.
"""

job_engine = Table(
    "job_engine",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("alive_at", BigInteger, nullable=False),
)
"""One row: when a program last ran the jobs of this database, by the clock that timeouts use."""

pace = Table(
    "pace",
    metadata,
    Column("gateway", BigInteger, primary_key=True),
    Column("method", Text, primary_key=True),
    Column("rate", Integer, nullable=False),
    sqlite_with_rowid=False,
)
"""Bytes per second that a gateway brings to a device in one way of updating, as measured."""
