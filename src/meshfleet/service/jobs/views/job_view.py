"""Jobs in the database, for people who look at them."""

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
from meshfleet.protocol.times import format_millis
from meshfleet.rest import (
    ExecutionState,
    Job,
    JobState,
    JobWave,
    NewJob,
    Outcome,
    PauseReason,
    StopCause,
    StoredJobRequest,
    WaveState,
)
from meshfleet.rest import ExecutionState as E
from meshfleet.rest.percent import reaches_percent
from meshfleet.service.clock import steady
from meshfleet.service.jobs.job_states import FAILURE_STATES, FINISHED_STATES
from meshfleet.service.jobs.rollout import LEFT_OUT_WAVE, ExecutionCounts
from meshfleet.service.jobs.updates.states import ACTIVE_STATES, TERMINAL_STATES
from meshfleet.service.jobs.waves import PlannedWave

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.rest import Gate


# Where each wave of a job is.

_RAN_STATES: Final = (E.SUCCEEDED, *FAILURE_STATES)
"""Who is over, and was not just left out."""

_PAUSED_WAVE_STATES: Final = {PauseReason.GATE: WaveState.HELD, PauseReason.GATE_FAILED: WaveState.FAILED}


def build_wave_states(
    row: Row[Any], gate: Gate, waves: Sequence[PlannedWave], counts: ExecutionCounts
) -> list[JobWave]:
    """The waves of a job as they stand."""
    states = [_find_wave_state(row, gate, wave, counts) for wave in range(len(waves))]
    return [
        JobWave(
            name=each.name,
            state=state,
            size=_count_devices(counts, wave),
            succeeded=counts.count(E.SUCCEEDED, wave=wave),
            failed=counts.count(*FAILURE_STATES, wave=wave),
            soaks_until=_format_soak_end(row) if state is WaveState.SOAKING else None,
        )
        for wave, (each, state) in enumerate(zip(waves, states, strict=True))
        if _count_devices(counts, wave)
    ]


def _count_devices(counts: ExecutionCounts, wave: int) -> int:
    """Return how many devices are in a wave. Those that misreported their version came to it later."""
    return sum(count for (place, _), count in counts.items() if place == wave)


def _find_wave_state(row: Row[Any], gate: Gate, wave: int, counts: ExecutionCounts) -> WaveState:
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
    return format_millis(steady.to_wall_time(row.soaks_until))


def _find_final_wave_state(gate: Gate, wave: int, counts: ExecutionCounts) -> WaveState:
    """A wave of a job that is over: one of which nobody ran was left out."""
    if not counts.count(*_RAN_STATES, wave=wave):
        return WaveState.SKIPPED
    is_whole = not counts.count(E.CANCELED, wave=wave)
    return WaveState.PASSED if is_whole and _has_passed_gate(gate, wave, counts) else WaveState.FAILED


def _has_passed_gate(gate: Gate, wave: int, counts: ExecutionCounts) -> bool:
    ran = counts.count(*_RAN_STATES, wave=wave)
    return reaches_percent(counts.count(E.SUCCEEDED, wave=wave), ran, gate.success_percent)


# A job as it is shown.

_FULL_PERCENT: Final = 100
"""Percent."""

_MOVING_STATES: Final = ACTIVE_STATES - {ExecutionState.STAGED}
"""Who keeps an image waits for people, as a rule."""

_LATEST_ETA_MS: Final = 4_102_444_800_000
"""The year 2100: what would take longer is not known."""


class JobProgress(NamedTuple):
    """How a job goes."""

    counts: ExecutionCounts
    active_percents: int
    """Percents of all active executions together."""
    resumed_at: int | None
    """When it was last resumed, if it was paused before."""


