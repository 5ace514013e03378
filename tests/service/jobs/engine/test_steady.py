"""Clocks of executions do not jump with the clock of the machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.jobs.engine.steady import Steady

HOUR = 3_600_000


@given(
    jumps=st.lists(st.tuples(st.floats(0, 1000), st.integers(-48 * HOUR, 48 * HOUR)), min_size=1, max_size=20)
)
def test_a_clock_that_jumps_by_hours_ends_nothing_early_or_late(jumps: list[tuple[float, int]]) -> None:
    wall, ticks = 1_800_000_000_000, 5000.0
    steady = Steady(lambda: wall, lambda: ticks)
    began = steady()
    assert abs(began - wall) <= 1
    for seconds, jump in jumps:
        ticks += seconds
        wall += int(seconds * 1000) + jump
        assert abs(steady() - began - (ticks - 5000.0) * 1000) <= 1


def test_a_clock_begins_with_the_time_of_the_machine_so_that_stored_times_mean_the_same() -> None:
    ticks = 17.5
    assert Steady(lambda: 1_800_000_000_123, lambda: ticks)() == 1_800_000_000_123
