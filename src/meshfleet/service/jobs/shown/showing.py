"""A job as it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import asdict

from meshfleet.service.jobs.making.waves import FallenWave
from meshfleet.service.jobs.plan import LEFT_OUT, Counts
from meshfleet.service.jobs.shown.wave_states import wave_states
from meshfleet.service.jobs.update.states import ACTIVE, TERMINAL
from meshfleet.wire.decoders import decoder_of
from meshfleet.wire.ids import model_number
from meshfleet.wire.rest import (
    ExecutionState,
    Job,
    JobState,
    KeptJob,
    NewJob,
    Outcome,
    PauseReason,
    StopCause,
)
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from sqlalchemy import Row

_FULL: Final = 100
"""Percent."""

_MOVING: Final = ACTIVE - {ExecutionState.STAGED}
"""Who keeps an image waits for people, as a rule."""

_LATEST: Final = 4_102_444_800_000
"""The year 2100: what would take longer is not known."""


class Standing(NamedTuple):
    """How a job goes."""

    counts: Counts
    moved: int
    """Percents of all active executions together."""
    resumed_at: int | None
    """When it was last resumed, if it was paused before."""


def show_job(row: Row[Any], standing: Standing, now: int) -> Job:
    """A row of `job`, with the model and version of its firmware (rest-131)."""
    order, counts = order_of(row), standing.counts
    ordered = asdict(order) | {"start_at": time(row.start_at), "deadline": time(row.deadline)}
    return Job(
        id=f"job-{row.id}",
        **ordered,
        model_number=model_number(row.model),
        version=row.version,
        state=JobState(row.state),
        outcome=None if row.outcome is None else Outcome(row.outcome),
        stop_cause=None if row.stop_cause is None else StopCause(row.stop_cause),
        pause_reason=None if row.pause_reason is None else PauseReason(row.pause_reason),
        counts=dict.fromkeys(ExecutionState, 0) | counts.by_state(),
        left_out=counts.left_out,
        progress=_progress(standing),
        eta=_eta(row, standing, now),
        wave_states=wave_states(row, order.gate, fallen_of(row), counts),
        created_by=row.created_by,
        created_at=write_millis(row.created_at),
        started_at=time(row.started_at),
        applied_at=time(row.applied_at),
        finished_at=time(row.finished_at),
        parent_job_id=None if row.parent is None else f"job-{row.parent}",
    )


def order_of(row: Row[Any]) -> NewJob:
    """What a job was made of."""
    return decoder_of(KeptJob).decode(row.body)


def fallen_of(row: Row[Any]) -> list[FallenWave]:
    """The waves of a job as they fell."""
    return [FallenWave(**each) for each in msgspec.json.decode(row.waves)]


def time(millis: int | None) -> str | None:
    """A time that may not be."""
    return None if millis is None else write_millis(millis)


def _progress(standing: Standing) -> int:
    """The mean over all that were not left out from the beginning: who is over is done, however it went."""
    ran = standing.counts.by_state(since=LEFT_OUT + 1)
    done = sum(count for state, count in ran.items() if state in TERMINAL) * _FULL + standing.moved
    progress = min(done // sum(ran.values()), _FULL) if ran else _FULL
    return min(progress, _FULL - 1) if standing.counts.open else progress  # it is not done before all are


def _eta(row: Row[Any], standing: Standing, now: int) -> str | None:
    """When it will be over if it goes on as it did since it began, or went on after a pause (rest-209).

    Nobody can tell while nothing is under way: what is left waits for people, or for devices that are away.
    """
    ran = standing.counts.by_state(since=LEFT_OUT + 1)
    finished = sum(count for state, count in ran.items() if state in TERMINAL) - _finished_before(row)
    is_moving = any(ran.get(state) for state in _MOVING)
    if row.state != JobState.IN_PROGRESS or row.started_at is None or finished <= 0 or not is_moving:
        return None
    since = max(row.started_at, standing.resumed_at or 0)
    left = sum(count for state, count in ran.items() if state not in TERMINAL)
    at = now + max(now - since, 0) * left // finished
    return write_millis(at) if at < _LATEST else None


def _finished_before(row: Row[Any]) -> int:
    """How many had ended when the job was last resumed, from where its abort criteria count as well."""
    return sum(msgspec.json.decode(row.armed, type=dict[str, int]).values())
