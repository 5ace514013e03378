"""Loads jobs in the form that the REST API returns, with counts, progress and wave states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition, firmware, job
from meshfleet.errors import NotFound
from meshfleet.protocol.decoders import get_decoder
from meshfleet.protocol.ids import format_model_number
from meshfleet.protocol.times import format_millis, format_optional_millis
from meshfleet.rest.job_requests import NewJob, StoredJobRequest
from meshfleet.rest.jobs import (
    ExecutionState,
    Job,
    JobState,
    JobWave,
    Outcome,
    PauseReason,
    StopCause,
    WaveState,
)
from meshfleet.rest.percent import reaches_percent
from meshfleet.service.clock import monotonic
from meshfleet.service.jobs.job_states import FAILURE_STATES, FINISHED_STATES
from meshfleet.service.jobs.rollout import LEFT_OUT_WAVE, ExecutionCounts
from meshfleet.service.jobs.updates.states import ACTIVE_STATES, TERMINAL_STATES
from meshfleet.service.jobs.waves import PlannedWave

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.rest.job_requests import Gate


# States of the waves of a job.

_RAN_STATES: Final = (ExecutionState.SUCCEEDED, *FAILURE_STATES)
"""Terminal states of executions whose update succeeded or failed, not of skipped or canceled updates."""

_PAUSED_WAVE_STATES: Final = {PauseReason.GATE: WaveState.HELD, PauseReason.GATE_FAILED: WaveState.FAILED}


def build_wave_states(
    row: Row[Any], gate: Gate, waves: Sequence[PlannedWave], counts: ExecutionCounts
) -> list[JobWave]:
    """Build the non-empty waves of a job with their states and counts."""
    states = [_find_wave_state(row, gate, wave, counts) for wave in range(len(waves))]
    return [
        JobWave(
            name=each.name,
            state=state,
            size=_count_devices(counts, wave),
            succeeded=counts.count(ExecutionState.SUCCEEDED, wave=wave),
            failed=counts.count(*FAILURE_STATES, wave=wave),
            soaks_until=_format_soak_end(row) if state is WaveState.SOAKING else None,
        )
        for wave, (each, state) in enumerate(zip(waves, states, strict=True))
        if _count_devices(counts, wave)
    ]


def _count_devices(counts: ExecutionCounts, wave: int) -> int:
    """Return the current number of devices in a wave.

    The number can grow: a device that wrongly reports the target version joins the last wave later.
    """
    return sum(count for (other, _), count in counts.items() if other == wave)


def _find_wave_state(row: Row[Any], gate: Gate, wave: int, counts: ExecutionCounts) -> WaveState:
    """Return the state of a wave. `row` is the row of the job, `wave` the index of the wave."""
    if row.state in FINISHED_STATES:
        return _find_final_wave_state(gate, wave, counts)
    if wave < row.wave:
        return WaveState.PASSED if _has_passed_gate(gate, wave, counts) else WaveState.FAILED
    if wave > row.wave or row.started_at is None:
        return WaveState.WAITING
    if row.state == JobState.PAUSED and row.pause_reason in _PAUSED_WAVE_STATES:
        return _PAUSED_WAVE_STATES[row.pause_reason]
    return WaveState.RUNNING if row.soaks_until is None else WaveState.SOAKING


def _format_soak_end(row: Row[Any]) -> str:
    """Return the wall-clock time at which the soak time of the current wave ends."""
    return format_millis(monotonic.to_wall_time(row.soaks_until))


def _find_final_wave_state(gate: Gate, wave: int, counts: ExecutionCounts) -> WaveState:
    """Return the state of a wave of a finished job: SKIPPED if no execution succeeded or failed."""
    if not counts.count(*_RAN_STATES, wave=wave):
        return WaveState.SKIPPED
    is_complete = not counts.count(ExecutionState.CANCELED, wave=wave)
    return WaveState.PASSED if is_complete and _has_passed_gate(gate, wave, counts) else WaveState.FAILED


def _has_passed_gate(gate: Gate, wave: int, counts: ExecutionCounts) -> bool:
    """Return whether enough updates of a wave that ran have succeeded."""
    ran = counts.count(*_RAN_STATES, wave=wave)
    return reaches_percent(counts.count(ExecutionState.SUCCEEDED, wave=wave), ran, gate.success_percent)


# Job objects.

_FULL_PERCENT: Final = 100

_MOVING_STATES: Final = ACTIVE_STATES - {ExecutionState.STAGED}
"""Active execution states except STAGED, which usually waits for a user."""

_LATEST_ETA_MS: Final = 4_102_444_800_000
"""Start of the year 2100 as Unix time in milliseconds. A later estimated end of a job is not returned."""


class JobProgress(NamedTuple):
    """Values from which the progress and the estimated end of a job are computed."""

    counts: ExecutionCounts
    active_percents: int
    """Sum of the transfer percentages of all active executions."""
    resumed_at: int | None
    """Unix time in milliseconds at which the job was last resumed; None if it was never resumed."""


def build_job(row: Row[Any], progress: JobProgress, now: int) -> Job:
    """Build a `Job` from a row that `load_job_row` returns, and from its progress (rest-131)."""
    body, counts = decode_job_body(row), progress.counts
    body_fields = asdict(body) | {
        "start_at": format_optional_millis(row.start_at),
        "deadline": format_optional_millis(row.deadline),
    }
    return Job(
        id=f"job-{row.id}",
        **body_fields,
        model_number=format_model_number(row.model),
        version=row.version,
        state=JobState(row.state),
        outcome=None if row.outcome is None else Outcome(row.outcome),
        stop_cause=None if row.stop_cause is None else StopCause(row.stop_cause),
        pause_reason=None if row.pause_reason is None else PauseReason(row.pause_reason),
        counts=dict.fromkeys(ExecutionState, 0) | counts.count_by_state(),
        left_out=counts.left_out,
        progress=_compute_percent(progress),
        eta=_estimate_end(row, progress, now),
        wave_states=build_wave_states(row, body.gate, decode_waves(row), counts),
        created_by=row.created_by,
        created_at=format_millis(row.created_at),
        started_at=format_optional_millis(row.started_at),
        applied_at=format_optional_millis(row.applied_at),
        finished_at=format_optional_millis(row.finished_at),
        parent_job_id=None if row.parent is None else f"job-{row.parent}",
    )


def decode_job_body(row: Row[Any]) -> NewJob:
    """Decode the body of the request with which a job was created."""
    return get_decoder(StoredJobRequest).decode(row.body)


def decode_waves(row: Row[Any]) -> list[PlannedWave]:
    """Decode the planned waves of a job."""
    return [PlannedWave(**each) for each in msgspec.json.decode(row.waves)]


def _compute_percent(progress: JobProgress) -> int:
    """Compute the progress of a job: the mean percentage of the executions in its waves.

    Ended executions count as 100 %.
    """
    counts = progress.counts.count_by_state(from_wave=LEFT_OUT_WAVE + 1)
    done = (
        sum(count for state, count in counts.items() if state in TERMINAL_STATES) * _FULL_PERCENT
        + progress.active_percents
    )
    percent = min(done // sum(counts.values()), _FULL_PERCENT) if counts else _FULL_PERCENT
    # 100 % is shown only when all executions have ended.
    return min(percent, _FULL_PERCENT - 1) if progress.counts.unfinished else percent


def _estimate_end(row: Row[Any], progress: JobProgress, now: int) -> str | None:
    """Estimate the end of a job from its speed since it started or was last resumed (rest-209).

    Return None while no update makes progress, because all wait for users or for offline devices.
    """
    counts = progress.counts.count_by_state(from_wave=LEFT_OUT_WAVE + 1)
    finished = sum(
        count for state, count in counts.items() if state in TERMINAL_STATES
    ) - _count_finished_before(row)
    is_moving = any(counts.get(state) for state in _MOVING_STATES)
    if row.state != JobState.IN_PROGRESS or row.started_at is None or finished <= 0 or not is_moving:
        return None
    since = max(row.started_at, progress.resumed_at or 0)
    unfinished = sum(count for state, count in counts.items() if state not in TERMINAL_STATES)
    end = now + max(now - since, 0) * unfinished // finished
    return format_millis(end) if end < _LATEST_ETA_MS else None


def _count_finished_before(row: Row[Any]) -> int:
    """Return how many executions had ended when the job was last resumed."""
    return sum(msgspec.json.decode(row.armed, type=dict[str, int]).values())


_SELECT_JOBS: Final = select(job, firmware.c.model, firmware.c.version).join(
    firmware, firmware.c.id == job.c.firmware
)
_SELECT_TALLIES: Final = "SELECT job, wave, state, count FROM tally WHERE job IN numbers"
# `due >= 0` and `+job` make SQLite use the index of active executions instead of reading the whole job.
_SELECT_PROGRESS: Final = (
    f"SELECT +job, sum(progress) FROM execution WHERE {active_condition()} AND due >= 0"  # noqa: S608 # constants only
    " AND +job IN numbers GROUP BY +job"
)
# Transitions of the job itself have no device; there are few of them.
_SELECT_RESUMED: Final = (
    "SELECT job, max(time) FROM transition WHERE job IN numbers AND device IS NULL"
    " AND before = 'PAUSED' AND after = 'IN_PROGRESS' GROUP BY job"
)


class JobListing(Struct, frozen=True, kw_only=True):
    """Filter of the list of jobs. An empty tuple or None matches any value."""

    states: tuple[JobState, ...] = ()
    firmware: str | None = None


def list_jobs(
    connection: Connection, listing: JobListing, *, before: int | None, limit: int, now: int
) -> list[Job]:
    """List jobs, the newest first. If `before` is not None, list jobs with a lower number (rest-136)."""
    query = _SELECT_JOBS.order_by(job.c.id.desc()).limit(limit)
    if listing.states:
        query = query.where(job.c.state.in_([str(state) for state in listing.states]))
    if listing.firmware is not None:
        query = query.where(job.c.firmware == listing.firmware)
    if before is not None:
        query = query.where(job.c.id < before)
    return _build_jobs(connection, connection.execute(query).all(), now)


def load_job(connection: Connection, job_number: int, *, now: int) -> Job:
    """Load a job. Raise `NotFound` if the job does not exist."""
    return _build_jobs(connection, [load_job_row(connection, job_number)], now)[0]


def load_jobs(connection: Connection, job_numbers: Collection[int], *, now: int) -> dict[int, Job]:
    """Load jobs, by job number. Leave out jobs that do not exist."""
    rows = load_job_rows(connection, job_numbers)
    return dict(zip(rows, _build_jobs(connection, list(rows.values()), now), strict=True))


def list_newest_open_jobs(connection: Connection, limit: int, *, now: int) -> dict[int, Job]:
    """Load the newest open jobs, at most `limit`, by job number."""
    query = _SELECT_JOBS.where(job.c.finished_at.is_(None)).order_by(job.c.id.desc()).limit(limit)
    rows = connection.execute(query).all()
    return dict(zip([each.id for each in rows], _build_jobs(connection, rows, now), strict=True))


def load_job_rows(connection: Connection, job_numbers: Collection[int]) -> dict[int, Row[Any]]:
    """Load the rows of jobs with model and version of the firmware, by job number. Omit unknown jobs."""
    rows = connection.execute(_SELECT_JOBS.where(job.c.id.in_(job_numbers))) if job_numbers else ()
    return {each.id: each for each in rows}


def load_job_row(connection: Connection, job_number: int) -> Row[Any]:
    """Load the row of a job with the model and version of its firmware.

    Raise `NotFound` if the job does not exist.
    """
    row = connection.execute(_SELECT_JOBS.where(job.c.id == job_number)).first()
    if row is None:
        raise NotFound("job not found")
    return row


def load_counts(connection: Connection, job_number: int) -> ExecutionCounts:
    """Load the number of executions of a job by wave and state."""
    return _load_counts_by_job(connection, [job_number])[job_number]


def _build_jobs(connection: Connection, rows: Sequence[Row[Any]], now: int) -> list[Job]:
    """Build the jobs of rows, and load their counts, progress and last resume."""
    numbers = [each.id for each in rows]
    counts = _load_counts_by_job(connection, numbers)
    active_percents = {each[0]: int(each[1]) for each in bulk.query_in(connection, _SELECT_PROGRESS, numbers)}
    resumed = _load_resumed_at(connection, rows)
    return [
        build_job(
            each, JobProgress(counts[each.id], active_percents.get(each.id, 0), resumed.get(each.id)), now
        )
        for each in rows
    ]


def _load_resumed_at(connection: Connection, rows: Sequence[Row[Any]]) -> dict[int, int]:
    """Load the time at which jobs in progress were last resumed, by job number. Omit jobs never resumed."""
    numbers = [each.id for each in rows if each.state == JobState.IN_PROGRESS]
    return (
        {each[0]: each[1] for each in bulk.query_in(connection, _SELECT_RESUMED, numbers)} if numbers else {}
    )


def _load_counts_by_job(connection: Connection, numbers: Sequence[int]) -> dict[int, ExecutionCounts]:
    """Load the number of executions by wave and state, by job number."""
    counts = {number: ExecutionCounts() for number in numbers}
    for number, wave, state, count in bulk.query_in(connection, _SELECT_TALLIES, numbers):
        counts[number][wave, ExecutionState(state)] = count
    return counts
