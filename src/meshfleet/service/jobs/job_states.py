"""Where a job can be, and where it can go from there. What is not listed cannot happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors import Conflict
from meshfleet.rest import ExecutionState, JobState, Outcome
from meshfleet.rest import JobState as S

if TYPE_CHECKING:
    from collections.abc import Mapping


# What changes in the row of a job when it begins, or is to begin.


def build_start_columns(*, start_at: int | None, now: int) -> dict[str, Any]:
    """Begin now, or wait for the start time."""
    if start_at is not None and start_at > now:
        return {"state": str(JobState.SCHEDULED)}
    return {
        "state": str(JobState.IN_PROGRESS),
        "started_at": now,
    }


# How a job went, by what became of its devices.

FAILURE_STATES: Final = (ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.REJECTED)
"""What went wrong."""

_SUCCESS_STATES: Final = frozenset({ExecutionState.SUCCEEDED, ExecutionState.SKIPPED})


def compute_outcome(counts: Mapping[ExecutionState, int]) -> Outcome:
    """The outcome of a job whose executions are all over (rest-134, rest-135)."""
    there = {state for state, count in counts.items() if count}
    if ExecutionState.SUCCEEDED in there:
        return Outcome.SUCCEEDED if there <= _SUCCESS_STATES else Outcome.PARTIAL
    return Outcome.FAILED if there.intersection(FAILURE_STATES) else Outcome.NONE


JOB_TRANSITIONS: Final[Mapping[S, frozenset[S]]] = {
    # A job that never began is completed when a newer one has taken over all its devices.
    S.CREATED: frozenset({S.PENDING_APPROVAL, S.SCHEDULED, S.IN_PROGRESS, S.CANCELING, S.COMPLETED}),
    S.PENDING_APPROVAL: frozenset({S.SCHEDULED, S.IN_PROGRESS, S.CANCELING, S.CANCELED, S.COMPLETED}),
    S.SCHEDULED: frozenset({S.IN_PROGRESS, S.PAUSED, S.CANCELING, S.COMPLETED}),
    S.IN_PROGRESS: frozenset({S.SCHEDULED, S.PAUSED, S.CANCELING, S.COMPLETED}),
    S.PAUSED: frozenset({S.SCHEDULED, S.IN_PROGRESS, S.CANCELING, S.COMPLETED}),
    S.CANCELING: frozenset({S.CANCELED}),
    S.CANCELED: frozenset(),
    S.COMPLETED: frozenset(),
    S.DELETING: frozenset(),
}

DELETABLE_STATES: Final = frozenset({S.CREATED, S.CANCELED, S.COMPLETED})
"""Nothing is under way, and nothing will be unless somebody starts it (rest-214)."""

FINISHED_STATES: Final = frozenset({S.CANCELED, S.COMPLETED})
"""It never changes any more (rest-139)."""

_DESCRIPTIONS: Final[Mapping[S, str]] = {
    S.CREATED: "waits until somebody starts it",
    S.PENDING_APPROVAL: "waits for approval",
    S.SCHEDULED: "waits for its start time",
    S.IN_PROGRESS: "is in progress",
    S.PAUSED: "is paused",
    S.CANCELING: "is being canceled",
    S.CANCELED: "was canceled",
    S.COMPLETED: "is completed",
    S.DELETING: "is being deleted",
}


def check_job_transition(before: S, after: S) -> None:
    """See to it that this can happen, or say where the job is."""
    if after not in JOB_TRANSITIONS[before]:
        raise build_state_conflict(before)


def check_deletable(state: S) -> None:
    """Raise `Conflict` if a job in this state cannot be deleted (rest-214)."""
    if state is S.CANCELING:
        raise Conflict("the job is being canceled; delete it when that is done")
    if state not in DELETABLE_STATES:
        raise Conflict(f"the job {_DESCRIPTIONS[state]}; cancel it before you delete it")


def build_state_conflict(state: S) -> Conflict:
    """A deed does not go together with where the job is."""
    return Conflict(f"the job {_DESCRIPTIONS[state]}")
