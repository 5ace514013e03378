"""What a job does next: how many updates begin in which time, and when it stops by itself."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from meshfleet.rest import Concurrency, Criterion, Gate, NewJob, PauseReason, Rate, Targets
from meshfleet.rest import ExecutionState as E
from meshfleet.rest import JobState as S
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


def standing(**order: object) -> RolloutState:
    made = NewJob(name="a job", firmware_id="fw-1", targets=Targets(all=True), **order)  # type: ignore[arg-type] # by name
    return RolloutState(
        state=S.IN_PROGRESS,
        body=made,
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
def test_as_many_begin_as_the_rate_allows(per_minute: int) -> None:
    job, now, begun = standing(rate=Rate(per_minute=per_minute)), 1_000_000, 0
    paced = 0.0
    for _ in range(MINUTES * MINUTE // ROUND):
        now += ROUND
        told = compute_allowance(job, ExecutionCounts({(0, E.QUEUED): 1_000_000}), now, 100_000)
        begun += told.slots
        if told.slots:
            paced = told.paced_until + told.slots * told.interval_ms
            job = replace(job, paced_until=ceil(paced))
    assert abs(begun - MINUTES * per_minute) <= 2 + per_minute / 20


def test_a_limit_of_the_job_does_not_count_those_that_keep_their_image() -> None:
    job = standing(concurrency=Concurrency(per_job=5))
    counts = ExecutionCounts({(0, E.TRANSFERRING): 3, (0, E.STAGED): 40, (0, E.QUEUED): 9})
    assert compute_allowance(job, counts, 1_000_000, 256).slots == 2


def test_a_broadcast_is_larger_than_what_begins_in_one_go() -> None:
    counts = ExecutionCounts({(0, E.TRANSFERRING): 3, (0, E.QUEUED): 500})
    assert compute_allowance(standing(rate=Rate(per_minute=1)), counts, 1_000_000, 100).broadcast_slots == 500
    assert (
        compute_allowance(
            standing(concurrency=Concurrency(per_job=203)), counts, 1_000_000, 100
        ).broadcast_slots
        == 200
    )


def test_criteria_count_all_that_began_since_somebody_resumed() -> None:
    criterion = Criterion(percent=20, min_executed=10)
    job = standing(abort=(criterion,))
    armed = {"SUCCEEDED": 40, "FAILED": 10}
    counts = ExecutionCounts({(0, E.TRANSFERRING): 100, (0, E.SUCCEEDED): 48, (0, E.FAILED): 12})
    assert find_next_transition(replace(job, abort_baseline=armed), counts, now=0, wall=0) is None
    told = find_next_transition(
        job, ExecutionCounts({(0, E.SUCCEEDED): 8, (0, E.FAILED): 2, (0, E.QUEUED): 1}), now=0, wall=0
    )
    assert told is not None
    assert (told.state, told.pause_reason) == (S.PAUSED, PauseReason.ABORT_CRITERIA)


@pytest.mark.rule("rest-125")
def test_removed_and_skipped_devices_do_not_keep_a_wave_from_passing() -> None:
    job = standing(gate=Gate(success_percent=100))
    counts = ExecutionCounts({(0, E.SUCCEEDED): 3, (0, E.REMOVED): 2, (0, E.SKIPPED): 1, (1, E.QUEUED): 5})
    told = find_next_transition(job, counts, now=0, wall=0)
    assert told is not None
    assert (told.state, told.wave) == (S.IN_PROGRESS, 1)
    failed = find_next_transition(
        job, ExecutionCounts({(0, E.FAILED): 1, (0, E.SUCCEEDED): 9, (1, E.QUEUED): 5}), now=0, wall=0
    )
    assert failed is not None
    assert failed.pause_reason is PauseReason.GATE_FAILED


@pytest.mark.rule("rest-125")
def test_a_wave_that_reaches_its_gate_exactly_has_passed() -> None:
    job = standing(gate=Gate(success_percent=2.2))
    counts = {(0, E.SUCCEEDED): 33, (0, E.FAILED): 1467, (1, E.QUEUED): 5}
    told = find_next_transition(job, ExecutionCounts(counts), now=0, wall=0)
    assert told is not None
    assert (told.wave, told.cause) == (
        1,
        "33 of 1500 devices of wave 1 succeeded; 2.2 % is required; the next wave starts",
    )
