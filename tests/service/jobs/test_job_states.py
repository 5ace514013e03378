"""Tests of job outcomes, job transitions and wait texts, without a database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors import Conflict
from meshfleet.rest.jobs import ExecutionState, JobState, Outcome
from meshfleet.service.jobs.job_states import (
    FINISHED_STATES,
    JOB_TRANSITIONS,
    check_job_transition,
    compute_outcome,
)
from meshfleet.service.jobs.updates.states import ACTIVE_STATES, TERMINAL_STATES
from meshfleet.service.jobs.wait_reasons import ExecutionSnapshot, JobSnapshot, WaitReason, describe_wait
from tests.row_tables import each_row

FAILURES = {ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.REJECTED}
IN_PROGRESS = JobSnapshot(JobState.IN_PROGRESS, wave=1, start_at=None, heartbeats=3, is_staging=False)
QUEUED = ExecutionSnapshot(ExecutionState.QUEUED, wave=1, waiting=None, due=0, beats=0, is_read=False)


@pytest.mark.rule("rest-134", "rest-135")
@given(st.dictionaries(st.sampled_from(sorted(TERMINAL_STATES)), st.integers(0, 3)))
def test_the_outcome_follows_from_the_states_of_the_executions(counts: dict[ExecutionState, int]) -> None:
    states = {state for state, count in counts.items() if count}
    outcome = compute_outcome(counts)
    assert (outcome is Outcome.NONE) == (not states & {ExecutionState.SUCCEEDED, *FAILURES})
    assert (outcome is Outcome.FAILED) == (ExecutionState.SUCCEEDED not in states and bool(states & FAILURES))
    assert (outcome is Outcome.SUCCEEDED) == (
        ExecutionState.SUCCEEDED in states and states <= {ExecutionState.SUCCEEDED, ExecutionState.SKIPPED}
    )


@each_row(
    ("states", "expected"),
    [
        ((), "NONE"),
        ((ExecutionState.SKIPPED,), "NONE"),
        ((ExecutionState.SUCCEEDED, ExecutionState.SKIPPED), "SUCCEEDED"),
        ((ExecutionState.SUCCEEDED, ExecutionState.FAILED), "PARTIAL"),
        ((ExecutionState.SUCCEEDED, ExecutionState.CANCELED), "PARTIAL"),
        ((ExecutionState.SUCCEEDED, ExecutionState.SUPERSEDED), "PARTIAL"),
        ((ExecutionState.FAILED, ExecutionState.SKIPPED), "FAILED"),
        ((ExecutionState.REJECTED,), "FAILED"),
        ((ExecutionState.TIMED_OUT, ExecutionState.CANCELED), "FAILED"),
        (
            (
                ExecutionState.CANCELED,
                ExecutionState.REMOVED,
                ExecutionState.SUPERSEDED,
                ExecutionState.SKIPPED,
            ),
            "NONE",
        ),
    ],
)
def test_examples_of_outcomes(states: tuple[ExecutionState, ...], expected: str) -> None:
    assert compute_outcome(dict.fromkeys(states, 2)) == expected


def test_every_job_state_has_transitions_and_none_follows_a_finished_state() -> None:
    assert set(JOB_TRANSITIONS) == set(JobState)
    assert all(not JOB_TRANSITIONS[state] for state in FINISHED_STATES)
    assert all(
        JobState.CANCELING in JOB_TRANSITIONS[state]
        for state in JobState
        if state not in {*FINISHED_STATES, JobState.CANCELING, JobState.DELETING}
    )


@each_row("before", list(JobState))
@each_row("after", list(JobState))
def test_a_transition_that_is_not_listed_is_rejected(before: JobState, after: JobState) -> None:
    if after in JOB_TRANSITIONS[before]:
        check_job_transition(before, after)
    else:
        with pytest.raises(Conflict):
            check_job_transition(before, after)


@pytest.mark.rule("rest-133")
@each_row(
    ("job", "execution", "expected"),
    [
        (IN_PROGRESS, QUEUED, "rate: it is waiting for its turn"),
        (IN_PROGRESS, QUEUED._replace(wave=2), "wave: its wave has not started"),
        (
            IN_PROGRESS,
            QUEUED._replace(waiting="gateway-offline"),
            "gateway-offline: its gateway is not connected",
        ),
        (
            IN_PROGRESS,
            QUEUED._replace(waiting="back-off", due=0),
            "back-off: next attempt at 1970-01-01T00:00:00.000Z",
        ),
        (
            IN_PROGRESS,
            QUEUED._replace(waiting="back-off", due=0, reason="it failed"),
            "back-off: next attempt at 1970-01-01T00:00:00.000Z; last error: it failed",
        ),
        (
            IN_PROGRESS._replace(state=JobState.PAUSED),
            QUEUED._replace(waiting="back-off", reason="the transfer was interrupted at 7 %"),
            "paused: the job is paused; last error: the transfer was interrupted at 7 %",
        ),
        (IN_PROGRESS._replace(state=JobState.PAUSED), QUEUED._replace(wave=2), "paused: the job is paused"),
        (
            IN_PROGRESS._replace(state=JobState.CREATED),
            QUEUED,
            "window: the job has not been started; apply it to start it",
        ),
        (
            IN_PROGRESS._replace(state=JobState.SCHEDULED, start_at=0),
            QUEUED,
            "window: the job starts at 1970-01-01T00:00:00.000Z",
        ),
        (IN_PROGRESS._replace(state=JobState.CANCELING), QUEUED, "paused: the job is being canceled"),
        (
            IN_PROGRESS,
            QUEUED._replace(state=ExecutionState.CONFIRMING, beats=1),
            "1 of 3 good heartbeats received",
        ),
        (
            IN_PROGRESS,
            QUEUED._replace(state=ExecutionState.CONFIRMING, beats=0, until=1000, reason="a bad heartbeat"),
            "0 of 3 good heartbeats received, deadline 1970-01-01T00:00:01.000Z; a bad heartbeat",
        ),
        (
            IN_PROGRESS,
            QUEUED._replace(state=ExecutionState.TRANSFERRING, waiting="gateway-offline"),
            "gateway-offline: its gateway is not connected; the timers of the update are suspended",
        ),
        (
            IN_PROGRESS,
            QUEUED._replace(state=ExecutionState.DISPATCHED, step="unsent", reason="the broker is away"),
            "the start command could not be sent yet; last error: the broker is away",
        ),
        (
            IN_PROGRESS._replace(heartbeats=0),
            QUEUED._replace(state=ExecutionState.CONFIRMING),
            "its new version is being read",
        ),
        (
            IN_PROGRESS._replace(is_staging=True),
            QUEUED._replace(state=ExecutionState.STAGED),
            "the image is staged; the device keeps it until the job is applied",
        ),
    ],
)
def test_examples_of_wait_texts(job: JobSnapshot, execution: ExecutionSnapshot, expected: str) -> None:
    assert describe_wait(job, execution) == expected


@pytest.mark.rule("rest-133")
def test_every_wait_reason_and_every_active_state_has_a_text() -> None:
    for reason in WaitReason:
        text = describe_wait(IN_PROGRESS, QUEUED._replace(waiting=str(reason)))
        assert text is not None
        assert text.startswith(f"{reason}: ")
    for state in ACTIVE_STATES:
        assert describe_wait(IN_PROGRESS, QUEUED._replace(state=state))
    for state in TERMINAL_STATES:
        assert describe_wait(IN_PROGRESS, QUEUED._replace(state=state)) is None
