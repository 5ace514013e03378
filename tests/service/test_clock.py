"""The monotonic clock does not jump with the wall clock, and its times convert to wall-clock times."""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.clock import MonotonicClock

HOUR = 3_600_000


@given(
    jumps=st.lists(st.tuples(st.floats(0, 1000), st.integers(-48 * HOUR, 48 * HOUR)), min_size=1, max_size=20)
)
def test_the_monotonic_clock_ignores_jumps_of_the_wall_clock(jumps: list[tuple[float, int]]) -> None:
    wall, ticks = 1_800_000_000_000, 5000.0
    monotonic = MonotonicClock(lambda: wall, lambda: ticks)
    started_at = monotonic()
    assert abs(started_at - wall) <= 1
    for seconds, jump in jumps:
        ticks += seconds
        wall += int(seconds * 1000) + jump
        assert abs(monotonic() - started_at - (ticks - 5000.0) * 1000) <= 1


@given(jump=st.integers(-48 * HOUR, 48 * HOUR), at=st.integers(0, 2_000_000_000_000))
def test_a_monotonic_time_converts_to_the_wall_clock_time(jump: int, at: int) -> None:
    wall, ticks = 1_800_000_000_000, 5000.0
    monotonic = MonotonicClock(lambda: wall, lambda: ticks)
    ticks += 77.7777
    wall += 77_778  # one of them is rounded
    assert monotonic.to_wall_time(at) == at
    wall += jump
    assert abs(monotonic.to_wall_time(at) - (at + jump)) < 1000
    assert monotonic.to_wall_time(monotonic()) in {wall, monotonic()}


def test_the_monotonic_clock_starts_at_the_wall_clock_time() -> None:
    ticks = 17.5
    assert MonotonicClock(lambda: 1_800_000_000_123, lambda: ticks)() == 1_800_000_000_123


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a clock that counts suspensions")
def test_a_suspension_does_not_look_like_a_change_of_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wall clock and CLOCK_BOOTTIME count eight hours of suspension, CLOCK_MONOTONIC does not."""
    wall, ticks = 1_800_000_000_000, {time.CLOCK_BOOTTIME: 5000.0, time.CLOCK_MONOTONIC: 5000.0}
    monkeypatch.setattr(time, "clock_gettime", ticks.__getitem__)
    monotonic = MonotonicClock(lambda: wall)
    wall += 8 * HOUR
    ticks[time.CLOCK_BOOTTIME] += 8 * 3600
    assert monotonic() == wall
