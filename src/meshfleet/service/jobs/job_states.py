"""States of a job, the allowed transitions between them, and the outcome of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors import Conflict
from meshfleet.rest.jobs import ExecutionState, Outcome
from meshfleet.rest.jobs import JobState as S

if TYPE_CHECKING:
    from collections.abc import Mapping


# Columns of a job that change when it starts or is scheduled.


def build_start_columns(start_at: int | None, now: int) -> dict[str, Any]:
    """Return the new values of a job that starts now, or is scheduled because `start_at` is in the future."""
    if start_at is not None and start_at > now:
        return {"state": str(S.SCHEDULED)}
    return {"state": str(S.IN_PROGRESS), "started_at": now}


# Outcome of a job, by the states of its executions.

FAILURE_STATES: Final = (ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.REJECTED)
"""Terminal states of failed executions."""

_SUCCESS_STATES: Final = frozenset({ExecutionState.SUCCEEDED, ExecutionState.SKIPPED})


def compute_outcome(counts: Mapping[ExecutionState, int]) -> Outcome:
    """Return the outcome of a job whose executions have all ended (rest-134, rest-135)."""
    states = {state for state, count in counts.items() if count}
    if ExecutionState.SUCCEEDED in states:
        return Outcome.SUCCEEDED if states <= _SUCCESS_STATES else Outcome.PARTIAL
    return Outcome.FAILED if states.intersection(FAILURE_STATES) else Outcome.NONE


JOB_TRANSITIONS: Final[Mapping[S, frozenset[S]]] = {
    # A job that never started is completed when newer jobs have taken over all its devices.
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
"""States in which no update runs or can start by itself (rest-214)."""

FINISHED_STATES: Final = frozenset({S.CANCELED, S.COMPLETED})
"""States of jobs that have ended; they never change again (rest-139)."""

_DESCRIPTIONS: Final[Mapping[S, str]] = {
    S.CREATED: "has not been started",
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
    """Raise `Conflict` if a job cannot change from state `before` to `after`."""
    if after not in JOB_TRANSITIONS[before]:
        raise build_state_conflict(before)


def check_deletable(state: S) -> None:
    """Raise `Conflict` if a job in this state cannot be deleted (rest-214)."""
    if state is S.CANCELING:
        raise Conflict("the job is being canceled; delete it after that")
    if state not in DELETABLE_STATES:
        raise Conflict(f"the job {_DESCRIPTIONS[state]}; cancel it before you delete it")


def build_state_conflict(state: S) -> Conflict:
    """Build the error for a command that a job in this state does not accept."""
    return Conflict(f"the job {_DESCRIPTIONS[state]}")
