"""Conversion between simulated time and wall-clock time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator.simulation.clock import SimulatedClock
from tests.row_tables import each_row

ORIGIN = 1_790_000_000_000
speeds = st.floats(0.01, 10_000)
times = st.floats(0, 1e8)


def test_simulated_time_0_is_the_origin() -> None:
    clock = SimulatedClock(ORIGIN)
    assert clock.wall_millis(0.0) == ORIGIN
    assert clock.wall_time(0.0) == datetime.fromtimestamp(ORIGIN / 1000, UTC)
    assert clock.wall_time(0.0).tzinfo is UTC


@pytest.mark.rule("gateway-42")
@each_row(("speed", "seconds", "millis"), [(1.0, 60.0, 60_000), (60.0, 60.0, 1000), (0.5, 1, 2000)])
def test_a_faster_simulation_takes_less_wall_clock_time(speed: float, seconds: float, millis: int) -> None:
    clock = SimulatedClock(ORIGIN, speed)
    assert clock.wall_millis(seconds) == ORIGIN + millis
    assert clock.wall_seconds(seconds) == pytest.approx(millis / 1000)


@given(speeds, times)
def test_a_wall_clock_time_converts_back_to_its_simulated_time(speed: float, t: float) -> None:
    clock = SimulatedClock(ORIGIN, speed)
    assert clock.simulated_time(clock.wall_millis(t)) == pytest.approx(t, abs=0.0011 * speed)


@given(speeds, times, times)
def test_time_runs_forward(speed: float, a: float, b: float) -> None:
    clock = SimulatedClock(ORIGIN, speed)
    assert (clock.wall_time(min(a, b)), clock.wall_millis(min(a, b))) <= (
        clock.wall_time(max(a, b)),
        clock.wall_millis(max(a, b)),
    )


@given(st.lists(times, max_size=10))
def test_a_conversion_does_not_depend_on_earlier_ones(earlier_times: list[float]) -> None:
    clock = SimulatedClock(ORIGIN, 3.0)
    for t in earlier_times:
        assert clock.wall_time(t) == SimulatedClock(ORIGIN, 3.0).wall_time(t)


def test_a_rebased_clock_continues_at_another_speed() -> None:
    clock = SimulatedClock(ORIGIN)
    assert clock.wall_millis(100.0) == ORIGIN + 100_000
    clock.wall_time(100.0)
    clock.rebase(100.0, ORIGIN + 100_000, 10.0)
    assert clock.wall_millis(100.0) == ORIGIN + 100_000
    assert clock.wall_time(200.0) == datetime.fromtimestamp((ORIGIN + 110_000) / 1000, UTC)
    assert clock.simulated_time(ORIGIN + 110_000) == pytest.approx(200.0)
    assert clock.wall_seconds(10.0) == 1.0


def test_a_rebased_clock_discards_its_cached_time() -> None:
    clock = SimulatedClock(ORIGIN)
    clock.wall_time(100.0)
    clock.rebase(50.0, ORIGIN, 1.0)
    assert clock.wall_time(100.0) == datetime.fromtimestamp((ORIGIN + 50_000) / 1000, UTC)


@each_row("speed", [0, 0.0, -1.0, float("nan")])
def test_a_speed_that_is_not_positive_is_rejected(speed: float) -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        SimulatedClock(ORIGIN, speed)
