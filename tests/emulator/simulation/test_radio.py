"""How well places hear each other."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator.simulation import radio
from meshfleet.emulator.simulation.radio import (
    FAST_FADING_DB,
    MIN_AUDIBLE_DBM,
    MIN_USABLE_DBM,
    SLOW_FADING_DB,
    estimate_mean_rssi,
    packet_loss,
)
from meshfleet.emulator.simulation.site import SitePosition, Walls
from tests.row_tables import each_row

HERE = SitePosition(0, 0.0, 0.0)
OPEN = Walls()
places = st.builds(SitePosition, st.integers(-3, 3), st.floats(-100, 100), st.floats(-100, 100))


@pytest.mark.rule("gateway-22")
@each_row(("metres", "dbm"), [(1, -59.0), (10, -81.0), (100, -103.0), (2, -65.6227)])
def test_the_mean_falls_with_the_distance(metres: float, dbm: float) -> None:
    assert estimate_mean_rssi(HERE, SitePosition(0, metres, 0.0), OPEN) == pytest.approx(dbm, abs=1e-3)
    assert estimate_mean_rssi(HERE, SitePosition(0, 0.0, -metres), OPEN) == pytest.approx(dbm, abs=1e-3)


def test_nearer_than_half_a_metre_is_half_a_metre() -> None:
    assert (
        estimate_mean_rssi(HERE, HERE, OPEN)
        == estimate_mean_rssi(HERE, SitePosition(0, 0.5, 0.0), OPEN)
        == pytest.approx(-52.377, abs=1e-3)
    )


def test_each_wall_between_takes_three_decibels() -> None:
    walls = Walls(x=(-5.0, 2.0, 8.0, 20.0), y=(1.0,))
    there = SitePosition(0, 10.0, 0.0)
    assert walls.count_between(HERE, there) == walls.count_between(there, HERE) == 2
    assert estimate_mean_rssi(HERE, there, walls) == pytest.approx(-87.0)
    assert walls.count_between(HERE, SitePosition(0, 10.0, 3.0)) == 3


def test_a_floor_between_takes_twelve_decibels_and_is_three_metres_high() -> None:
    assert estimate_mean_rssi(HERE, SitePosition(1, 4.0, 0.0), OPEN) == pytest.approx(
        estimate_mean_rssi(HERE, SitePosition(0, 5.0, 0.0), OPEN) - 12.0
    )
    assert estimate_mean_rssi(HERE, SitePosition(-2, 8.0, 0.0), OPEN) == pytest.approx(
        estimate_mean_rssi(HERE, SitePosition(0, 10.0, 0.0), OPEN) - 24.0
    )


@given(places, places)
def test_both_ends_hear_the_other_equally_well(a: SitePosition, b: SitePosition) -> None:
    walls = Walls(x=(-7.0, 3.0), y=(0.0,))
    assert estimate_mean_rssi(a, b, walls) == estimate_mean_rssi(b, a, walls)


@given(places, places)
def test_nobody_is_heard_beyond_the_reach(a: SitePosition, b: SitePosition) -> None:
    reach = radio.compute_range(radio.FLOOR_LOSS_DB * abs(a.floor - b.floor))
    if abs(a.x - b.x) > reach or abs(a.y - b.y) > reach:
        assert estimate_mean_rssi(a, b, OPEN) < MIN_AUDIBLE_DBM


def test_a_tenth_is_lost_where_a_link_is_just_usable_and_next_to_nothing_nearby() -> None:
    assert packet_loss(MIN_USABLE_DBM) == pytest.approx(0.1, abs=0.002)
    assert packet_loss(-60.0) == pytest.approx(0.002, abs=0.0001)
    assert packet_loss(MIN_AUDIBLE_DBM) > 0.5


def test_weaker_links_lose_more() -> None:
    losses = [packet_loss(float(rssi)) for rssi in range(-20, -128, -1)]
    assert all(strong <= weak for strong, weak in pairwise(losses))
    assert 0 < losses[0] < losses[-1] < 1


@given(st.integers(0, 2**32 - 1), st.floats(0, 1e8))
def test_slow_fading_stays_in_its_limits_and_is_slow(pair: int, t: float) -> None:
    assert abs(radio.slow_fading(pair, t)) <= SLOW_FADING_DB
    assert abs(radio.slow_fading(pair, t + 60.0) - radio.slow_fading(pair, t)) <= 2.0  # dB in a minute


def test_both_fadings_are_nothing_on_average_and_reach_far() -> None:
    slow = [radio.slow_fading(77, 300.0 * n) for n in range(20_000)]
    fast = [radio.fast_fading(77, n) for n in range(20_000)]
    assert fmean(slow) == pytest.approx(0, abs=0.3)
    assert fmean(fast) == pytest.approx(0, abs=0.1)
    assert max(slow) > 0.9 * SLOW_FADING_DB
    assert max(fast) > 0.9 * FAST_FADING_DB
    assert max(map(abs, fast)) <= FAST_FADING_DB
