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

from meshfleet.service.jobs.outcome import outcome
from meshfleet.service.jobs.update.states import ACTIVE
from meshfleet.wire.percent import percent_text, reaches
from meshfleet.wire.rest import ExecutionState as E
from meshfleet.wire.rest import JobState as S
from meshfleet.wire.rest import NewJob, Outcome, PauseReason, StopCause

if TYPE_CHECKING:
    from meshfleet.wire.rest import Criterion

LEFT_OUT: Final = -1
"""The wave of those that were left out from the beginning."""

_MINUTE: Final = 60_000
_BURST: Final = 1000
"""Milliseconds of rate that may be used up at once, besides the one that is due: rounds are not exact."""

_NOT_COUNTED: Final = frozenset({E.QUEUED, E.REMOVED, E.SKIPPED, E.SUPERSEDED, E.CANCELED})
"""Whoever never began, or is none of ours any more, is no part of any percentage."""

_BAD: Final[Mapping[str, tuple[E, ...]]] = {
    "FAILED": (E.FAILED,),
    "REJECTED": (E.REJECTED,),
    "TIMED_OUT": (E.TIMED_OUT,),
    "ALL": (E.FAILED, E.REJECTED, E.TIMED_OUT),
}


class Counts(dict[tuple[int, E], int]):
    """How many executions are in which state, by wave."""

    def of(self, *states: E, wave: int | None = None) -> int:
        """How many are in any of these states, of one wave or of all."""
        return sum(n for (w, state), n in self.items() if state in states and wave in (None, w))

    def by_state(self, *, since: int | None = None) -> dict[E, int]:
        """The same by state alone; `since` leaves out all waves before that one."""
        found: dict[E, int] = {}
        for (wave, state), count in self.items():
            if since is None or wave >= since:
                found[state] = found.get(state, 0) + count
        return found

    @property
    def left_out(self) -> dict[E, int]:
        """Who was left out from the beginning."""
        return {state: count for (wave, state), count in self.items() if wave == LEFT_OUT and count}

    @property
    def open(self) -> int:
        """How many have not ended."""
        return self.of(E.QUEUED, *ACTIVE)


class Standing(Struct, frozen=True, kw_only=True):
    """Where a job is. Times are milliseconds."""

    state: S
    order: NewJob
    start_at: int | None
    deadline: int | None
    waves: int
    """How many there are."""
    wave: int
    soaks_until: int | None
    paced_until: int
    armed: Mapping[str, int]
    """Counts by state from which criteria count."""


class Change(NamedTuple):
    """A step of a job."""

    state: S
    cause: str
    outcome: Outcome | None = None
    stop_cause: StopCause | None = None
    pause_reason: PauseReason | None = None
    wave: int | None = None
    soaks_until: int | None = None


def change(job: Standing, counts: Counts, *, now: int, wall: int) -> Change | None:
    """The next step of a job, if it is time for one.

    `now` does not jump with the clock of the machine; what people set as a time of day is compared with
    `wall`.
    """
    if job.state is S.CANCELING:
        return None if counts.open else _end(S.CANCELED, "everything has ended", counts)
    if not counts.open:  # also of a job that never began, if a newer one took over all its devices
        return _end(S.COMPLETED, "every execution has ended", counts)
    if job.deadline is not None and wall >= job.deadline:
        return Change(S.CANCELING, "the deadline has passed", stop_cause=StopCause.DEADLINE)
    if job.state is S.SCHEDULED:
        return _begin(job, wall)
    if job.state is not S.IN_PROGRESS:
        return None
    return _abort(job, counts) or _next_wave(job, counts, now)


def _begin(job: Standing, wall: int) -> Change | None:
    if job.start_at is not None and wall < job.start_at:
        return None
    return Change(S.IN_PROGRESS, "the time to begin has come")


def _end(state: S, cause: str, counts: Counts) -> Change:
    return Change(state, cause, outcome=outcome(counts.by_state()))


