"""Commands of users that change a job: apply, pause, resume, cancel, delete.

Each command is one transaction that locks the row of the job (rest-137).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import delete, insert, select, update

from meshfleet.db.tables import firmware, job, job_draft, tally
from meshfleet.errors import NotFound
from meshfleet.protocol.times import format_millis
from meshfleet.rest.jobs import JobState, PauseReason, StopCause
from meshfleet.service.audit import log as audit
from meshfleet.service.jobs.job_states import (
    FINISHED_STATES,
    build_start_columns,
    build_state_conflict,
    check_deletable,
    check_job_transition,
)
from meshfleet.service.jobs.planning.job_drafts import ABANDONED_AT
from meshfleet.service.jobs.rollout import LEFT_OUT_WAVE
from meshfleet.service.jobs.store import insert_job_transition
from meshfleet.service.jobs.updates.states import TERMINAL_STATES
from meshfleet.service.jobs.views import job_view
from meshfleet.service.jobs.views.job_view import decode_job_body

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from meshfleet.rest.jobs import Job
    from meshfleet.service.actor import Actor


# Deletion of jobs that have ended or were never started (rest-214).


def delete_job(connection: Connection, job_number: int, *, by: Actor, now: int) -> None:
    """Delete a job. The job runner deletes the executions of the job later.

    Raise `Conflict` if the job may still run updates.
    """
    row = _lock_job(connection, job_number)
    check_deletable(JobState(row.state))
    details = _build_audit_details(connection, row)
    connection.execute(delete(job).where(job.c.id == job_number))
    connection.execute(delete(tally).where(tally.c.job == job_number))
    connection.execute(insert(job_draft).values(id=job_number, created_at=ABANDONED_AT))
    audit.record_change(connection, by, "job.delete", f"job-{job_number}", now=now, **details)


def _build_audit_details(connection: Connection, row: Row[Any]) -> dict[str, Any]:
    """Return what the audit log records about a job that is deleted."""
    version = select(firmware.c.version).where(firmware.c.id == row.firmware)
    counts = job_view.load_counts(connection, row.id).count_by_state()
    return {
        "name": decode_job_body(row).name,
        "firmware": row.firmware,
        "version": connection.execute(version).scalar_one(),
        "state": row.state,
        "outcome": row.outcome,
        "counts": {str(state): count for state, count in counts.items() if count},
        "createdBy": row.created_by,
        "createdAt": format_millis(row.created_at),
    }


# Cancellation of jobs whose firmware is withdrawn.

_CANCELABLE_STATES: Final = (
    JobState.CREATED,
    JobState.PENDING_APPROVAL,
    JobState.SCHEDULED,
    JobState.IN_PROGRESS,
    JobState.PAUSED,
)


def cancel_jobs_of_firmware(connection: Connection, firmware_id: str, *, by: Actor, now: int) -> None:
    """Set all open jobs of a firmware to CANCELING, in the transaction that withdraws the firmware."""
    is_cancelable = (
        (job.c.firmware == firmware_id) & job.c.finished_at.is_(None) & job.c.state.in_(_CANCELABLE_STATES)
    )
    query = select(job.c.id, job.c.state).where(is_cancelable).order_by(job.c.id).with_for_update()
    jobs = connection.execute(query).all()
    if not jobs:
        return
    connection.execute(
        update(job)
        .where(job.c.id.in_([number for number, _ in jobs]))
        .values(state=JobState.CANCELING, stop_cause=StopCause.RELEASE_WITHDRAWN, pause_reason=None)
    )
    for number, before in jobs:
        insert_job_transition(
            connection,
            number,
            JobState(before),
            JobState.CANCELING,
            actor=by.display_name,
            cause="the firmware was withdrawn",
            now=now,
        )
    targets = [f"job-{number}" for number, _ in jobs]
    audit.record_changes(connection, by, "job.cancel", targets, now=now, cause=StopCause.RELEASE_WITHDRAWN)


_GATE_PAUSES: Final = frozenset({PauseReason.GATE, PauseReason.GATE_FAILED})
_STARTED_STATES: Final = frozenset({JobState.IN_PROGRESS, JobState.PAUSED})


def apply_job(connection: Connection, job_number: int, *, by: Actor, now: int) -> Job:
    """Start a job that was created with `autoApply` false (rest-132).

    If the job has started and stages images, allow its devices to start their staged image instead.
    """
    row = _lock_open_job(connection, job_number)
    state = JobState(row.state)
    if state is JobState.CREATED:
        started = build_start_columns(row.start_at, now)
        _write_transition(connection, row, started, command="apply", by=by, now=now)
    elif state not in _STARTED_STATES or not decode_job_body(row).stage:
        raise build_state_conflict(state)
    elif row.applied_at is None:
        connection.execute(update(job).where(job.c.id == job_number).values(applied_at=now))
        _record_command(connection, job_number, state, state, command="apply", by=by, now=now)
    return job_view.load_job(connection, job_number, now=now)


def pause_job(connection: Connection, job_number: int, *, by: Actor, now: int) -> Job:
    """Pause a job: no more updates start, but updates in progress continue."""
    row = _lock_open_job(connection, job_number)
    if row.state != JobState.PAUSED:
        paused = {"state": str(JobState.PAUSED), "pause_reason": str(PauseReason.USER)}
        _write_transition(connection, row, paused, command="pause", by=by, now=now)
    return job_view.load_job(connection, job_number, now=now)


def resume_job(connection: Connection, job_number: int, *, by: Actor, now: int) -> Job:
    """Resume a paused job. From now on, its abort criteria ignore the failures before the resume.

    If the job paused after a wave, start the next wave.
    """
    row = _lock_open_job(connection, job_number)
    if row.state != JobState.PAUSED:
        raise build_state_conflict(JobState(row.state))
    counts = job_view.load_counts(connection, job_number).count_by_state(from_wave=LEFT_OUT_WAVE + 1)
    ended = {state: count for state, count in counts.items() if state in TERMINAL_STATES}
    resumed = (
        build_start_columns(row.start_at, now)
        if row.started_at is None
        else {"state": str(JobState.IN_PROGRESS)}
    )
    resumed |= {"pause_reason": None, "armed": msgspec.json.encode(ended).decode()}
    if row.pause_reason in _GATE_PAUSES:
        resumed |= {"wave": row.wave + 1, "soaks_until": None}
    _write_transition(connection, row, resumed, command="resume", by=by, now=now)
    return job_view.load_job(connection, job_number, now=now)


def cancel_job(connection: Connection, job_number: int, *, by: Actor, now: int) -> Job:
    """Set a job to CANCELING. Then no queued update starts, and running updates are aborted if possible."""
    row = _lock_open_job(connection, job_number)
    if row.state != JobState.CANCELING:
        canceled = {
            "state": str(JobState.CANCELING),
            "stop_cause": str(StopCause.USER),
            "pause_reason": None,
        }
        _write_transition(connection, row, canceled, command="cancel", by=by, now=now)
    return job_view.load_job(connection, job_number, now=now)


def _lock_job(connection: Connection, job_number: int) -> Row[Any]:
    """Load the row of a job and lock it until the transaction ends. Raise `NotFound` if there is no row."""
    row = connection.execute(select(job).where(job.c.id == job_number).with_for_update()).first()
    if row is None:
        raise NotFound("job not found")
    return row


def _lock_open_job(connection: Connection, job_number: int) -> Row[Any]:
    """Load and lock the row of a job. Raise `Conflict` if the job has finished."""
    row = _lock_job(connection, job_number)
    if row.state in FINISHED_STATES:
        raise build_state_conflict(JobState(row.state))  # rest-138
    return row


def _write_transition(  # noqa: PLR0913 # the last three are keyword-only
    connection: Connection, row: Row[Any], values: dict[str, Any], *, command: str, by: Actor, now: int
) -> None:
    """Write the new state and other columns of a job after a command of a user.

    Raise `Conflict` if the job cannot change to the new state.
    """
    before, after = JobState(row.state), JobState(values["state"])
    check_job_transition(before, after)
    connection.execute(update(job).where(job.c.id == row.id).values(**values))
    _record_command(connection, row.id, before, after, command=command, by=by, now=now)


def _record_command(  # noqa: PLR0913 # the last three are keyword-only
    connection: Connection,
    job_number: int,
    before: JobState,
    after: JobState,
    *,
    command: str,
    by: Actor,
    now: int,
) -> None:
    """Record a command of a user in the history of the job and in the audit log."""
    insert_job_transition(
        connection, job_number, before, after, actor=by.display_name, cause=command, now=now
    )
    audit.record_change(connection, by, f"job.{command}", f"job-{job_number}", now=now)
