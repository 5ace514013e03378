"""States of a job, the allowed transitions between states, and the outcome of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors import Conflict
from meshfleet.rest.jobs import ExecutionState, JobState, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping


# Columns of a job that change when it starts or is scheduled.


def build_start_columns(start_at: int | None, now: int) -> dict[str, Any]:
    """Return the new column values of a job that starts now, or at `start_at` if that is in the future."""
    if start_at is not None and start_at > now:
        return {"state": str(JobState.SCHEDULED)}
    return {"state": str(JobState.IN_PROGRESS), "started_at": now}


# Outcome of a job, by the states of its executions.

FAILURE_STATES: Final = (ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.REJECTED)
"""Execution states in which an update ended without success: failed, timed out or rejected."""

_SUCCESS_STATES: Final = frozenset({ExecutionState.SUCCEEDED, ExecutionState.SKIPPED})


def compute_outcome(counts: Mapping[ExecutionState, int]) -> Outcome:
    """Return the outcome of a job whose executions have all ended (rest-134, rest-135)."""
    states = {state for state, count in counts.items() if count}
    if ExecutionState.SUCCEEDED in states:
        return Outcome.SUCCEEDED if states <= _SUCCESS_STATES else Outcome.PARTIAL
    return Outcome.FAILED if states.intersection(FAILURE_STATES) else Outcome.NONE


JOB_TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = {
    # A job that never started is completed when newer jobs have taken over all its devices.
    JobState.CREATED: frozenset(
        {
            JobState.PENDING_APPROVAL,
            JobState.SCHEDULED,
            JobState.IN_PROGRESS,
            JobState.CANCELING,
            JobState.COMPLETED,
        }
    ),
    JobState.PENDING_APPROVAL: frozenset(
        {JobState.SCHEDULED, JobState.IN_PROGRESS, JobState.CANCELING, JobState.CANCELED, JobState.COMPLETED}
    ),
    JobState.SCHEDULED: frozenset(
        {JobState.IN_PROGRESS, JobState.PAUSED, JobState.CANCELING, JobState.COMPLETED}
    ),
    JobState.IN_PROGRESS: frozenset(
        {JobState.SCHEDULED, JobState.PAUSED, JobState.CANCELING, JobState.COMPLETED}
    ),
    JobState.PAUSED: frozenset(
        {JobState.SCHEDULED, JobState.IN_PROGRESS, JobState.CANCELING, JobState.COMPLETED}
    ),
    JobState.CANCELING: frozenset({JobState.CANCELED}),
    JobState.CANCELED: frozenset(),
    JobState.COMPLETED: frozenset(),
    JobState.DELETING: frozenset(),
}

DELETABLE_STATES: Final = frozenset({JobState.CREATED, JobState.CANCELED, JobState.COMPLETED})
"""Job states in which no update runs or can start, so that the job can be deleted (rest-214)."""

FINISHED_STATES: Final = frozenset({JobState.CANCELED, JobState.COMPLETED})
"""States of jobs that have ended. A job never leaves these states (rest-139)."""

_DESCRIPTIONS: Final[Mapping[JobState, str]] = {
    JobState.CREATED: "has not been started",
    JobState.PENDING_APPROVAL: "waits for approval",
    JobState.SCHEDULED: "waits for its start time",
    JobState.IN_PROGRESS: "is in progress",
    JobState.PAUSED: "is paused",
    JobState.CANCELING: "is being canceled",
    JobState.CANCELED: "was canceled",
    JobState.COMPLETED: "is completed",
    JobState.DELETING: "is being deleted",
}


def check_job_transition(before: JobState, after: JobState) -> None:
    """Raise `Conflict` if a job cannot change from state `before` to `after`."""
    if after not in JOB_TRANSITIONS[before]:
        raise build_state_conflict(before)


def check_deletable(state: JobState) -> None:
    """Raise `Conflict` if a job in state `state` cannot be deleted (rest-214)."""
    if state is JobState.CANCELING:
        raise Conflict("the job is being canceled; delete it after that")
    if state not in DELETABLE_STATES:
        raise Conflict(f"the job {_DESCRIPTIONS[state]}; cancel it before you delete it")


def build_state_conflict(state: JobState) -> Conflict:
    """Build the error for a command that a job in state `state` does not accept."""
    return Conflict(f"the job {_DESCRIPTIONS[state]}")