def _abort(job: Standing, counts: Counts) -> Change | None:
    """Stop, if too much has failed."""
    since = {E(state): count for state, count in job.armed.items()}
    now = {state: max(n - since.get(state, 0), 0) for state, n in counts.by_state(since=0).items()}
    executed = sum(count for state, count in now.items() if state not in _NOT_COUNTED)
    for criterion in job.order.abort:
        bad = sum(now.get(state, 0) for state in _BAD[criterion.type])
        if bad and executed >= criterion.min_executed and reaches(bad, executed, criterion.percent):
            return _stop(criterion, bad, executed)
    return None


def _stop(criterion: Criterion, bad: int, executed: int) -> Change:
    what = "did not succeed" if criterion.type == "ALL" else f"are {criterion.type}"
    cause = f"{bad} of {executed} executions {what}, and {percent_text(criterion.percent)} is the limit"
    if criterion.action == "CANCEL":
        return Change(S.CANCELING, cause, stop_cause=StopCause.ABORT_CRITERIA)
    return Change(S.PAUSED, cause, pause_reason=PauseReason.ABORT_CRITERIA)


def _next_wave(job: Standing, counts: Counts, now: int) -> Change | None:
    """Whether the next wave begins, or somebody is to look first."""
    if job.wave + 1 >= job.waves:
        return None
    passed, cause = _has_passed(job, counts)
    if not passed:
        is_over = not counts.of(E.QUEUED, *ACTIVE, wave=job.wave)
        return Change(S.PAUSED, cause, pause_reason=PauseReason.GATE_FAILED) if is_over else None
    if job.soaks_until is None and job.order.gate.soak_minutes:
        until = now + int(job.order.gate.soak_minutes * _MINUTE)
        return Change(S.IN_PROGRESS, f"{cause}; it soaks for a while", wave=job.wave, soaks_until=until)
    if job.soaks_until is not None and now < job.soaks_until:
        return None
    if job.order.gate.pause:
        return Change(S.PAUSED, f"{cause}; somebody is to look first", pause_reason=PauseReason.GATE)
    return Change(S.IN_PROGRESS, f"{cause}; the next wave begins", wave=job.wave + 1)


def _has_passed(job: Standing, counts: Counts) -> tuple[bool, str]:
    """Whether the wave that runs has come off, and what there is to say of it."""
    wanted = job.order.gate.success_percent
    if not wanted:
        is_over = not counts.of(E.QUEUED, *ACTIVE, wave=job.wave)
        return is_over, f"wave {job.wave + 1} is over"
    size = sum(
        n
        for (wave, state), n in counts.items()
        if wave == job.wave and (state is E.QUEUED or state not in _NOT_COUNTED)
    )
    succeeded = counts.of(E.SUCCEEDED, wave=job.wave)
    cause = f"{succeeded} of {size} of wave {job.wave + 1} succeeded, and {percent_text(wanted)} are wanted"
    return reaches(succeeded, size, wanted), cause


class Pace(NamedTuple):
    """How many updates may begin now."""

    room: int
    together: int
    """How many the limit of the job leaves, whatever the rate: a broadcast begins for many at once."""
    paced_until: int
    """Up to when the rate is used up if none of them begins."""
    interval: float
    """Milliseconds that each of them uses up."""


def pace(job: Standing, counts: Counts, now: int, most: int) -> Pace:
    """How many updates a job may begin, at most so many."""
    limit = job.order.concurrency.per_job
    free = counts.of(E.QUEUED) if limit is None else max(limit - counts.of(*ACTIVE - {E.STAGED}), 0)
    room = min(most, free)
    rate = None if job.order.rate is None else job.order.rate.per_minute
    if rate is None:
        return Pace(room, free, now, 0.0)
    interval = _MINUTE / rate
    since = max(job.paced_until, now - ceil(interval) - _BURST)
    return Pace(min(room, max(int((now - since) / interval), 0)), free, since, interval)
