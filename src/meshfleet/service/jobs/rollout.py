"""What a job does next: a pure function of where it is, how its executions stand, and the time.

A job goes wave by wave. Within a wave it begins as many updates as rate and limits allow. It stops by itself
when too much fails, when a wave does not come off, or when its time is over; and it ends when all its
executions have ended.
"""

from __future__ import annotations

from collections.abc import Mapping  # msgspec reads it
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from meshfleet.rest import ExecutionState as E
from meshfleet.rest import JobState as S
from meshfleet.rest import NewJob, Outcome, PauseReason, StopCause
from meshfleet.rest.percent import format_percent, reaches_percent
from meshfleet.service.jobs.job_states import compute_outcome
from meshfleet.service.jobs.updates.states import ACTIVE_STATES

if TYPE_CHECKING:
    from meshfleet.rest import Criterion

LEFT_OUT_WAVE: Final = -1
"""The wave of those that were left out from the beginning."""

_MINUTE_MS: Final = 60_000
_BURST_MS: Final = 1000
"""Milliseconds of rate that may be used up at once, besides the one that is due: rounds are not exact."""

_NOT_COUNTED: Final = frozenset({E.QUEUED, E.REMOVED, E.SKIPPED, E.SUPERSEDED, E.CANCELED})
"""Whoever never began, or is none of ours any more, is no part of any percentage."""

_CRITERION_STATES: Final[Mapping[str, tuple[E, ...]]] = {
    "FAILED": (E.FAILED,),
    "REJECTED": (E.REJECTED,),
    "TIMED_OUT": (E.TIMED_OUT,),
    "ALL": (E.FAILED, E.REJECTED, E.TIMED_OUT),
}


class ExecutionCounts(dict[tuple[int, E], int]):
    """How many executions are in which state, by wave."""

    def count(self, *states: E, wave: int | None = None) -> int:
        """How many are in any of these states, of one wave or of all."""
        return sum(n for (w, state), n in self.items() if state in states and wave in (None, w))

    def by_state(self, *, from_wave: int | None = None) -> dict[E, int]:
        """The same by state alone; `since` leaves out all waves before that one."""
        found: dict[E, int] = {}
        for (wave, state), count in self.items():
            if from_wave is None or wave >= from_wave:
                found[state] = found.get(state, 0) + count
        return found

    @property
    def left_out(self) -> dict[E, int]:
        """Who was left out from the beginning."""
        return {state: count for (wave, state), count in self.items() if wave == LEFT_OUT_WAVE and count}

    @property
    def unfinished(self) -> int:
        """How many have not ended."""
        return self.count(E.QUEUED, *ACTIVE_STATES)


class RolloutState(Struct, frozen=True, kw_only=True):
    """Where a job is. Times are milliseconds."""

    state: S
    body: NewJob
    start_at: int | None
    deadline: int | None
    wave_count: int
    """How many there are."""
    wave: int
    soaks_until: int | None
    paced_until: int
    abort_baseline: Mapping[str, int]
    """Counts by state from which criteria count."""


class JobTransition(NamedTuple):
    """A step of a job."""

    state: S
    cause: str
    outcome: Outcome | None = None
    stop_cause: StopCause | None = None
    pause_reason: PauseReason | None = None
    wave: int | None = None
    soaks_until: int | None = None


def find_next_transition(
    rollout: RolloutState, counts: ExecutionCounts, *, now: int, wall: int
) -> JobTransition | None:
    """The next step of a job, if it is time for one.

    `now` does not jump with the clock of the machine; what people set as a time of day is compared with
    `wall`.
    """
    if rollout.state is S.CANCELING:
        return None if counts.unfinished else _end(S.CANCELED, "everything has ended", counts)
    if not counts.unfinished:  # also of a job that never began, if a newer one took over all its devices
        return _end(S.COMPLETED, "every execution has ended", counts)
    if rollout.deadline is not None and wall >= rollout.deadline:
        return JobTransition(S.CANCELING, "the deadline has passed", stop_cause=StopCause.DEADLINE)
    if rollout.state is S.SCHEDULED:
        return _start_if_due(rollout, wall)
    if rollout.state is not S.IN_PROGRESS:
        return None
    return _check_abort_criteria(rollout, counts) or _next_wave(rollout, counts, now)


def _start_if_due(rollout: RolloutState, wall: int) -> JobTransition | None:
    if rollout.start_at is not None and wall < rollout.start_at:
        return None
    return JobTransition(S.IN_PROGRESS, "the time to begin has come")


