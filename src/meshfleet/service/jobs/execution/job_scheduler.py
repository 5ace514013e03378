"""Advances jobs: starts waves, pauses and ends jobs, and starts queued executions."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition
from meshfleet.rest.jobs import ExecutionState, JobState, StopCause
from meshfleet.service.actor import SERVICE
from meshfleet.service.audit import log as audit
from meshfleet.service.jobs.execution import dispatch, execution_events, queue_cleanup
from meshfleet.service.jobs.execution.dispatch import DispatchParameters
from meshfleet.service.jobs.execution.gateway_slots import try_acquire_dispatch_lock
from meshfleet.service.jobs.job_states import check_job_transition
from meshfleet.service.jobs.rollout import (
    LEFT_OUT_WAVE,
    RolloutState,
    compute_allowance,
    find_next_transition,
)
from meshfleet.service.jobs.store import ENGINE_ACTOR, insert_job_transition
from meshfleet.service.jobs.updates.states import CANCELABLE_STATES
from meshfleet.service.jobs.views.job_view import load_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.rest.job_requests import NewJob
    from meshfleet.service.clock import ClockReading
    from meshfleet.service.jobs.execution.queries import GatewayRoutes, JobSpecCache
    from meshfleet.service.jobs.notifications import ExecutionChange
    from meshfleet.service.jobs.rollout import ExecutionCounts, JobTransition

_SELECT_OPEN: Final = "SELECT id, state FROM job WHERE finished_at IS NULL AND id > ? ORDER BY id LIMIT 100"
_SELECT_JOB: Final = (
    "SELECT state, start_at, deadline, waves, wave, soaks_until, paced_until, armed, queue_until, applied_at,"
    " stop_cause"
    " FROM job j WHERE id = ? AND finished_at IS NULL"
)
_LOCK: Final = " FOR UPDATE OF j"
_UPDATE_PACED_UNTIL: Final = "UPDATE job SET paced_until = ? WHERE id = ?"
# `+job` makes SQLite use the index of active executions instead of reading the whole job.
_MAKE_CANCELABLE_DUE: Final = (
    f"UPDATE execution SET due = ? WHERE +job = ? AND {active_condition()} AND due > ?"  # noqa: S608 # constants only
    " AND state IN ('DISPATCHED', 'TRANSFERRING', 'VERIFYING', 'STAGED')"
    # An execution that awaits a response is not disturbed, unless it only reads the version.
    " AND (ask IS NULL OR (state = 'DISPATCHED' AND step = 'look' AND tries = 0 AND batch IS NULL))"
    " AND coalesce(waiting, '') <> 'canceling'"
)
_MAKE_STAGED_DUE: Final = (
    f"UPDATE execution SET due = ? WHERE +job = ? AND {active_condition()} AND due > ?"  # noqa: S608 # constants only
    " AND state = 'STAGED' AND ask IS NULL"
    " AND coalesce(step, '') <> 'apply'"  # a failed apply is repeated after its own delay
)
_MINUTE_MS: Final = 60_000


class JobAdvanceResult(NamedTuple):
    """Result of a transaction that advanced a job: changed executions, new requests, and what is left."""

    changed: list[ExecutionChange]
    request_count: int
    has_more: bool
    """Whether the job can be advanced further immediately."""
    is_changed: bool = False
    """Whether the job itself changed, so that a live event is published."""
    is_idle: bool = False
    """Whether the job has nothing to do now. An idle job is checked again after a change or some seconds."""
    is_canceling: bool = False
    """Whether the job is being canceled, so that no more updates may start."""
    unrouted: Sequence[int] = ()
    """Devices whose update could start, once a gateway is selected for them."""


NO_ADVANCE: Final = JobAdvanceResult([], 0, has_more=False)
"""Result of a transaction that changed nothing; the job is checked again in the next round."""
IDLE_ADVANCE: Final = NO_ADVANCE._replace(is_idle=True)
"""Result of a transaction that changed nothing, because the job has nothing to do."""


def list_open_jobs(connection: Connection, after: int) -> dict[int, JobState]:
    """Return the states of at most 100 open jobs with numbers above `after`, by job number."""
    return {number: JobState(state) for number, state in bulk.query_rows(connection, _SELECT_OPEN, (after,))}


class _OpenJob(NamedTuple):
    """Unfinished job with all data that decides how the job advances."""

    number: int
    rollout: RolloutState
    counts: ExecutionCounts
    queue_until: int | None
    """Monotonic time in milliseconds at which queued executions time out; None if the job has not started."""
    applied_at: int | None
    """Unix time in milliseconds at which a user applied the job; None if no user has."""
    stop_cause: StopCause | None


def advance_job(
    connection: Connection,
    spec_cache: JobSpecCache,
    job_number: int,
    now: ClockReading,
    routes: GatewayRoutes | None = None,
) -> JobAdvanceResult:
    """Advance a job: write its next transition, or end or start queued executions.

    Do nothing if another process holds the dispatch lock. For `routes` see `dispatch.dispatch_executions`.
    """
    if not try_acquire_dispatch_lock(connection):
        return NO_ADVANCE
    job = _load_job(connection, spec_cache, job_number)
    if job is None:
        return NO_ADVANCE
    change = find_next_transition(job.rollout, job.counts, now=now.monotonic, wall_time=now.wall)
    if change is not None:
        _write_job_transition(connection, job, change, now.wall)
        return JobAdvanceResult([], 0, has_more=True, is_changed=True)
    if job.queue_until is None and job.rollout.state is JobState.IN_PROGRESS:
        _start_queue_timeout(connection, job, now.monotonic)
    _make_executions_due(connection, job, now.monotonic)
    if job.rollout.state is JobState.CANCELING and job.counts.count(ExecutionState.DISPATCHED):
        withdrawn = execution_events.withdraw_unsent_starts(connection, spec_cache, job_number, now, routes)
        if withdrawn.changed or withdrawn.request_count or withdrawn.has_more:
            return JobAdvanceResult(
                withdrawn.changed, withdrawn.request_count, has_more=True, is_changed=True, is_canceling=True
            )
    ended = _end_queued_executions(connection, job, now)
    if ended or job.rollout.state is not JobState.IN_PROGRESS:
        is_canceling = job.rollout.state is JobState.CANCELING
        result = JobAdvanceResult(ended, 0, has_more=bool(ended), is_changed=bool(ended), is_idle=not ended)
        return result._replace(is_canceling=is_canceling)
    return _dispatch_executions(connection, spec_cache, job, now, routes)


def _load_job(connection: Connection, spec_cache: JobSpecCache, job_number: int) -> _OpenJob | None:
    """Load an unfinished job and lock its row. Return None if the job has finished or was deleted."""
    rows = bulk.query_rows(connection, _SELECT_JOB, (job_number,), lock=_LOCK)
    if not rows:
        return None
    *rollout_columns, queue_until, applied_at, stop_cause = rows[0]
    body = spec_cache.load_body(connection, job_number)
    return _OpenJob(
        job_number,
        _build_rollout_state(body, rollout_columns),
        load_counts(connection, job_number),
        queue_until,
        applied_at,
        None if stop_cause is None else StopCause(stop_cause),
    )


def _build_rollout_state(body: NewJob, row: Sequence[Any]) -> RolloutState:
    """Build the state of a rollout from the body of the job request and columns of the job."""
    state, start_at, deadline, waves, wave, soaks_until, paced_until, armed = row
    return RolloutState(
        state=JobState(state),
        body=body,
        start_at=start_at,
        deadline=deadline,
        wave_count=len(msgspec.json.decode(waves)),
        wave=wave,
        soaks_until=soaks_until,
        paced_until=paced_until,
        abort_baseline=msgspec.json.decode(armed, type=dict[str, int]),
    )


def _write_job_transition(
    connection: Connection, job: _OpenJob, change: JobTransition, wall_time: int
) -> None:
    """Write a transition of a job that the service decided: new state, history and audit log."""
    before, after = job.rollout.state, change.state
    if after is not before:
        check_job_transition(before, after)
    values: dict[str, Any] = {
        "state": str(after),
        "pause_reason": None if change.pause_reason is None else str(change.pause_reason),
    }
    if change.wave is not None:
        values |= {"wave": change.wave, "soaks_until": change.soaks_until}
    if change.stop_cause is not None:
        values["stop_cause"] = str(change.stop_cause)
    if change.outcome is not None:
        values |= {"outcome": str(change.outcome), "finished_at": wall_time}
    if before is JobState.SCHEDULED and after is JobState.IN_PROGRESS:
        values["started_at"] = wall_time
    assignments = ", ".join(f"{name} = ?" for name in values)
    statement = f"UPDATE job SET {assignments} WHERE id = ?"  # noqa: S608 # constants only
    bulk.execute_one(connection, statement, (*values.values(), job.number))
    insert_job_transition(
        connection, job.number, before, after, actor=ENGINE_ACTOR, cause=change.cause, now=wall_time
    )
    _audit_stop(connection, job.number, change, wall_time)


def _audit_stop(connection: Connection, job_number: int, change: JobTransition, wall_time: int) -> None:
    """Record in the audit log that the service paused or canceled a job, and why (rest-210)."""
    cause = change.pause_reason or change.stop_cause
    if cause is not None:
        action = "job.cancel" if change.pause_reason is None else "job.pause"
        details = {"cause": str(cause), "reason": change.cause}
        audit.record_change(connection, SERVICE, action, f"job-{job_number}", now=wall_time, **details)


def _start_queue_timeout(connection: Connection, job: _OpenJob, now: int) -> None:
    """Store the monotonic time in milliseconds at which the queued executions of a job time out."""
    timeout = int(job.rollout.body.timeouts.queue_minutes * _MINUTE_MS)
    bulk.execute_one(connection, "UPDATE job SET queue_until = ? WHERE id = ?", (now + timeout, job.number))


def _make_executions_due(connection: Connection, job: _OpenJob, now: int) -> None:
    """Make executions due now if they must react to a cancel or apply command for their job."""
    if job.rollout.state is JobState.CANCELING and any(job.counts.count(each) for each in CANCELABLE_STATES):
        bulk.execute_one(connection, _MAKE_CANCELABLE_DUE, (now, job.number, now))
    elif job.applied_at is not None and job.counts.count(ExecutionState.STAGED):
        bulk.execute_one(connection, _MAKE_STAGED_DUE, (now, job.number, now))


def _end_queued_executions(connection: Connection, job: _OpenJob, now: ClockReading) -> list[ExecutionChange]:
    """End a limited number of queued executions that are canceled or have timed out. Return these."""
    if not job.counts.count(ExecutionState.QUEUED):
        return []
    if job.rollout.state is JobState.CANCELING:
        return queue_cleanup.cancel_queued_executions(connection, job.number, job.stop_cause, now.wall)
    return queue_cleanup.expire_queued_executions(connection, job.number, job.queue_until, now)


def _dispatch_executions(
    connection: Connection,
    spec_cache: JobSpecCache,
    job: _OpenJob,
    now: ClockReading,
    routes: GatewayRoutes | None,
) -> JobAdvanceResult:
    """Start as many queued executions as the rate limit and the concurrency limits of a job allow."""
    rollout, counts = job.rollout, job.counts
    allowance = compute_allowance(rollout, counts, now.monotonic, dispatch.CANDIDATES_PER_TRANSACTION)
    # Devices that report the target version are in no wave, and are checked after all waves.
    waves = [
        wave
        for wave in (*range(rollout.wave + 1), LEFT_OUT_WAVE)
        if counts.count(ExecutionState.QUEUED, wave=wave)
    ]
    if not waves:
        return IDLE_ADVANCE
    if not allowance.slots:
        return NO_ADVANCE
    parameters = DispatchParameters(
        spec_cache.load_specs(connection, [job.number])[job.number],
        per_gateway=rollout.body.concurrency.per_gateway,
        wave=rollout.wave,
        slots=allowance.slots,
        broadcast_slots=allowance.broadcast_slots,
        queue_length=counts.count(ExecutionState.QUEUED),
        is_supersedable=rollout.body.on_newer_job == "supersede",
    )
    result = dispatch.dispatch_executions(connection, parameters, waves, now, routes)
    if allowance.interval_ms and result.started:
        until = ceil(allowance.paced_until + result.started * allowance.interval_ms)
        bulk.execute_one(connection, _UPDATE_PACED_UNTIL, (until, job.number))
    return JobAdvanceResult(result.changed, result.request_count, result.has_more, unrouted=result.unrouted)
