"""Radio model: RSSI and packet loss."""

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
    compute_packet_loss,
    estimate_mean_rssi,
)
from meshfleet.emulator.simulation.site import SitePosition, Walls, WallSegment
from tests.row_tables import each_row

GATEWAY_POSITION = SitePosition(0, 0.0, 0.0)
NO_WALLS = Walls()
positions = st.builds(SitePosition, st.integers(-3, 3), st.floats(-100, 100), st.floats(-100, 100))


@pytest.mark.rule("gateway-22")
@each_row(("meters", "dbm"), [(1, -59.0), (10, -81.0), (100, -103.0), (2, -65.6227)])
def test_the_mean_falls_with_the_distance(meters: float, dbm: float) -> None:
    assert estimate_mean_rssi(GATEWAY_POSITION, SitePosition(0, meters, 0.0), NO_WALLS) == pytest.approx(
        dbm, abs=1e-3
    )
    assert estimate_mean_rssi(GATEWAY_POSITION, SitePosition(0, 0.0, -meters), NO_WALLS) == pytest.approx(
        dbm, abs=1e-3
    )


def test_the_minimum_distance_is_half_a_meter() -> None:
    assert (
        estimate_mean_rssi(GATEWAY_POSITION, GATEWAY_POSITION, NO_WALLS)
        == estimate_mean_rssi(GATEWAY_POSITION, SitePosition(0, 0.5, 0.0), NO_WALLS)
        == pytest.approx(-52.377, abs=1e-3)
    )


L_SHAPED_ROOM = (WallSegment(0, 4.0, -2.0, 4.0, 2.0, 5.0), WallSegment(0, 4.0, 2.0, 8.0, 2.0, 7.0))
"""Two walls with a common corner at x = 4, y = 2."""


@pytest.mark.rule("gateway-49")
@each_row(
    ("start", "end", "loss"),
    [
        ((0, 0.0, 0.0), (0, 6.0, 0.0), 5.0),
        ((0, 0.0, 6.0), (0, 8.0, -2.0), 7.0),  # through the corner: only one of its walls
        ((0, 0.0, 0.0), (0, 8.0, 3.0), 12.0),
        ((0, 0.0, 3.0), (0, 8.0, 3.0), 0.0),  # past the end
        ((0, 0.0, 2.0), (0, 3.0, 2.0), 0.0),  # parallel
        ((0, 5.0, 0.0), (0, 5.0, 0.0), 0.0),
        ((1, 0.0, 0.0), (1, 6.0, 0.0), 0.0),  # on another floor
        ((0, 0.0, 0.0), (1, 9.0, 0.0), 5.0),  # in the first half of the way, which is on floor 0
        ((0, 0.0, 0.0), (1, 6.0, 0.0), 0.0),  # in the second half
        ((-1, 0.0, 0.0), (1, 5.5, 0.0), 0.0),  # in the last third, on floor 1
        ((-1, 0.0, 0.0), (1, 8.0, 0.0), 5.0),  # in the second third
    ],
)
def test_a_wall_segment_attenuates_signals_through_it(
    start: tuple[int, float, float], end: tuple[int, float, float], loss: float
) -> None:
    one, other = SitePosition(*start), SitePosition(*end)
    walls = Walls(segments=L_SHAPED_ROOM)
    assert walls.sum_segment_losses(one, other) == walls.sum_segment_losses(other, one) == loss
    assert estimate_mean_rssi(one, other, walls) == estimate_mean_rssi(one, other, NO_WALLS) - loss


def test_each_wall_attenuates_by_3_db() -> None:
    walls = Walls(x=(-5.0, 2.0, 8.0, 20.0), y=(1.0,))
    position = SitePosition(0, 10.0, 0.0)
    assert (
        walls.count_walls_between(GATEWAY_POSITION, position)
        == walls.count_walls_between(position, GATEWAY_POSITION)
        == 2
    )
    assert estimate_mean_rssi(GATEWAY_POSITION, position, walls) == pytest.approx(-87.0)
    assert walls.count_walls_between(GATEWAY_POSITION, SitePosition(0, 10.0, 3.0)) == 3


def test_a_floor_attenuates_by_12_db_and_is_3_meters_high() -> None:
    assert estimate_mean_rssi(GATEWAY_POSITION, SitePosition(1, 4.0, 0.0), NO_WALLS) == pytest.approx(
        estimate_mean_rssi(GATEWAY_POSITION, SitePosition(0, 5.0, 0.0), NO_WALLS) - 12.0
    )
    assert estimate_mean_rssi(GATEWAY_POSITION, SitePosition(-2, 8.0, 0.0), NO_WALLS) == pytest.approx(
        estimate_mean_rssi(GATEWAY_POSITION, SitePosition(0, 10.0, 0.0), NO_WALLS) - 24.0
    )


@given(positions, positions)
def test_the_rssi_is_the_same_in_both_directions(a: SitePosition, b: SitePosition) -> None:
    walls = Walls(x=(-7.0, 3.0), y=(0.0,))
    assert estimate_mean_rssi(a, b, walls) == estimate_mean_rssi(b, a, walls)


@given(positions, positions)
def test_nothing_is_received_beyond_the_range(a: SitePosition, b: SitePosition) -> None:
    max_range = radio.compute_range(radio.FLOOR_LOSS_DB * abs(a.floor - b.floor))
    if abs(a.x - b.x) > max_range or abs(a.y - b.y) > max_range:
        assert estimate_mean_rssi(a, b, NO_WALLS) < MIN_AUDIBLE_DBM


def test_a_tenth_of_the_packets_is_lost_on_a_link_that_is_just_usable() -> None:
    assert compute_packet_loss(MIN_USABLE_DBM) == pytest.approx(0.1, abs=0.002)
    assert compute_packet_loss(-60.0) == pytest.approx(0.002, abs=0.0001)
    assert compute_packet_loss(MIN_AUDIBLE_DBM) > 0.5


def test_weaker_links_lose_more_packets() -> None:
    losses = [compute_packet_loss(float(rssi)) for rssi in range(-20, -128, -1)]
    assert all(strong <= weak for strong, weak in pairwise(losses))
    assert 0 < losses[0] < losses[-1] < 1


@given(st.integers(0, 2**32 - 1), st.floats(0, 1e8))
def test_slow_fading_stays_in_its_limits_and_is_slow(pair: int, t: float) -> None:
    assert abs(radio.compute_slow_fading(pair, t)) <= SLOW_FADING_DB
    assert (
        abs(radio.compute_slow_fading(pair, t + 60.0) - radio.compute_slow_fading(pair, t)) <= 2.0
    )  # dB in a minute


def test_both_kinds_of_fading_are_0_on_average_and_use_their_range() -> None:
    slow = [radio.compute_slow_fading(77, 300.0 * n) for n in range(20_000)]
    fast = [radio.compute_fast_fading(77, n) for n in range(20_000)]
    assert fmean(slow) == pytest.approx(0, abs=0.3)
    assert fmean(fast) == pytest.approx(0, abs=0.1)
    assert max(slow) > 0.9 * SLOW_FADING_DB
    assert max(fast) > 0.9 * FAST_FADING_DB
    assert max(map(abs, fast)) <= FAST_FADING_DB
