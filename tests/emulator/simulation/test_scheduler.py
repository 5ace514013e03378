"""Scheduler of simulated time."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator.simulation.clock import SimulationScheduler

times = st.floats(0, 1e9, allow_nan=False)


@given(st.lists(times, max_size=50), times)
def test_due_callbacks_run_in_order_and_the_others_stay(scheduled: list[float], until: float) -> None:
    scheduler, calls = SimulationScheduler(), list[float]()
    for t in scheduled:
        scheduler.at(t, calls.append)
    scheduler.run(until)
    assert calls == sorted(t for t in scheduled if t <= until)
    assert scheduler.next_due == min((t for t in scheduled if t > until), default=inf)
    assert scheduler.now == until


def test_callbacks_of_the_same_time_run_in_the_order_added() -> None:
    scheduler, calls = SimulationScheduler(), list[int]()
    for number in range(20):
        scheduler.at(5.0, lambda _, number=number: calls.append(number))  # type: ignore[misc]
    scheduler.run(5.0)
    assert calls == list(range(20))


def test_a_callback_gets_its_scheduled_time_which_is_the_current_time() -> None:
    scheduler, calls = SimulationScheduler(), list[tuple[float, float]]()
    scheduler.at(3.0, lambda t: calls.append((t, scheduler.now)))
    scheduler.run(100.0)
    assert calls == [(3.0, 3.0)]


def test_a_callback_added_by_a_callback_runs_in_the_same_run() -> None:
    scheduler, calls = SimulationScheduler(), list[float]()

    def reschedule(t: float) -> None:
        calls.append(t)
        if len(calls) < 4:
            scheduler.after(1.0, reschedule)

    scheduler.at(1.0, reschedule)
    scheduler.run(3.0)
    assert calls == [1.0, 2.0, 3.0]
    scheduler.run(10.0)
    assert calls == [1.0, 2.0, 3.0, 4.0]
    assert scheduler.next_due == inf


def test_an_overdue_callback_runs_now_after_those_added_before() -> None:
    scheduler, calls = SimulationScheduler(), list[str]()
    scheduler.run(10.0)
    scheduler.at(10.0, lambda _: calls.append("in time"))
    scheduler.at(2.0, lambda t: calls.append(f"late, at {t:g}"))
    assert scheduler.next_due == 10.0
    scheduler.run(10.0)
    assert calls == ["in time", "late, at 10"]


def test_time_never_goes_back() -> None:
    scheduler = SimulationScheduler()
    scheduler.run(10.0)
    scheduler.run(4.0)
    assert scheduler.now == 10.0


def test_a_callback_that_fails_is_removed_and_the_others_still_run() -> None:
    scheduler, calls = SimulationScheduler(), list[float]()
    scheduler.at(1.0, lambda t: calls.append(t / 0))
    scheduler.at(2.0, calls.append)
    with pytest.raises(ZeroDivisionError):
        scheduler.run(3.0)
    scheduler.run(3.0)
    assert calls == [2.0]
