"""How well places hear each other."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.gateway.world import radio
from meshfleet.gateway.world.places import Place, Walls
from meshfleet.gateway.world.radio import FAST, HEARD, SLOW, USABLE, loss, mean
from tests.tables import each_row

HERE = Place(0, 0.0, 0.0)
OPEN = Walls()
places = st.builds(Place, st.integers(-3, 3), st.floats(-100, 100), st.floats(-100, 100))


@pytest.mark.rule("gateway-22")
@each_row(("metres", "dbm"), [(1, -59.0), (10, -81.0), (100, -103.0), (2, -65.6227)])
def test_the_mean_falls_with_the_distance(metres: float, dbm: float) -> None:
    assert mean(HERE, Place(0, metres, 0.0), OPEN) == pytest.approx(dbm, abs=1e-3)
    assert mean(HERE, Place(0, 0.0, -metres), OPEN) == pytest.approx(dbm, abs=1e-3)


def test_nearer_than_half_a_metre_is_half_a_metre() -> None:
    assert mean(HERE, HERE, OPEN) == mean(HERE, Place(0, 0.5, 0.0), OPEN) == pytest.approx(-52.377, abs=1e-3)


def test_each_wall_between_takes_three_decibels() -> None:
    walls = Walls(x=(-5.0, 2.0, 8.0, 20.0), y=(1.0,))
    there = Place(0, 10.0, 0.0)
    assert walls.between(HERE, there) == walls.between(there, HERE) == 2
    assert mean(HERE, there, walls) == pytest.approx(-87.0)
    assert walls.between(HERE, Place(0, 10.0, 3.0)) == 3


def test_a_floor_between_takes_twelve_decibels_and_is_three_metres_high() -> None:
    assert mean(HERE, Place(1, 4.0, 0.0), OPEN) == pytest.approx(mean(HERE, Place(0, 5.0, 0.0), OPEN) - 12.0)
    assert mean(HERE, Place(-2, 8.0, 0.0), OPEN) == pytest.approx(
        mean(HERE, Place(0, 10.0, 0.0), OPEN) - 24.0
    )


@given(places, places)
def test_both_ends_hear_the_other_equally_well(a: Place, b: Place) -> None:
    walls = Walls(x=(-7.0, 3.0), y=(0.0,))
    assert mean(a, b, walls) == mean(b, a, walls)


@given(places, places)
def test_nobody_is_heard_beyond_the_reach(a: Place, b: Place) -> None:
    reach = radio.reach(radio.FLOOR * abs(a.floor - b.floor))
    if abs(a.x - b.x) > reach or abs(a.y - b.y) > reach:
        assert mean(a, b, OPEN) < HEARD


def test_a_tenth_is_lost_where_a_link_is_just_usable_and_next_to_nothing_nearby() -> None:
    assert loss(USABLE) == pytest.approx(0.1, abs=0.002)
    assert loss(-60.0) == pytest.approx(0.002, abs=0.0001)
    assert loss(HEARD) > 0.5


def test_weaker_links_lose_more() -> None:
    losses = [loss(float(rssi)) for rssi in range(-20, -128, -1)]
    assert all(strong <= weak for strong, weak in pairwise(losses))
    assert 0 < losses[0] < losses[-1] < 1


@given(st.integers(0, 2**32 - 1), st.floats(0, 1e8))
def test_slow_fading_stays_in_its_limits_and_is_slow(pair: int, t: float) -> None:
    assert abs(radio.slow(pair, t)) <= SLOW
    assert abs(radio.slow(pair, t + 60.0) - radio.slow(pair, t)) <= 2.0  # dB in a minute


def test_both_fadings_are_nothing_on_average_and_reach_far() -> None:
    slow = [radio.slow(77, 300.0 * n) for n in range(20_000)]
    fast = [radio.fast(77, n) for n in range(20_000)]
    assert fmean(slow) == pytest.approx(0, abs=0.3)
    assert fmean(fast) == pytest.approx(0, abs=0.1)
    assert max(slow) > 0.9 * SLOW
    assert max(fast) > 0.9 * FAST
    assert max(map(abs, fast)) <= FAST
