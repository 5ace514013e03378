"""Ends many queued executions at once, in parts that nobody has to wait for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.tables import transition
from meshfleet.service.jobs.changes import Changed
from meshfleet.service.jobs.engine import moving
from meshfleet.service.jobs.fitness import MisfitCode
from meshfleet.service.jobs.plan import LEFT_OUT
from meshfleet.service.jobs.update.reasons import STOP_REASONS, Code
from meshfleet.wire.rest import ExecutionState as S
from meshfleet.wire.rest import StopCause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.clock import Moment

_AT_ONCE: Final = {"sqlite": 2000, "postgresql": 10_000}
"""Executions that end in one transaction. Only SQLite lets all other writers wait for it."""

_QUEUED: Final = "SELECT device FROM execution WHERE state = 'QUEUED'"
# By device, as they lie in the table: each page of it is written once, not once for each chunk.
_SOME: Final = f"{_QUEUED} AND job = ? ORDER BY device LIMIT ?"
# In the order of the queue, or SQLite would look at all that have ended before each time.
_FIRST: Final = f"{_QUEUED} AND job = ? AND expires IS NULL ORDER BY wave, due LIMIT ?"
_UNASKED: Final = f"{_QUEUED} AND job = ? AND wave = {LEFT_OUT} ORDER BY due LIMIT ?"
# With a sign before it, so that SQLite looks at the few that are tried again, not at all of the job.
_AGAIN: Final = f"{_QUEUED} AND expires IS NOT NULL AND +job = ? AND expires <= ? LIMIT ?"

# Between the first and the last, and "is true", or PostgreSQL would read all of the job that are queued.
_END: Final = (
    "UPDATE execution SET state = '{state}', code = '{code}', reason = '{reason}', waiting = NULL,"
    " expires = NULL, updated_at = {wall}, version = version + 1 WHERE job = {job}"
    " AND device BETWEEN {first} AND {last} AND device IN numbers AND (state = 'QUEUED') IS TRUE"
    " RETURNING device, wave, attempt, version, gateway"
)
"""Filled with our own words and numbers alone."""


class _End(NamedTuple):
    state: S
    reason: str
    code: Code | MisfitCode


_NOT_ASKED: Final = _End(
    S.SKIPPED,
    "it reports that it runs this version already; it could not be asked before its time in the queue ended",
    MisfitCode.ALREADY_THERE,
)
_NEVER_BEGUN: Final = _End(S.TIMED_OUT, "it could not begin for as long as it may wait", Code.NEVER_BEGUN)


def cancel(connection: Connection, job: int, cause: StopCause | None, wall: int) -> list[Changed]:
    """Cancel some of the queued executions of a job because of why it is canceled. Return which."""
    end = _End(S.CANCELED, STOP_REASONS[cause or StopCause.USER], Code.CANCELED)
    return _end(connection, job, bulk.query(connection, _SOME, (job, _most(connection))), end, wall)


def time_out(connection: Connection, job: int, queue_until: int | None, now: Moment) -> list[Changed]:
    """Give up some of those that have waited for too long, and tell which."""
    found = bulk.query(connection, _AGAIN, (job, now.steady, _most(connection)))
    if not found and queue_until is not None and now.steady >= queue_until:
        if unasked := bulk.query(connection, _UNASKED, (job, _most(connection))):
            return _end(connection, job, unasked, _NOT_ASKED, now.wall)
        found = bulk.query(connection, _FIRST, (job, _most(connection)))
    return _end(connection, job, found, _NEVER_BEGUN, now.wall)


def _most(connection: Connection) -> int:
    return _AT_ONCE[connection.dialect.name]


def _end(
    connection: Connection, job: int, found: Sequence[Sequence[int]], end: _End, wall: int
) -> list[Changed]:
    """End these, as far as they still wait, and write down that it was so."""
    if not found:
        return []
    devices = sorted(row[0] for row in found)
    text = _END.format(**end._asdict(), wall=wall, job=job, first=devices[0], last=devices[-1])
    rows: Sequence[Sequence[Any]] = bulk.run(connection, text, devices).fetchall()
    _count(connection, job, Counter(row[1] for row in rows), end.state)
    bulk.fill(
        connection,
        transition,
        ("device", "attempt", "version"),
        [(device, attempt, version) for device, _, attempt, version, _ in rows],
        job=job,
        time=wall,
        before=str(S.QUEUED),
        after=str(end.state),
        actor=moving.ENGINE,
        cause=end.reason,
    )
    return [Changed(job, row[0], row[-1]) for row in rows]


def _count(connection: Connection, job: int, waves: Counter[int], state: S) -> None:
    deltas = Counter({(job, wave, str(S.QUEUED)): -count for wave, count in waves.items()})
    deltas.update({(job, wave, str(state)): count for wave, count in waves.items()})
    moving.count(connection, deltas)
