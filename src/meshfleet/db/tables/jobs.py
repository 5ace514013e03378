"""Tables of firmware update jobs."""

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
    sqlite_autoincrement=True,  # leftovers of an aborted draft must never belong to another job
)
"""Jobs that are not visible yet, because their target devices are still being stored.

The id of the draft becomes the id of the job. `created_at` is 0 for an aborted draft or a deleted job whose
rows are still to be removed.
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
    Column("started_at", BigInteger, index=True),
    Column("finished_at", BigInteger),
    Column("parent", BigInteger),
    Column("key", Text, unique=True),
    Column("digest", Text),
    Index("ix_job_open", "id", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
)
"""Firmware update jobs.

`body` is the job request as JSON, `waves` the planned waves, `wave` the index of the current wave. `armed`
holds the counts of results when the job was last resumed: the abort criteria consider only later results.
Until `paced_until` the rate limit allows no further start. At `queue_until`, executions that have not started
time out.
"""

_ACTIVE_STATES = ("DISPATCHED", "TRANSFERRING", "VERIFYING", "STAGED", "APPLYING", "CONFIRMING")


def active_condition(state: str = "state") -> str:
    """Return the SQL condition that an execution is active. `state` is the name of the state column.

    Partial indexes apply only to queries with exactly this condition. The condition is a chain of ORs: for
    IN, SQLite would build a temporary table for each changed row and each partial index.
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
    # The database ensures that a device is in one update at a time, also with several processes (rest-142).
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
"""Executions: the update of one device by one job.

`due` is the time of the next check; before the first check it is the position in the queue, a number smaller
than any time. `wave` is -1 for a device that was excluded when the job was created. `ask` is the id of the
pending request. `expires` is the deadline of the current state, `total_until` that of the whole execution.
`beat_at` is the time of the last counted heartbeat, by the clock of the reporting gateway; `beats` is the
number of good heartbeats in a row. `is_read` is set once the device has returned the expected version.

While the gateway is unreachable, the deadlines are suspended: since `suspended_at`, and for at most
`outage_left` milliseconds (NULL: as long as the job lets executions queue). `resumed_at` is the end of the
last outage. `final_until` is the deadline for the response to the last request before the execution fails.
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
"""Number of executions per job, wave and state, updated with every transition."""

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
"""Reports and responses that caused a transition of an execution, or came too late. `content` is JSON."""

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
"""State changes of executions and of jobs. `device` is NULL in a state change of a job."""

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
"""Requests of jobs to gateways that are to be sent, or were sent and have no response yet.

The process that sends a request first sets `taken_until`, the time until which it waits for the response. If
the row still exists after that time, the process has ended, and whether it sent the request is unknown.
"""

job_engine = Table(
    "job_engine",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("alive_at", BigInteger, nullable=False),
)
"""One row with the time at which a process last ran the jobs of this database.

The time is of the clock that the deadlines of executions use.
"""

pace = Table(
    "pace",
    metadata,
    Column("gateway", BigInteger, primary_key=True),
    Column("method", Text, primary_key=True),
    Column("rate", Integer, nullable=False),
    sqlite_with_rowid=False,
)
"""Measured transfer rate in bytes per second, by gateway and update method."""
