"""Routes of walking devices: the position at any time."""

from __future__ import annotations

from itertools import pairwise
from math import hypot

import pytest
from msgspec.structs import replace

from meshfleet.emulator.simulation.routes import build_routes
from meshfleet.emulator.simulation.site import FloorArea, Site, SitePosition, Survey, Walk
from tests.emulator.simulation.sites import GATEWAY, device_mac, place_device
from tests.row_tables import each_row

SQUARE = tuple(SitePosition(0, x, y) for x, y in ((0.0, 0.0), (8.0, 0.0), (8.0, 4.0)))
AREA = FloorArea(0, -5.0, 0.0, 15.0, 10.0)
MAC = device_mac(1)


def build_site(movement: Walk | Survey, *, seed: int = 1) -> Site:
    devices = (place_device(1, 2.0, 3.0), place_device(2, 0.0, code="0040"))
    return Site(gateway=GATEWAY, seed=seed, devices=devices, movements={MAC: movement}, areas=(AREA,))


def list_positions(site: Site, times: range) -> list[SitePosition]:
    route = build_routes(site)[MAC]
    return [route.find_position(float(t)) for t in times]


@pytest.mark.rule("gateway-50")
@each_row(
    ("sim_time", "expected"),
    [
        (0.0, (0.0, 0.0)),
        (10.0, (0.0, 0.0)),  # the pause ends
        (12.0, (4.0, 0.0)),
        (14.0, (8.0, 0.0)),
        (24.0, (8.0, 0.0)),
        (25.0, (8.0, 2.0)),
        (36.0, (8.0, 4.0)),
        (36.0 + 80**0.5 / 4, (4.0, 2.0)),  # on the way back to the first point
        (36.0 + 80**0.5 / 2, (0.0, 0.0)),
        (48.0 + 80**0.5 / 2, (4.0, 0.0)),
        (10_000 * (36.0 + 80**0.5 / 2) + 12.0, (4.0, 0.0)),
    ],
)
def test_a_walk_follows_its_path_for_ever(sim_time: float, expected: tuple[float, float]) -> None:
    route = build_routes(build_site(Walk(speed=2.0, pause=10.0, path=SQUARE)))[MAC]
    position = route.find_position(sim_time)
    assert position == pytest.approx((0, *expected), abs=1e-6)


def test_a_walk_with_one_point_and_no_pause_stands_still() -> None:
    site = build_site(Walk(pause=0.0, path=SQUARE[:1]))
    assert set(list_positions(site, range(100))) == {SQUARE[0]}


@pytest.mark.rule("gateway-50")
def test_a_random_walk_starts_at_its_device_and_stays_on_its_floor_at_its_speed() -> None:
    site = build_site(Walk(speed=0.5, pause=5.0))
    positions = list_positions(site, range(20_000))
    assert positions[0] == SitePosition(0, 2.0, 3.0)
    assert {each.floor for each in positions} == {0}
    assert all(
        AREA.min_x <= each.x <= AREA.max_x and AREA.min_y <= each.y <= AREA.max_y for each in positions
    )
    steps = [hypot(there.x - here.x, there.y - here.y) for here, there in pairwise(positions)]
    assert max(steps) == pytest.approx(0.5)
    assert min(each.x for each in positions) < -3.0
    assert max(each.x for each in positions) > 13.0


@pytest.mark.rule("gateway-41", "gateway-50")
def test_a_random_walk_depends_on_the_seed() -> None:
    times = range(0, 3600, 60)
    site = build_site(Walk())
    assert list_positions(site, times) == list_positions(build_site(Walk()), times)
    assert list_positions(site, times) != list_positions(build_site(Walk(), seed=2), times)


def test_a_survey_visits_its_points_once_and_ends_at_the_last_one() -> None:
    points = (SitePosition(0, 2.0, 7.0), SitePosition(1, 2.0, 8.0))
    route = build_routes(build_site(Survey(points=points, seconds=30.0)))[MAC]
    # 4 m to the first point; then 1 m and the stairs of 3 m.
    assert [stay[1:] for stay in route.stays] == [(0.0, 0.0), (4.0, 34.0), (38.0, 68.0)]
    expected = [(0, 2.0, 3.0), (0, 2.0, 7.0), (0, 2.0, 7.25), (1, 2.0, 7.75), points[1], points[1]]
    assert [route.find_position(t) for t in (0.0, 20.0, 35.0, 37.0, 68.0, 1e9)] == expected


def test_only_leaves_of_a_site_can_move() -> None:
    for mac in (device_mac(2), device_mac(9)):
        with pytest.raises(ValueError, match="only leaves"):
            replace(build_site(Walk()), movements={mac: Walk()})