def build_job(row: Row[Any], progress: JobProgress, now: int) -> Job:
    """A row of `job`, with the model and version of its firmware (rest-131)."""
    order, counts = decode_job_body(row), progress.counts
    ordered = asdict(order) | {
        "start_at": format_optional_time(row.start_at),
        "deadline": format_optional_time(row.deadline),
    }
    return Job(
        id=f"job-{row.id}",
        **ordered,
        model_number=format_model_number(row.model),
        version=row.version,
        state=JobState(row.state),
        outcome=None if row.outcome is None else Outcome(row.outcome),
        stop_cause=None if row.stop_cause is None else StopCause(row.stop_cause),
        pause_reason=None if row.pause_reason is None else PauseReason(row.pause_reason),
        counts=dict.fromkeys(ExecutionState, 0) | counts.by_state(),
        left_out=counts.left_out,
        progress=_compute_percent(progress),
        eta=_estimate_end(row, progress, now),
        wave_states=build_wave_states(row, order.gate, decode_waves(row), counts),
        created_by=row.created_by,
        created_at=format_millis(row.created_at),
        started_at=format_optional_time(row.started_at),
        applied_at=format_optional_time(row.applied_at),
        finished_at=format_optional_time(row.finished_at),
        parent_job_id=None if row.parent is None else f"job-{row.parent}",
    )


def decode_job_body(row: Row[Any]) -> NewJob:
    """What a job was made of."""
    return get_decoder(StoredJobRequest).decode(row.body)


def decode_waves(row: Row[Any]) -> list[PlannedWave]:
    """The waves of a job as they fell."""
    return [PlannedWave(**each) for each in msgspec.json.decode(row.waves)]


def format_optional_time(millis: int | None) -> str | None:
    """A time that may not be."""
    return None if millis is None else format_millis(millis)


