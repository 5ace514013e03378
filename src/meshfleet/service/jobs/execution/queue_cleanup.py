"""Ends many queued executions at once, in parts that nobody has to wait for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.tables import transition
from meshfleet.rest import ExecutionState as S
from meshfleet.rest import StopCause
from meshfleet.service.jobs.compatibility import ExclusionCode
from meshfleet.service.jobs.execution import transition_writer
from meshfleet.service.jobs.notifications import ExecutionChange
from meshfleet.service.jobs.rollout import LEFT_OUT_WAVE
from meshfleet.service.jobs.updates.reasons import STOP_CAUSE_TEXTS, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.clock import Moment

_EXECUTIONS_PER_TRANSACTION: Final = {"sqlite": 2000, "postgresql": 10_000}
"""Executions that end in one transaction. Only SQLite lets all other writers wait for it."""

_SELECT_QUEUED: Final = "SELECT device FROM execution WHERE state = 'QUEUED'"
# By device, as they lie in the table: each page of it is written once, not once for each chunk.
_SELECT_ANY: Final = f"{_SELECT_QUEUED} AND job = ? ORDER BY device LIMIT ?"
# In the order of the queue, or SQLite would look at all that have ended before each time.
_SELECT_FIRST: Final = f"{_SELECT_QUEUED} AND job = ? AND expires IS NULL ORDER BY wave, due LIMIT ?"
_SELECT_UNCHECKED: Final = f"{_SELECT_QUEUED} AND job = ? AND wave = {LEFT_OUT_WAVE} ORDER BY due LIMIT ?"
# With a sign before it, so that SQLite looks at the few that are tried again, not at all of the job.
_SELECT_EXPIRED_RETRIES: Final = (
    f"{_SELECT_QUEUED} AND expires IS NOT NULL AND +job = ? AND expires <= ? LIMIT ?"
)

# Between the first and the last, and "is true", or PostgreSQL would read all of the job that are queued.
_UPDATE_ENDED: Final = (
    "UPDATE execution SET state = '{state}', code = '{code}', reason = '{reason}', waiting = NULL,"
    " expires = NULL, updated_at = {wall}, version = version + 1 WHERE job = {job}"
    " AND device BETWEEN {first} AND {last} AND device IN numbers AND (state = 'QUEUED') IS TRUE"
    " RETURNING device, wave, attempt, version, gateway"
)
"""Filled with our own words and numbers alone."""


class _Ending(NamedTuple):
    state: S
    reason: str
    code: ReasonCode | ExclusionCode


_UNCHECKED: Final = _Ending(
    S.SKIPPED,
    "it reports that it runs this version already; it could not be asked before its time in the queue ended",
    ExclusionCode.ALREADY_THERE,
)
_EXPIRED: Final = _Ending(
    S.TIMED_OUT, "it could not begin for as long as it may wait", ReasonCode.NEVER_BEGUN
)


def cancel_queued_executions(
    connection: Connection, job: int, cause: StopCause | None, wall: int
) -> list[ExecutionChange]:
    """Cancel some of the queued executions of a job because of why it is canceled. Return which."""
    end = _Ending(S.CANCELED, STOP_CAUSE_TEXTS[cause or StopCause.USER], ReasonCode.CANCELED)
    return _end_executions(
        connection,
        job,
        bulk.query_rows(connection, _SELECT_ANY, (job, _max_executions(connection))),
        end,
        wall,
    )


def expire_queued_executions(
    connection: Connection, job: int, queue_until: int | None, now: Moment
) -> list[ExecutionChange]:
    """Give up some of those that have waited for too long, and tell which."""
    found = bulk.query_rows(
        connection, _SELECT_EXPIRED_RETRIES, (job, now.steady, _max_executions(connection))
    )
    if not found and queue_until is not None and now.steady >= queue_until:
        if unasked := bulk.query_rows(connection, _SELECT_UNCHECKED, (job, _max_executions(connection))):
            return _end_executions(connection, job, unasked, _UNCHECKED, now.wall)
        found = bulk.query_rows(connection, _SELECT_FIRST, (job, _max_executions(connection)))
    return _end_executions(connection, job, found, _EXPIRED, now.wall)


def _max_executions(connection: Connection) -> int:
    return _EXECUTIONS_PER_TRANSACTION[connection.dialect.name]


def _end_executions(
    connection: Connection, job: int, found: Sequence[Sequence[int]], end: _Ending, wall: int
) -> list[ExecutionChange]:
    """End these, as far as they still wait, and write down that it was so."""
    if not found:
        return []
    devices = sorted(row[0] for row in found)
    text = _UPDATE_ENDED.format(**end._asdict(), wall=wall, job=job, first=devices[0], last=devices[-1])
    rows: Sequence[Sequence[Any]] = bulk.execute_in(connection, text, devices).fetchall()
    _update_tallies(connection, job, Counter(row[1] for row in rows), end.state)
    bulk.insert_columns(
        connection,
        transition,
        ("device", "attempt", "version"),
        [(device, attempt, version) for device, _, attempt, version, _ in rows],
        job=job,
        time=wall,
        before=str(S.QUEUED),
        after=str(end.state),
        actor=transition_writer.ENGINE_ACTOR,
        cause=end.reason,
    )
    return [ExecutionChange(job, row[0], row[-1]) for row in rows]


def _update_tallies(connection: Connection, job: int, waves: Counter[int], state: S) -> None:
    deltas = Counter({(job, wave, str(S.QUEUED)): -count for wave, count in waves.items()})
    deltas.update({(job, wave, str(state)): count for wave, count in waves.items()})
    transition_writer.update_tallies(connection, deltas)
