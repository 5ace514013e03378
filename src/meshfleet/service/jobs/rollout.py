"""Rollout of a job: pure functions that decide the next state of a job from its executions and the time.

A job proceeds wave by wave. Within a wave it starts as many updates as its rate and concurrency limits allow.
The job pauses or is canceled by itself when too many updates fail, when a wave does not reach the success
rate of the gate, or at the deadline. The job ends when all its executions have ended.
"""

from __future__ import annotations

from collections.abc import Mapping  # needed at run time by msgspec
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from meshfleet.rest.job_requests import NewJob
from meshfleet.rest.jobs import ExecutionState, JobState, Outcome, PauseReason, StopCause
from meshfleet.rest.percent import format_percent, reaches_percent
from meshfleet.service.jobs.job_states import compute_outcome
from meshfleet.service.jobs.updates.states import ACTIVE_STATES

if TYPE_CHECKING:
    from meshfleet.rest.job_requests import Criterion

LEFT_OUT_WAVE: Final = -1
"""Wave index of devices that belong to no wave, because they were excluded when the job was created."""

_MINUTE_MS: Final = 60_000
_BURST_MS: Final = 1000
"""Milliseconds of unused rate limit that a late round may use up, in addition to one interval."""

_NOT_COUNTED: Final = frozenset(
    {
        ExecutionState.QUEUED,
        ExecutionState.REMOVED,
        ExecutionState.SKIPPED,
        ExecutionState.SUPERSEDED,
        ExecutionState.CANCELED,
    }
)
"""States of executions that never started or left the job. Percentages ignore these executions."""

_CRITERION_STATES: Final[Mapping[str, tuple[ExecutionState, ...]]] = {
    "FAILED": (ExecutionState.FAILED,),
    "REJECTED": (ExecutionState.REJECTED,),
    "TIMED_OUT": (ExecutionState.TIMED_OUT,),
    "ALL": (ExecutionState.FAILED, ExecutionState.REJECTED, ExecutionState.TIMED_OUT),
}


class ExecutionCounts(dict[tuple[int, ExecutionState], int]):
    """Number of executions by wave and state."""

    def count(self, *states: ExecutionState, wave: int | None = None) -> int:
        """Return the number of executions in any of `states`, in wave `wave` (None: in all waves)."""
        return sum(n for (w, state), n in self.items() if state in states and wave in (None, w))

    def count_by_state(self, *, from_wave: int | None = None) -> dict[ExecutionState, int]:
        """Return the number of executions by state, in waves from `from_wave` on (None: in all waves)."""
        totals: dict[ExecutionState, int] = {}
        for (wave, state), count in self.items():
            if from_wave is None or wave >= from_wave:
                totals[state] = totals.get(state, 0) + count
        return totals

    @property
    def left_out(self) -> dict[ExecutionState, int]:
        """Number of executions of devices that were excluded when the job was created, by state."""
        return {state: count for (wave, state), count in self.items() if wave == LEFT_OUT_WAVE and count}

    @property
    def unfinished(self) -> int:
        """Number of executions that have not ended."""
        return self.count(ExecutionState.QUEUED, *ACTIVE_STATES)


class RolloutState(Struct, frozen=True, kw_only=True):
    """Data of a job from which its next transition is decided. Times are in milliseconds."""

    state: JobState
    body: NewJob
    start_at: int | None
    """Wall-clock time before which the job does not start; None if the job may start at once."""
    deadline: int | None
    """Wall-clock time at which the job is canceled; None if the job has no deadline."""
    wave_count: int
    """Number of waves of the job."""
    wave: int
    """Index of the last wave that has started, from 0."""
    soaks_until: int | None
    """Monotonic time at which the soak time of the wave ends; None if the soak time has not started."""
    paced_until: int
    """Monotonic time up to which earlier update starts have used up the rate limit."""
    abort_baseline: Mapping[str, int]
    """Number of executions, by state, that ended before the last resume. Abort criteria ignore these."""


class JobTransition(NamedTuple):
    """New state or wave of a job, with the cause and the other columns that change."""

    state: JobState
    cause: str
    outcome: Outcome | None = None
    stop_cause: StopCause | None = None
    pause_reason: PauseReason | None = None
    wave: int | None = None
    soaks_until: int | None = None


def find_next_transition(
    rollout: RolloutState, counts: ExecutionCounts, *, now: int, wall_time: int
) -> JobTransition | None:
    """Return the transition that a job makes now; None if the job stays as it is.

    `now` is monotonic time. Start time and deadline are compared with `wall_time`, the wall-clock time.
    """
    if rollout.state is JobState.CANCELING:
        return None if counts.unfinished else _end_job(JobState.CANCELED, "all executions have ended", counts)
    if not counts.unfinished:  # also if it never started, because a newer job took over all devices
        return _end_job(JobState.COMPLETED, "all executions have ended", counts)
    if rollout.deadline is not None and wall_time >= rollout.deadline:
        return JobTransition(JobState.CANCELING, "the deadline has passed", stop_cause=StopCause.DEADLINE)
    if rollout.state is JobState.SCHEDULED:
        return _start_if_due(rollout, wall_time)
    if rollout.state is not JobState.IN_PROGRESS:
        return None
    return _check_abort_criteria(rollout, counts) or _find_wave_transition(rollout, counts, now)


def _start_if_due(rollout: RolloutState, wall_time: int) -> JobTransition | None:
    """Return the transition that starts a scheduled job if its start time was reached, else None."""
    if rollout.start_at is not None and wall_time < rollout.start_at:
        return None
    return JobTransition(JobState.IN_PROGRESS, "the start time was reached")


