"""Ends queued executions that are canceled or timed out, in small transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk
from meshfleet.rest.jobs import ExecutionState, StopCause
from meshfleet.service.jobs.compatibility import ExclusionCode
from meshfleet.service.jobs.rollout import LEFT_OUT_WAVE
from meshfleet.service.jobs.store import QueueEnding, end_queued_executions
from meshfleet.service.jobs.updates.reasons import STOP_CAUSE_TEXTS, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.clock import ClockReading
    from meshfleet.service.jobs.notifications import ExecutionChange

_EXECUTIONS_PER_TRANSACTION: Final = {"sqlite": 2000, "postgresql": 10_000}
"""Maximum executions that end in one transaction; fewer on SQLite, which has only one writer at a time."""

_SELECT_QUEUED: Final = "SELECT device FROM execution WHERE state = 'QUEUED'"
# By device, the order of the table, so that each database page is written once and not in every chunk.
_SELECT_ANY: Final = f"{_SELECT_QUEUED} AND job = ? ORDER BY device LIMIT ?"
# In the order of the queue index, or SQLite would scan all ended executions each time.
_SELECT_FIRST: Final = f"{_SELECT_QUEUED} AND job = ? AND expires IS NULL ORDER BY wave, due LIMIT ?"
_SELECT_UNCHECKED: Final = f"{_SELECT_QUEUED} AND job = ? AND wave = {LEFT_OUT_WAVE} ORDER BY due LIMIT ?"
# `+job` makes SQLite use the index of the few retries instead of reading the whole job.
_SELECT_EXPIRED_RETRIES: Final = (
    f"{_SELECT_QUEUED} AND expires IS NOT NULL AND +job = ? AND expires <= ? LIMIT ?"
)

_UNCHECKED: Final = QueueEnding(
    ExecutionState.SKIPPED,
    "the device already reports this version; its version could not be read before the queue timeout",
    ExclusionCode.ALREADY_THERE,
)
_EXPIRED: Final = QueueEnding(
    ExecutionState.TIMED_OUT, "the update could not start before the queue timeout", ReasonCode.NEVER_BEGUN
)


def cancel_queued_executions(
    connection: Connection, job: int, cause: StopCause | None, wall_time: int
) -> list[ExecutionChange]:
    """Cancel a limited number of queued executions of a canceled job. Return the canceled executions."""
    ending = QueueEnding(
        ExecutionState.CANCELED, STOP_CAUSE_TEXTS[cause or StopCause.USER], ReasonCode.CANCELED
    )
    return _end_executions(
        connection,
        job,
        bulk.query_rows(connection, _SELECT_ANY, (job, _get_max_executions(connection))),
        ending,
        wall_time,
    )


def expire_queued_executions(
    connection: Connection, job: int, queue_until: int | None, now: ClockReading
) -> list[ExecutionChange]:
    """End a limited number of executions that have waited in the queue for too long. Return these.

    First attempts time out at `queue_until`, a monotonic time in milliseconds; None if the job has not
    started. A retry has its own timeout, which starts when the previous attempt ends.
    """
    rows = bulk.query_rows(
        connection, _SELECT_EXPIRED_RETRIES, (job, now.monotonic, _get_max_executions(connection))
    )
    if not rows and queue_until is not None and now.monotonic >= queue_until:
        if unchecked := bulk.query_rows(
            connection, _SELECT_UNCHECKED, (job, _get_max_executions(connection))
        ):
            return _end_executions(connection, job, unchecked, _UNCHECKED, now.wall)
        rows = bulk.query_rows(connection, _SELECT_FIRST, (job, _get_max_executions(connection)))
    return _end_executions(connection, job, rows, _EXPIRED, now.wall)


def _get_max_executions(connection: Connection) -> int:
    """Return the maximum number of executions that end in one transaction on this database."""
    return _EXECUTIONS_PER_TRANSACTION[connection.dialect.name]


def _end_executions(
    connection: Connection, job: int, queued: Sequence[Sequence[int]], ending: QueueEnding, wall_time: int
) -> list[ExecutionChange]:
    """End queued executions, given as rows that start with the device. Return the ended executions."""
    if not queued:
        return []
    return end_queued_executions(connection, [job], sorted(row[0] for row in queued), ending, wall_time)
