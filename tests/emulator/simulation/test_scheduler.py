"""What happens when."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator.simulation.clock import SimulationScheduler

moments = st.floats(0, 1e9, allow_nan=False)


@given(st.lists(moments, max_size=50), moments)
def test_what_is_due_happens_in_order_and_the_rest_stays(planned: list[float], until: float) -> None:
    agenda, done = SimulationScheduler(), list[float]()
    for t in planned:
        agenda.at(t, done.append)
    agenda.run(until)
    assert done == sorted(t for t in planned if t <= until)
    assert agenda.next_due == min((t for t in planned if t > until), default=inf)
    assert agenda.now == until


def test_deeds_of_one_moment_happen_in_the_order_in_which_they_were_planned() -> None:
    agenda, done = SimulationScheduler(), list[int]()
    for number in range(20):
        agenda.at(5.0, lambda _, number=number: done.append(number))  # type: ignore[misc]
    agenda.run(5.0)
    assert done == list(range(20))


def test_a_deed_gets_the_moment_it_was_planned_for_and_finds_it_lived() -> None:
    agenda, seen = SimulationScheduler(), list[tuple[float, float]]()
    agenda.at(3.0, lambda t: seen.append((t, agenda.now)))
    agenda.run(100.0)
    assert seen == [(3.0, 3.0)]


def test_what_a_deed_plans_for_now_still_happens_in_the_same_run() -> None:
    agenda, done = SimulationScheduler(), list[float]()

    def again(t: float) -> None:
        done.append(t)
        if len(done) < 4:
            agenda.after(1.0, again)

    agenda.at(1.0, again)
    agenda.run(3.0)
    assert done == [1.0, 2.0, 3.0]
    agenda.run(10.0)
    assert done == [1.0, 2.0, 3.0, 4.0]
    assert agenda.next_due == inf


def test_what_should_have_happened_already_happens_now_and_after_what_waits_for_now() -> None:
    agenda, done = SimulationScheduler(), list[str]()
    agenda.run(10.0)
    agenda.at(10.0, lambda _: done.append("in time"))
    agenda.at(2.0, lambda t: done.append(f"late, at {t:g}"))
    assert agenda.next_due == 10.0
    agenda.run(10.0)
    assert done == ["in time", "late, at 10"]


def test_time_never_goes_back() -> None:
    agenda = SimulationScheduler()
    agenda.run(10.0)
    agenda.run(4.0)
    assert agenda.now == 10.0


def test_a_deed_that_fails_is_gone_and_the_others_still_happen() -> None:
    agenda, done = SimulationScheduler(), list[float]()
    agenda.at(1.0, lambda t: done.append(t / 0))
    agenda.at(2.0, done.append)
    with pytest.raises(ZeroDivisionError):
        agenda.run(3.0)
    agenda.run(3.0)
    assert done == [2.0]
