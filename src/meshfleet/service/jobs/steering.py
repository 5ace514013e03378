"""What people do to a job: each deed is one transaction, with the row of the job held (rest-137)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import insert, select, update

from meshfleet.db.tables import job, transition
from meshfleet.errors import NotFound
from meshfleet.service.audit import log as audit
from meshfleet.service.jobs.job_states import FINISHED, check_move, not_now
from meshfleet.service.jobs.making.begun import begin
from meshfleet.service.jobs.plan import LEFT_OUT
from meshfleet.service.jobs.shown import jobs as reading
from meshfleet.service.jobs.shown.showing import order_of
from meshfleet.service.jobs.update.states import TERMINAL
from meshfleet.wire.rest import JobState, PauseReason, StopCause

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from meshfleet.service.accounts.model import Actor
    from meshfleet.wire.rest import Job

_AT_A_GATE: Final = frozenset({PauseReason.GATE, PauseReason.GATE_FAILED})
_UNDER_WAY: Final = frozenset({JobState.IN_PROGRESS, JobState.PAUSED})


def apply(connection: Connection, number: int, *, by: Actor, now: int) -> Job:
    """Let a job begin that waited for it, or devices start what they have staged (rest-132)."""
    row = _hold(connection, number)
    state = JobState(row.state)
    if state is JobState.CREATED:
        _move(connection, row, _begun(row, now), deed="apply", by=by, now=now)
    elif state not in _UNDER_WAY or not order_of(row).stage:
        raise not_now(state)
    elif row.applied_at is None:
        connection.execute(update(job).where(job.c.id == number).values(applied_at=now))
        _record(connection, number, state, state, deed="apply", by=by, now=now)
    return reading.show(connection, number, now=now)


def pause(connection: Connection, number: int, *, by: Actor, now: int) -> Job:
    """Begin nothing more; what is under way goes on."""
    row = _hold(connection, number)
    if row.state != JobState.PAUSED:
        paused = {"state": str(JobState.PAUSED), "pause_reason": str(PauseReason.USER)}
        _move(connection, row, paused, deed="pause", by=by, now=now)
    return reading.show(connection, number, now=now)


def resume(connection: Connection, number: int, *, by: Actor, now: int) -> Job:
    """Go on; what failed up to now is forgiven, and a wave at a gate is let through."""
    row = _hold(connection, number)
    if row.state != JobState.PAUSED:
        raise not_now(JobState(row.state))
    counts = reading.counts_of(connection, number).by_state(since=LEFT_OUT + 1)
    over = {state: count for state, count in counts.items() if state in TERMINAL}
    resumed = _begun(row, now) if row.started_at is None else {"state": str(JobState.IN_PROGRESS)}
    resumed |= {"pause_reason": None, "armed": msgspec.json.encode(over).decode()}
    if row.pause_reason in _AT_A_GATE:
        resumed |= {"wave": row.wave + 1, "soaks_until": None}
    _move(connection, row, resumed, deed="resume", by=by, now=now)
    return reading.show(connection, number, now=now)


def cancel(connection: Connection, number: int, *, by: Actor, now: int) -> Job:
    """End a job early: what has not begun never will, and what is under way is taken back if it can be."""
    row = _hold(connection, number)
    if row.state != JobState.CANCELING:
        canceled = {
            "state": str(JobState.CANCELING),
            "stop_cause": str(StopCause.USER),
            "pause_reason": None,
        }
        _move(connection, row, canceled, deed="cancel", by=by, now=now)
    return reading.show(connection, number, now=now)


DEEDS: Final = {"apply": apply, "pause": pause, "resume": resume, "cancel": cancel}


def _hold(connection: Connection, number: int) -> Row[Any]:
    """The row of a job, which nobody else changes until we are done."""
    row = connection.execute(select(job).where(job.c.id == number).with_for_update()).first()
    if row is None:
        raise NotFound("there is no such job")
    if row.state in FINISHED:
        raise not_now(JobState(row.state))  # rest-138
    return row


def _begun(row: Row[Any], now: int) -> dict[str, Any]:
    return begin(start_at=row.start_at, now=now)


def _move(  # noqa: PLR0913 # by name
    connection: Connection, row: Row[Any], values: dict[str, Any], *, deed: str, by: Actor, now: int
) -> None:
    before, after = JobState(row.state), JobState(values["state"])
    check_move(before, after)
    connection.execute(update(job).where(job.c.id == row.id).values(**values))
    _record(connection, row.id, before, after, deed=deed, by=by, now=now)


def _record(  # noqa: PLR0913 # by name
    connection: Connection, number: int, before: JobState, after: JobState, *, deed: str, by: Actor, now: int
) -> None:
    connection.execute(
        insert(transition).values(
            job=number,
            time=now,
            before=str(before),
            after=str(after),
            attempt=0,
            version=0,
            actor=by.title,
            cause=deed,
        )
    )
    audit.record(connection, by, f"job.{deed}", f"job-{number}", now=now)
