"""Simulated seconds and the time on the wall."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.gateway.world.clock import Clock
from tests.tables import each_row

ORIGIN = 1_790_000_000_000
speeds = st.floats(0.01, 10_000)
moments = st.floats(0, 1e8)


def test_the_world_begins_at_its_origin() -> None:
    clock = Clock(ORIGIN)
    assert clock.millis(0.0) == ORIGIN
    assert clock.time(0.0) == datetime.fromtimestamp(ORIGIN / 1000, UTC)
    assert clock.time(0.0).tzinfo is UTC


@pytest.mark.rule("gateway-42")
@each_row(("speed", "seconds", "millis"), [(1.0, 60.0, 60_000), (60.0, 60.0, 1000), (0.5, 1, 2000)])
def test_a_fast_world_takes_less_time_on_the_wall(speed: float, seconds: float, millis: int) -> None:
    clock = Clock(ORIGIN, speed)
    assert clock.millis(seconds) == ORIGIN + millis
    assert clock.wall(seconds) == pytest.approx(millis / 1000)


@given(speeds, moments)
def test_the_moment_of_a_time_is_the_one_it_was_made_of(speed: float, t: float) -> None:
    clock = Clock(ORIGIN, speed)
    assert clock.moment(clock.millis(t)) == pytest.approx(t, abs=0.0011 * speed)


@given(speeds, moments, moments)
def test_time_runs_forward(speed: float, a: float, b: float) -> None:
    clock = Clock(ORIGIN, speed)
    assert (clock.time(min(a, b)), clock.millis(min(a, b))) <= (
        clock.time(max(a, b)),
        clock.millis(max(a, b)),
    )


@given(st.lists(moments, max_size=10))
def test_what_was_asked_before_does_not_matter(asked: list[float]) -> None:
    clock = Clock(ORIGIN, 3.0)
    for t in asked:
        assert clock.time(t) == Clock(ORIGIN, 3.0).time(t)


def test_a_bent_clock_goes_on_where_it_is_at_another_speed() -> None:
    clock = Clock(ORIGIN)
    assert clock.millis(100.0) == ORIGIN + 100_000
    clock.time(100.0)
    clock.bend(100.0, ORIGIN + 100_000, 10.0)
    assert clock.millis(100.0) == ORIGIN + 100_000
    assert clock.time(200.0) == datetime.fromtimestamp((ORIGIN + 110_000) / 1000, UTC)
    assert clock.moment(ORIGIN + 110_000) == pytest.approx(200.0)
    assert clock.wall(10.0) == 1.0


def test_a_bent_clock_forgets_the_time_it_told_last() -> None:
    clock = Clock(ORIGIN)
    clock.time(100.0)
    clock.bend(50.0, ORIGIN, 1.0)
    assert clock.time(100.0) == datetime.fromtimestamp((ORIGIN + 50_000) / 1000, UTC)


@each_row("speed", [0, 0.0, -1.0, float("nan")])
def test_a_world_that_stands_still_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="simulated"):
        Clock(ORIGIN, speed)
