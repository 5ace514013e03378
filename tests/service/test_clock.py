"""What waits does not jump with the clock of the machine, and people are told times of that clock."""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.clock import SteadyClock

HOUR = 3_600_000


@given(
    jumps=st.lists(st.tuples(st.floats(0, 1000), st.integers(-48 * HOUR, 48 * HOUR)), min_size=1, max_size=20)
)
def test_a_clock_that_jumps_by_hours_ends_nothing_early_or_late(jumps: list[tuple[float, int]]) -> None:
    wall, ticks = 1_800_000_000_000, 5000.0
    steady = SteadyClock(lambda: wall, lambda: ticks)
    began = steady()
    assert abs(began - wall) <= 1
    for seconds, jump in jumps:
        ticks += seconds
        wall += int(seconds * 1000) + jump
        assert abs(steady() - began - (ticks - 5000.0) * 1000) <= 1


@given(jump=st.integers(-48 * HOUR, 48 * HOUR), at=st.integers(0, 2_000_000_000_000))
def test_a_steady_time_is_told_as_the_clock_of_the_machine_will_show_it(jump: int, at: int) -> None:
    wall, ticks = 1_800_000_000_000, 5000.0
    steady = SteadyClock(lambda: wall, lambda: ticks)
    ticks += 77.7777
    wall += 77_778  # one of them is rounded
    assert steady.to_wall_time(at) == at
    wall += jump
    assert abs(steady.to_wall_time(at) - (at + jump)) < 1000
    assert steady.to_wall_time(steady()) in {wall, steady()}


def test_a_clock_begins_with_the_time_of_the_machine_so_that_stored_times_mean_the_same() -> None:
    ticks = 17.5
    assert SteadyClock(lambda: 1_800_000_000_123, lambda: ticks)() == 1_800_000_000_123


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a clock that counts suspensions")
def test_a_suspended_machine_does_not_make_its_own_clock_seem_to_be_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock of the machine and CLOCK_BOOTTIME count eight hours of sleep, CLOCK_MONOTONIC does not."""
    wall, ticks = 1_800_000_000_000, {time.CLOCK_BOOTTIME: 5000.0, time.CLOCK_MONOTONIC: 5000.0}
    monkeypatch.setattr(time, "clock_gettime", ticks.__getitem__)
    steady = SteadyClock(lambda: wall)
    wall += 8 * HOUR
    ticks[time.CLOCK_BOOTTIME] += 8 * 3600
    assert steady() == wall
