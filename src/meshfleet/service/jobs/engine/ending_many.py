"""Ends many queued executions at once, in parts that nobody has to wait for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.tables import transition
from meshfleet.service.jobs.engine import moving
from meshfleet.service.jobs.engine.moving import Changed
from meshfleet.service.jobs.update.reasons import Code
from meshfleet.wire.rest import ExecutionState as S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.jobs.engine.steady import Moment

AT_ONCE: Final = 2000
"""Executions that end in one transaction."""

_READ: Final = "SELECT device, wave, attempt, version, gateway FROM execution e WHERE"
_QUEUED: Final = f"{_READ} state = 'QUEUED'"
# By device, as they lie in the table: each page of it is written once, not once for each chunk. Chosen first
# and read then: SQLite would look at all that have ended before each time, PostgreSQL at all for each.
_SOME: Final = (
    f"SELECT device FROM execution WHERE job = ? AND state = 'QUEUED' ORDER BY device LIMIT {AT_ONCE}"  # noqa: S608 # our own names
)
# In the order of the queue, for the same reason.
_FIRST: Final = f"{_QUEUED} AND job = ? AND expires IS NULL ORDER BY wave, due LIMIT {AT_ONCE}"
# With a sign before it, so that SQLite looks at the few that are tried again, not at all of the job.
_AGAIN: Final = f"{_QUEUED} AND expires IS NOT NULL AND +job = ? AND expires <= ? LIMIT {AT_ONCE}"
_LOCK: Final = " FOR UPDATE OF e"

_END: Final = (
    "UPDATE execution SET state = '{state}', code = '{code}', reason = '{reason}', waiting = NULL,"
    " expires = NULL, updated_at = {wall}, version = version + 1 WHERE {among}"
)
"""Filled with our own words and numbers alone."""


class _End(NamedTuple):
    state: S
    reason: str
    code: Code


_CANCELED: Final = _End(S.CANCELED, "the job was canceled", Code.CANCELED)
_NEVER_BEGUN: Final = _End(S.TIMED_OUT, "it could not begin for as long as it may wait", Code.NEVER_BEGUN)


def cancel(connection: Connection, job: int, wall: int) -> list[Changed]:
    """Cancel some of those that wait in the queue, and tell which."""
    chosen = [row[0] for row in bulk.query(connection, _SOME, (job,))]
    if not chosen:
        return []
    lock = "" if connection.dialect.name == "sqlite" else _LOCK
    queued = "(state = 'QUEUED') IS TRUE"  # or PostgreSQL would look at all that is queued
    rows = bulk.pick(connection, f"{_READ} {queued} AND {_among(job, chosen)}{lock}", chosen)
    return _end(connection, job, rows, _CANCELED, wall)


def time_out(connection: Connection, job: int, queue_until: int | None, now: Moment) -> list[Changed]:
    """Give up some of those that have waited for too long, and tell which."""
    rows = bulk.query(connection, _AGAIN, (job, now.steady), lock=_LOCK)
    if not rows and queue_until is not None and now.steady >= queue_until:
        rows = bulk.query(connection, _FIRST, (job,), lock=_LOCK)
    return _end(connection, job, rows, _NEVER_BEGUN, now.wall)


def _end(
    connection: Connection, job: int, rows: Sequence[Sequence[Any]], end: _End, wall: int
) -> list[Changed]:
    """End these, and write down that it was so."""
    if not rows:
        return []
    state, reason, code = end
    devices = sorted(row[0] for row in rows)
    among = _among(job, devices)
    text = _END.format(state=state, code=code, reason=reason, wall=wall, among=among)
    bulk.run(connection, text, devices)
    waves = Counter(row[1] for row in rows)
    deltas = Counter({(job, wave, str(S.QUEUED)): -count for wave, count in waves.items()})
    deltas.update({(job, wave, str(state)): count for wave, count in waves.items()})
    moving.count(connection, deltas)
    bulk.fill(
        connection,
        transition,
        ("device", "attempt", "version"),
        [(device, attempt, version + 1) for device, _, attempt, version, _ in rows],
        job=job,
        time=wall,
        before=str(S.QUEUED),
        after=str(state),
        actor=moving.ENGINE,
        cause=reason,
    )
    return [Changed(job, row[0], row[-1]) for row in rows]


def _among(job: int, devices: Sequence[int]) -> str:
    """Executions of these devices, which are sorted: without first and last, PostgreSQL would read all."""
    return f"job = {job} AND device BETWEEN {devices[0]} AND {devices[-1]} AND device IN numbers"