def _compute_percent(standing: JobProgress) -> int:
    """The mean over all that were not left out from the beginning: who is over is done, however it went."""
    ran = standing.counts.by_state(from_wave=LEFT_OUT_WAVE + 1)
    done = (
        sum(count for state, count in ran.items() if state in TERMINAL_STATES) * _FULL_PERCENT
        + standing.active_percents
    )
    progress = min(done // sum(ran.values()), _FULL_PERCENT) if ran else _FULL_PERCENT
    return (
        min(progress, _FULL_PERCENT - 1) if standing.counts.unfinished else progress
    )  # it is not done before all are


def _estimate_end(row: Row[Any], progress: JobProgress, now: int) -> str | None:
    """When it will be over if it goes on as it did since it began, or went on after a pause (rest-209).

    Nobody can tell while nothing is under way: what is left waits for people, or for devices that are away.
    """
    ran = progress.counts.by_state(from_wave=LEFT_OUT_WAVE + 1)
    finished = sum(
        count for state, count in ran.items() if state in TERMINAL_STATES
    ) - _count_finished_before(row)
    is_moving = any(ran.get(state) for state in _MOVING_STATES)
    if row.state != JobState.IN_PROGRESS or row.started_at is None or finished <= 0 or not is_moving:
        return None
    since = max(row.started_at, progress.resumed_at or 0)
    left = sum(count for state, count in ran.items() if state not in TERMINAL_STATES)
    at = now + max(now - since, 0) * left // finished
    return format_millis(at) if at < _LATEST_ETA_MS else None


def _count_finished_before(row: Row[Any]) -> int:
    """How many had ended when the job was last resumed, from where its abort criteria count as well."""
    return sum(msgspec.json.decode(row.armed, type=dict[str, int]).values())


_SELECT_JOBS: Final = select(job, firmware.c.model, firmware.c.version).join(
    firmware, firmware.c.id == job.c.firmware
)
_SELECT_TALLIES: Final = "SELECT job, wave, state, count FROM tally WHERE job IN numbers"
# By when they are due, which all are, and with signs before the job: SQLite would look at all of the job.
_SELECT_PROGRESS: Final = (
    f"SELECT +job, sum(progress) FROM execution WHERE {active_condition()} AND due >= 0"  # noqa: S608 # our own words
    " AND +job IN numbers GROUP BY +job"
)
# Few rows of each job: its own steps have no device.
_SELECT_RESUMED: Final = (
    "SELECT job, max(time) FROM transition WHERE job IN numbers AND device IS NULL"
    " AND before = 'PAUSED' AND after = 'IN_PROGRESS' GROUP BY job"
)


class JobListing(Struct, frozen=True, kw_only=True):
    """Which jobs are meant."""

    states: tuple[JobState, ...] = ()
    firmware: str | None = None


def list_jobs(
    connection: Connection, listing: JobListing, *, before: int | None, limit: int, now: int
) -> list[Job]:
    """The newest jobs, or those before one (rest-136)."""
    query = _SELECT_JOBS.order_by(job.c.id.desc()).limit(limit)
    if listing.states:
        query = query.where(job.c.state.in_([str(state) for state in listing.states]))
    if listing.firmware is not None:
        query = query.where(job.c.firmware == listing.firmware)
    if before is not None:
        query = query.where(job.c.id < before)
    return _build_jobs(connection, connection.execute(query).all(), now)


def load_job(connection: Connection, job_number: int, *, now: int) -> Job:
    """One of them."""
    return _build_jobs(connection, [load_job_row(connection, job_number)], now)[0]


def load_jobs(connection: Connection, job_numbers: Collection[int], *, now: int) -> dict[int, Job]:
    """Some of them by their numbers; those that there are not are left out."""
    found = load_job_rows(connection, job_numbers)
    return dict(zip(found, _build_jobs(connection, list(found.values()), now), strict=True))


def list_newest_open_jobs(connection: Connection, limit: int, *, now: int) -> dict[int, Job]:
    """The newest ones that are not over, by their numbers."""
    query = _SELECT_JOBS.where(job.c.finished_at.is_(None)).order_by(job.c.id.desc()).limit(limit)
    found = connection.execute(query).all()
    return dict(zip([each.id for each in found], _build_jobs(connection, found, now), strict=True))


def load_job_rows(connection: Connection, job_numbers: Collection[int]) -> dict[int, Row[Any]]:
    """The rows of some jobs by their numbers, as `row` gives them; those that there are not are left out."""
    found = connection.execute(_SELECT_JOBS.where(job.c.id.in_(job_numbers))) if job_numbers else ()
    return {each.id: each for each in found}


def load_job_row(connection: Connection, job_number: int) -> Row[Any]:
    """The row of a job, with the model and version of its firmware."""
    found = connection.execute(_SELECT_JOBS.where(job.c.id == job_number)).first()
    if found is None:
        raise NotFound("there is no such job")
    return found


def load_counts(connection: Connection, job_number: int) -> ExecutionCounts:
    """How many executions of a job are in which state, by wave."""
    return _load_counts(connection, [job_number])[job_number]


def _build_jobs(connection: Connection, rows: Sequence[Row[Any]], now: int) -> list[Job]:
    numbers = [each.id for each in rows]
    counts = _load_counts(connection, numbers)
    moved = {each[0]: int(each[1]) for each in bulk.query_in(connection, _SELECT_PROGRESS, numbers)}
    resumed = _load_resumed_at(connection, rows)
    return [
        build_job(each, JobProgress(counts[each.id], moved.get(each.id, 0), resumed.get(each.id)), now)
        for each in rows
    ]


def _load_resumed_at(connection: Connection, rows: Sequence[Row[Any]]) -> dict[int, int]:
    """When jobs that are in progress were resumed, if they were."""
    numbers = [each.id for each in rows if each.state == JobState.IN_PROGRESS]
    return (
        {each[0]: each[1] for each in bulk.query_in(connection, _SELECT_RESUMED, numbers)} if numbers else {}
    )


def _load_counts(connection: Connection, numbers: Sequence[int]) -> dict[int, ExecutionCounts]:
    found = {number: ExecutionCounts() for number in numbers}
    for number, wave, state, count in bulk.query_in(connection, _SELECT_TALLIES, numbers):
        found[number][wave, ExecutionState(state)] = count
    return found