def _end(state: S, cause: str, counts: ExecutionCounts) -> JobTransition:
    return JobTransition(state, cause, outcome=compute_outcome(counts.by_state()))


def _check_abort_criteria(rollout: RolloutState, counts: ExecutionCounts) -> JobTransition | None:
    """Stop, if too much has failed."""
    since = {E(state): count for state, count in rollout.abort_baseline.items()}
    now = {state: max(n - since.get(state, 0), 0) for state, n in counts.by_state(from_wave=0).items()}
    executed = sum(count for state, count in now.items() if state not in _NOT_COUNTED)
    for criterion in rollout.body.abort:
        bad = sum(now.get(state, 0) for state in _CRITERION_STATES[criterion.type])
        if bad and executed >= criterion.min_executed and reaches_percent(bad, executed, criterion.percent):
            return _build_abort(criterion, bad, executed)
    return None


def _build_abort(criterion: Criterion, bad: int, executed: int) -> JobTransition:
    what = "did not succeed" if criterion.type == "ALL" else f"are {criterion.type}"
    cause = f"{bad} of {executed} executions {what}, and {format_percent(criterion.percent)} is the limit"
    if criterion.action == "CANCEL":
        return JobTransition(S.CANCELING, cause, stop_cause=StopCause.ABORT_CRITERIA)
    return JobTransition(S.PAUSED, cause, pause_reason=PauseReason.ABORT_CRITERIA)


def _next_wave(rollout: RolloutState, counts: ExecutionCounts, now: int) -> JobTransition | None:
    """Whether the next wave begins, or somebody is to look first."""
    if rollout.wave + 1 >= rollout.wave_count:
        return None
    passed, cause = _check_gate(rollout, counts)
    if not passed:
        is_over = not counts.count(E.QUEUED, *ACTIVE_STATES, wave=rollout.wave)
        return JobTransition(S.PAUSED, cause, pause_reason=PauseReason.GATE_FAILED) if is_over else None
    if rollout.soaks_until is None and rollout.body.gate.soak_minutes:
        until = now + int(rollout.body.gate.soak_minutes * _MINUTE_MS)
        return JobTransition(
            S.IN_PROGRESS, f"{cause}; it soaks for a while", wave=rollout.wave, soaks_until=until
        )
    if rollout.soaks_until is not None and now < rollout.soaks_until:
        return None
    if rollout.body.gate.pause:
        return JobTransition(S.PAUSED, f"{cause}; somebody is to look first", pause_reason=PauseReason.GATE)
    return JobTransition(S.IN_PROGRESS, f"{cause}; the next wave begins", wave=rollout.wave + 1)


def _check_gate(rollout: RolloutState, counts: ExecutionCounts) -> tuple[bool, str]:
    """Whether the wave that runs has come off, and what there is to say of it."""
    wanted = rollout.body.gate.success_percent
    if not wanted:
        is_over = not counts.count(E.QUEUED, *ACTIVE_STATES, wave=rollout.wave)
        return is_over, f"wave {rollout.wave + 1} is over"
    size = sum(
        n
        for (wave, state), n in counts.items()
        if wave == rollout.wave and (state is E.QUEUED or state not in _NOT_COUNTED)
    )
    succeeded = counts.count(E.SUCCEEDED, wave=rollout.wave)
    cause = (
        f"{succeeded} of {size} of wave {rollout.wave + 1} succeeded, and {format_percent(wanted)} are wanted"
    )
    return reaches_percent(succeeded, size, wanted), cause


class DispatchAllowance(NamedTuple):
    """How many updates may begin now."""

    slots: int
    broadcast_slots: int
    """How many the limit of the job leaves, whatever the rate: a broadcast begins for many at once."""
    paced_until: int
    """Up to when the rate is used up if none of them begins."""
    interval_ms: float
    """Milliseconds that each of them uses up."""


def compute_allowance(
    rollout: RolloutState, counts: ExecutionCounts, now: int, max_slots: int
) -> DispatchAllowance:
    """How many updates a job may begin, at most so many."""
    limit = rollout.body.concurrency.per_job
    free = (
        counts.count(E.QUEUED) if limit is None else max(limit - counts.count(*ACTIVE_STATES - {E.STAGED}), 0)
    )
    room = min(max_slots, free)
    rate = None if rollout.body.rate is None else rollout.body.rate.per_minute
    if rate is None:
        return DispatchAllowance(room, free, now, 0.0)
    interval = _MINUTE_MS / rate
    since = max(rollout.paced_until, now - ceil(interval) - _BURST_MS)
    return DispatchAllowance(min(room, max(int((now - since) / interval), 0)), free, since, interval)
