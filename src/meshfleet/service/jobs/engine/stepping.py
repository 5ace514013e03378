"""Lets jobs go on: from wave to wave, to a stop, to their end; and lets their executions begin."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.db import bulk
from meshfleet.db.tables import is_active, transition
from meshfleet.service.accounts.model import SERVICE
from meshfleet.service.audit import log as audit
from meshfleet.service.jobs import plan
from meshfleet.service.jobs.engine import advancing, dispatching, ending_many, moving
from meshfleet.service.jobs.engine.dispatching import Turn
from meshfleet.service.jobs.engine.slots import may_plan
from meshfleet.service.jobs.job_states import check_move
from meshfleet.service.jobs.plan import LEFT_OUT, Counts, Standing
from meshfleet.service.jobs.update.states import CANCELABLE
from meshfleet.wire.rest import ExecutionState as E
from meshfleet.wire.rest import JobState as S
from meshfleet.wire.rest import StopCause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.clock import Moment
    from meshfleet.service.jobs.changes import Changed
    from meshfleet.service.jobs.engine.loading import Orders, Routes
    from meshfleet.service.jobs.plan import Change
    from meshfleet.wire.rest import NewJob

_OPEN: Final = "SELECT id, state FROM job WHERE finished_at IS NULL AND id > ? ORDER BY id LIMIT 100"
_JOB: Final = (
    "SELECT state, start_at, deadline, waves, wave, soaks_until, paced_until, armed, queue_until, applied_at,"
    " stop_cause"
    " FROM job j WHERE id = ? AND finished_at IS NULL"
)
_LOCK: Final = " FOR UPDATE OF j"
_COUNTS: Final = "SELECT wave, state, count FROM tally WHERE job = ? AND count <> 0"
_PACED: Final = "UPDATE job SET paced_until = ? WHERE id = ?"
# With a sign before the job, so that SQLite looks at those that are under way, not at all of the job.
_TAKE_BACK: Final = (
    f"UPDATE execution SET due = ? WHERE +job = ? AND {is_active()} AND due > ?"  # noqa: S608 # our own names
    " AND state IN ('DISPATCHED', 'TRANSFERRING', 'VERIFYING', 'STAGED')"
    # What waits for an answer is left alone, unless only the version was asked for.
    " AND (ask IS NULL OR (state = 'DISPATCHED' AND step = 'look' AND tries = 0 AND batch IS NULL))"
    " AND coalesce(waiting, '') <> 'canceling'"
)
_APPLY: Final = (
    f"UPDATE execution SET due = ? WHERE +job = ? AND {is_active()} AND due > ?"  # noqa: S608 # our own names
    " AND state = 'STAGED' AND ask IS NULL"
    " AND coalesce(step, '') <> 'apply'"  # who was told already, in vain, is told again after a while
)
_MINUTE: Final = 60_000


class Stepped(NamedTuple):
    """What a job has done."""

    changed: list[Changed]
    asks: int
    is_full: bool
    """Whether there may be more to do at once."""
    is_new: bool = False
    """Whether the job itself is in another state."""
    is_idle: bool = False
    """Whether there is nothing to do before something else happens."""
    is_canceling: bool = False
    """Whether nothing of the job may begin any more."""
    unrouted: Sequence[int] = ()
    """Devices that could begin once a gateway is selected for them."""


NOTHING: Final = Stepped([], 0, is_full=False)
IDLE: Final = NOTHING._replace(is_idle=True)


def open_jobs(connection: Connection, after: int) -> dict[int, S]:
    """Return the states of the next jobs that have not ended, in the order in which they were made."""
    return {number: S(state) for number, state in bulk.query(connection, _OPEN, (after,))}


class _Job(NamedTuple):
    """An open job, and how its executions stand."""

    number: int
    standing: Standing
    counts: Counts
    queue_until: int | None
    applied_at: int | None
    stop_cause: StopCause | None


def step(
    connection: Connection, orders: Orders, number: int, now: Moment, routes: Routes | None = None
) -> Stepped:
    """Let a job do what it is time for. For `routes` see `dispatching.begin`."""
    if not may_plan(connection):
        return NOTHING
    job = _read(connection, orders, number)
    if job is None:
        return NOTHING
    change = plan.change(job.standing, job.counts, now=now.steady, wall=now.wall)
    if change is not None:
        _write(connection, job, change, now.wall)
        return Stepped([], 0, is_full=True, is_new=True)
    if job.queue_until is None and job.standing.state is S.IN_PROGRESS:
        _wind_up(connection, job, now.steady)
    _nudge(connection, job, now.steady)
    if job.standing.state is S.CANCELING and job.counts.of(E.DISPATCHED):
        back = advancing.take_back(connection, orders, number, now, routes)
        if back.changed or back.asks or back.is_full:
            return Stepped(back.changed, back.asks, is_full=True, is_new=True, is_canceling=True)
    ended = _end_some(connection, job, now)
    if ended or job.standing.state is not S.IN_PROGRESS:
        is_canceling = job.standing.state is S.CANCELING
        done = Stepped(ended, 0, is_full=bool(ended), is_new=bool(ended), is_idle=not ended)
        return done._replace(is_canceling=is_canceling)
    return _dispatch(connection, orders, job, now, routes)


def _read(connection: Connection, orders: Orders, number: int) -> _Job | None:
    rows = bulk.query(connection, _JOB, (number,), lock=_LOCK)
    if not rows:
        return None
    *standing, queue_until, applied_at, stop_cause = rows[0]
    counts = {(wave, E(state)): count for wave, state, count in bulk.query(connection, _COUNTS, (number,))}
    body = orders.body(connection, number)
    cause = None if stop_cause is None else StopCause(stop_cause)
    return _Job(number, _standing(body, standing), Counts(counts), queue_until, applied_at, cause)


def _standing(order: NewJob, row: Sequence[Any]) -> Standing:
    state, start_at, deadline, waves, wave, soaks_until, paced_until, armed = row
    return Standing(
        state=S(state),
        order=order,
        start_at=start_at,
        deadline=deadline,
        waves=len(msgspec.json.decode(waves)),
        wave=wave,
        soaks_until=soaks_until,
        paced_until=paced_until,
        armed=msgspec.json.decode(armed, type=dict[str, int]),
    )


def _write(connection: Connection, job: _Job, change: Change, wall: int) -> None:
    """Write a step of a job, and why."""
    before, after = job.standing.state, change.state
    if after is not before:
        check_move(before, after)
    values: dict[str, Any] = {
        "state": str(after),
        "pause_reason": None if change.pause_reason is None else str(change.pause_reason),
    }
    if change.wave is not None:
        values |= {"wave": change.wave, "soaks_until": change.soaks_until}
    if change.stop_cause is not None:
        values["stop_cause"] = str(change.stop_cause)
    if change.outcome is not None:
        values |= {"outcome": str(change.outcome), "finished_at": wall}
    if before is S.SCHEDULED and after is S.IN_PROGRESS:
        values["started_at"] = wall
    text = ", ".join(f"{name} = ?" for name in values)
    bulk.change(connection, f"UPDATE job SET {text} WHERE id = ?", (*values.values(), job.number))  # noqa: S608 # our own names
    row = (job.number, None, wall, str(before), str(after), 0, 0, moving.ENGINE, change.cause, None)
    bulk.add(connection, transition, *row)
    _note(connection, job.number, change, wall)


def _note(connection: Connection, number: int, change: Change, wall: int) -> None:
    """A job that has stopped by itself is in the audit log: who looks there asks why it rests (rest-210)."""
    cause = change.pause_reason or change.stop_cause
    if cause is not None:
        deed = "cancel" if change.pause_reason is None else "pause"
        told = {"cause": str(cause), "reason": change.cause}
        audit.record(connection, SERVICE, f"job.{deed}", f"job-{number}", now=wall, **told)


def _wind_up(connection: Connection, job: _Job, now: int) -> None:
    """Begin to count how long executions wait in the queue, by a clock that does not jump."""
    patience = int(job.standing.order.timeouts.queue_minutes * _MINUTE)
    bulk.change(connection, "UPDATE job SET queue_until = ? WHERE id = ?", (now + patience, job.number))


def _nudge(connection: Connection, job: _Job, now: int) -> None:
    """Let executions be looked at that wait for a word from people."""
    if job.standing.state is S.CANCELING and any(job.counts.of(each) for each in CANCELABLE):
        bulk.change(connection, _TAKE_BACK, (now, job.number, now))
    elif job.applied_at is not None and job.counts.of(E.STAGED):
        bulk.change(connection, _APPLY, (now, job.number, now))


def _end_some(connection: Connection, job: _Job, now: Moment) -> list[Changed]:
    """End some of those that wait in the queue, if they wait for nothing any more."""
    if not job.counts.of(E.QUEUED):
        return []
    if job.standing.state is S.CANCELING:
        return ending_many.cancel(connection, job.number, job.stop_cause, now.wall)
    return ending_many.time_out(connection, job.number, job.queue_until, now)


def _dispatch(
    connection: Connection, orders: Orders, job: _Job, now: Moment, routes: Routes | None
) -> Stepped:
    """Let as many begin as may."""
    standing, counts = job.standing, job.counts
    allowed = plan.pace(standing, counts, now.steady, dispatching.AT_ONCE)
    # Those that report the target version are in no wave, and are asked after all that are to be updated.
    waves = [wave for wave in (*range(standing.wave + 1), LEFT_OUT) if counts.of(E.QUEUED, wave=wave)]
    if not waves:
        return IDLE
    if not allowed.room:
        return NOTHING
    order, need = orders.read(connection, [job.number])[job.number]
    per_gateway = standing.order.concurrency.per_gateway
    turn = Turn(
        order,
        need,
        per_gateway=per_gateway,
        wave=standing.wave,
        room=allowed.room,
        together=allowed.together,
        queued=counts.of(E.QUEUED),
        gives_up=standing.order.on_newer_job == "supersede",
    )
    begun = dispatching.begin(connection, turn, waves, now, routes)
    if allowed.interval and begun.begun:
        until = ceil(allowed.paced_until + begun.begun * allowed.interval)
        bulk.change(connection, _PACED, (until, job.number))
    return Stepped(begun.changed, begun.asks, begun.is_full, unrouted=begun.unrouted)