def _end_job(state: JobState, cause: str, counts: ExecutionCounts) -> JobTransition:
    """Return the transition that ends a job, with its outcome."""
    return JobTransition(state, cause, outcome=compute_outcome(counts.count_by_state()))


def _check_abort_criteria(rollout: RolloutState, counts: ExecutionCounts) -> JobTransition | None:
    """Return the transition that pauses or cancels a job if an abort criterion is met, else None."""
    baseline = {ExecutionState(state): count for state, count in rollout.abort_baseline.items()}
    now = {
        state: max(n - baseline.get(state, 0), 0) for state, n in counts.count_by_state(from_wave=0).items()
    }
    executed = sum(count for state, count in now.items() if state not in _NOT_COUNTED)
    for criterion in rollout.body.abort:
        failed = sum(now.get(state, 0) for state in _CRITERION_STATES[criterion.type])
        if (
            failed
            and executed >= criterion.min_executed
            and reaches_percent(failed, executed, criterion.percent)
        ):
            return _build_abort_transition(criterion, failed, executed)
    return None


def _build_abort_transition(criterion: Criterion, failed: int, executed: int) -> JobTransition:
    """Return the transition that pauses or cancels a job, because an abort criterion is met."""
    result = "did not succeed" if criterion.type == "ALL" else f"are {criterion.type}"
    cause = f"{failed} of {executed} executions {result}; the limit is {format_percent(criterion.percent)}"
    if criterion.action == "CANCEL":
        return JobTransition(JobState.CANCELING, cause, stop_cause=StopCause.ABORT_CRITERIA)
    return JobTransition(JobState.PAUSED, cause, pause_reason=PauseReason.ABORT_CRITERIA)


def _find_wave_transition(rollout: RolloutState, counts: ExecutionCounts, now: int) -> JobTransition | None:
    """Return the transition at the end of a wave: start the soak time, pause, or start the next wave."""
    if rollout.wave + 1 >= rollout.wave_count:
        return None
    passed, cause = _check_gate(rollout, counts)
    if not passed:
        has_ended = not counts.count(ExecutionState.QUEUED, *ACTIVE_STATES, wave=rollout.wave)
        return (
            JobTransition(JobState.PAUSED, cause, pause_reason=PauseReason.GATE_FAILED) if has_ended else None
        )
    if rollout.soaks_until is None and rollout.body.gate.soak_minutes:
        until = now + int(rollout.body.gate.soak_minutes * _MINUTE_MS)
        return JobTransition(
            JobState.IN_PROGRESS, f"{cause}; the soak time starts", wave=rollout.wave, soaks_until=until
        )
    if rollout.soaks_until is not None and now < rollout.soaks_until:
        return None
    if rollout.body.gate.pause:
        return JobTransition(
            JobState.PAUSED, f"{cause}; resume the job to start the next wave", pause_reason=PauseReason.GATE
        )
    return JobTransition(JobState.IN_PROGRESS, f"{cause}; the next wave starts", wave=rollout.wave + 1)


def _check_gate(rollout: RolloutState, counts: ExecutionCounts) -> tuple[bool, str]:
    """Return whether enough devices of the current wave succeeded, and a sentence that tells users why."""
    required = rollout.body.gate.success_percent
    if not required:
        has_ended = not counts.count(ExecutionState.QUEUED, *ACTIVE_STATES, wave=rollout.wave)
        return has_ended, f"wave {rollout.wave + 1} has ended"
    size = sum(
        n
        for (wave, state), n in counts.items()
        if wave == rollout.wave and (state is ExecutionState.QUEUED or state not in _NOT_COUNTED)
    )
    succeeded = counts.count(ExecutionState.SUCCEEDED, wave=rollout.wave)
    cause = (
        f"{succeeded} of {size} devices of wave {rollout.wave + 1} succeeded;"
        f" {format_percent(required)} is required"
    )
    return reaches_percent(succeeded, size, required), cause


class DispatchAllowance(NamedTuple):
    """Number of updates that a job may start now."""

    slots: int
    """Number of updates that may start now, within the rate and concurrency limits of the job."""
    broadcast_slots: int
    """Number of updates that a broadcast may start now.

    The concurrency limit of the job applies to a broadcast, but not its rate limit.
    """
    paced_until: int
    """Monotonic time up to which starts have used up the rate limit. Each start adds `interval_ms`."""
    interval_ms: float
    """Minimum milliseconds between two update starts; 0 if the job has no rate limit."""


def compute_allowance(
    rollout: RolloutState, counts: ExecutionCounts, now: int, max_slots: int
) -> DispatchAllowance:
    """Return how many updates a job may start now, at most `max_slots`."""
    limit = rollout.body.concurrency.per_job
    free = (
        counts.count(ExecutionState.QUEUED)
        if limit is None
        else max(limit - counts.count(*ACTIVE_STATES - {ExecutionState.STAGED}), 0)
    )
    slots = min(max_slots, free)
    rate = None if rollout.body.rate is None else rollout.body.rate.per_minute
    if rate is None:
        return DispatchAllowance(slots, free, now, 0.0)
    interval = _MINUTE_MS / rate
    since = max(rollout.paced_until, now - ceil(interval) - _BURST_MS)
    return DispatchAllowance(min(slots, max(int((now - since) / interval), 0)), free, since, interval)
