"""Tests of the rollout of a job: how many updates start, and when it stops by itself."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from meshfleet.rest.job_requests import Concurrency, Criterion, Gate, NewJob, Rate, Targets
from meshfleet.rest.jobs import ExecutionState, JobState, PauseReason
from meshfleet.service.jobs.rollout import (
    ExecutionCounts,
    RolloutState,
    compute_allowance,
    find_next_transition,
)
from tests.examples import examples

MINUTE = 60_000
ROUND = 500
MINUTES = 10


def build_rollout(**fields: object) -> RolloutState:
    body = NewJob(name="a job", firmware_id="fw-1", targets=Targets(all=True), **fields)  # type: ignore[arg-type] # fields are passed by name
    return RolloutState(
        state=JobState.IN_PROGRESS,
        body=body,
        start_at=None,
        deadline=None,
        wave_count=2,
        wave=0,
        soaks_until=None,
        paced_until=0,
        abort_baseline={},
    )


@pytest.mark.rule("rest-126")
@settings(max_examples=examples(200), deadline=None)
@given(per_minute=st.integers(1, 60_000))
def test_the_number_of_starts_follows_the_rate(per_minute: int) -> None:
    job, now, started = build_rollout(rate=Rate(per_minute=per_minute)), 1_000_000, 0
    for _ in range(MINUTES * MINUTE // ROUND):
        now += ROUND
        allowance = compute_allowance(
            job, ExecutionCounts({(0, ExecutionState.QUEUED): 1_000_000}), now, 100_000
        )
        started += allowance.slots
        if allowance.slots:
            paced_until = allowance.paced_until + allowance.slots * allowance.interval_ms
            job = replace(job, paced_until=ceil(paced_until))
    assert abs(started - MINUTES * per_minute) <= 2 + per_minute / 20


def test_the_limit_per_job_does_not_count_staged_executions() -> None:
    job = build_rollout(concurrency=Concurrency(per_job=5))
    counts = ExecutionCounts(
        {(0, ExecutionState.TRANSFERRING): 3, (0, ExecutionState.STAGED): 40, (0, ExecutionState.QUEUED): 9}
    )
    assert compute_allowance(job, counts, 1_000_000, 256).slots == 2


def test_a_broadcast_may_start_more_executions_than_the_rate_allows() -> None:
    counts = ExecutionCounts({(0, ExecutionState.TRANSFERRING): 3, (0, ExecutionState.QUEUED): 500})
    assert (
        compute_allowance(build_rollout(rate=Rate(per_minute=1)), counts, 1_000_000, 100).broadcast_slots
        == 500
    )
    assert (
        compute_allowance(
            build_rollout(concurrency=Concurrency(per_job=203)), counts, 1_000_000, 100
        ).broadcast_slots
        == 200
    )


def test_abort_criteria_count_executions_since_the_last_resume() -> None:
    criterion = Criterion(percent=20, min_executed=10)
    job = build_rollout(abort=(criterion,))
    baseline = {"SUCCEEDED": 40, "FAILED": 10}
    counts = ExecutionCounts(
        {
            (0, ExecutionState.TRANSFERRING): 100,
            (0, ExecutionState.SUCCEEDED): 48,
            (0, ExecutionState.FAILED): 12,
        }
    )
    assert find_next_transition(replace(job, abort_baseline=baseline), counts, now=0, wall_time=0) is None
    transition = find_next_transition(
        job,
        ExecutionCounts(
            {(0, ExecutionState.SUCCEEDED): 8, (0, ExecutionState.FAILED): 2, (0, ExecutionState.QUEUED): 1}
        ),
        now=0,
        wall_time=0,
    )
    assert transition is not None
    assert (transition.state, transition.pause_reason) == (JobState.PAUSED, PauseReason.ABORT_CRITERIA)


@pytest.mark.rule("rest-125")
def test_removed_and_skipped_devices_do_not_keep_a_wave_from_passing() -> None:
    job = build_rollout(gate=Gate(success_percent=100))
    counts = ExecutionCounts(
        {
            (0, ExecutionState.SUCCEEDED): 3,
            (0, ExecutionState.REMOVED): 2,
            (0, ExecutionState.SKIPPED): 1,
            (1, ExecutionState.QUEUED): 5,
        }
    )
    transition = find_next_transition(job, counts, now=0, wall_time=0)
    assert transition is not None
    assert (transition.state, transition.wave) == (JobState.IN_PROGRESS, 1)
    failed = find_next_transition(
        job,
        ExecutionCounts(
            {(0, ExecutionState.FAILED): 1, (0, ExecutionState.SUCCEEDED): 9, (1, ExecutionState.QUEUED): 5}
        ),
        now=0,
        wall_time=0,
    )
    assert failed is not None
    assert failed.pause_reason is PauseReason.GATE_FAILED


@pytest.mark.rule("rest-125")
def test_a_wave_that_reaches_its_gate_exactly_has_passed() -> None:
    job = build_rollout(gate=Gate(success_percent=2.2))
    counts = {
        (0, ExecutionState.SUCCEEDED): 33,
        (0, ExecutionState.FAILED): 1467,
        (1, ExecutionState.QUEUED): 5,
    }
    transition = find_next_transition(job, ExecutionCounts(counts), now=0, wall_time=0)
    assert transition is not None
    assert (transition.wave, transition.cause) == (
        1,
        "33 of 1500 devices of wave 1 succeeded; 2.2 % is required; the next wave starts",
    )
