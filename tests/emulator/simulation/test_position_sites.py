"""Generated sites for positioning: their anchors, walls and floors, and the devices that move there."""

from __future__ import annotations

import json
from statistics import pstdev

import pytest

from meshfleet.emulator.simulation.mesh import SimulatedMesh
from meshfleet.emulator.simulation.position_sites import (
    SiteKind,
    add_walkers,
    generate_position_site,
    plan_survey,
)
from meshfleet.emulator.simulation.products import NodeRole
from meshfleet.emulator.simulation.site import MAX_DEVICES, Site, Survey, Walk
from meshfleet.emulator.simulation.site_file import describe_site, parse_site
from meshfleet.emulator.simulation.site_generator import generate_site
from tests.emulator.simulation.sites import GATEWAY
from tests.row_tables import each_row


def list_anchors(site: Site) -> list[tuple[int, float, float]]:
    return [each.position for each in site.devices if each.product.role is NodeRole.EXTENDER]


@pytest.mark.rule("gateway-49")
@each_row(
    ("kind", "floors", "walls"),
    [(SiteKind.HALL, 1, (0, 0)), (SiteKind.OFFICES, 1, (5, 3)), (SiteKind.BUILDING, 3, (5, 3))],
)
def test_each_kind_has_its_floors_walls_anchors_and_devices(
    kind: SiteKind, floors: int, walls: tuple[int, int]
) -> None:
    site = generate_position_site(GATEWAY, kind, anchors=9, devices=20, seed=3)
    assert site.floors == tuple(range(floors))
    assert (len(site.walls.x), len(site.walls.y)) == walls
    for floor in site.floors:
        area = site.get_area(floor)
        assert (area.max_x - area.min_x, area.max_y - area.min_y) == (40.0, 25.0)
        anchors = [each for each in list_anchors(site) if each[0] == floor]
        assert len(anchors) == 9
        inner = [(x, y) for _, x, y in anchors if abs(x) < 18.0 and abs(y) < 10.5]
        assert len(inner) == 1  # three rows of three
    assert len(site.devices) == 9 * floors + 20
    for floor, x, y in (each.position for each in site.devices):
        area = site.get_area(floor)
        assert area.min_x <= x <= area.max_x
        assert area.min_y <= y <= area.max_y


@pytest.mark.rule("gateway-41", "gateway-49")
def test_a_site_depends_on_seed_and_options() -> None:
    one = generate_position_site(GATEWAY, SiteKind.OFFICES, seed=1)
    assert one == generate_position_site(GATEWAY, SiteKind.OFFICES, seed=1)
    other = generate_position_site(GATEWAY, SiteKind.OFFICES, seed=2)
    assert one.walls != other.walls
    assert list_anchors(one) != list_anchors(other)
    gains = generate_position_site(GATEWAY, SiteKind.HALL, anchors=300, gain_sd=3.0).gains
    assert pstdev(gains.values()) == pytest.approx(3.0, abs=0.4)
    assert generate_position_site(GATEWAY, SiteKind.HALL, gain_sd=0.0).gains == {}


@each_row("kind", SiteKind)
def test_all_anchors_of_a_site_have_a_route_at_the_start_and_hear_each_other(kind: SiteKind) -> None:
    mesh = SimulatedMesh(generate_position_site(GATEWAY, kind, devices=30))
    anchors = [each for each in mesh.nodes.values() if each.role is NodeRole.EXTENDER]
    assert all(each.depth > 0 for each in anchors)
    assert all(len(each.receivers) >= 3 for each in [*anchors, mesh.root])


def test_the_number_of_devices_and_anchors_is_limited() -> None:
    for numbers in ({"anchors": 0}, {"devices": -1}, {"anchors": 12, "devices": MAX_DEVICES}):
        with pytest.raises(ValueError, match="10000"):
            generate_position_site(GATEWAY, SiteKind.HALL, **numbers)
    with pytest.raises(ValueError, match="10000"):
        add_walkers(generate_site(GATEWAY, devices=MAX_DEVICES, seed=1), 1)


@pytest.mark.rule("gateway-50")
def test_walkers_are_further_devices_of_any_generated_site() -> None:
    for site in (
        generate_site(GATEWAY, devices=10, seed=1),
        generate_position_site(GATEWAY, SiteKind.BUILDING),
    ):
        with_walkers = add_walkers(site, 6)
        assert with_walkers.devices[:-6] == site.devices
        assert with_walkers.movements == {each.mac: Walk() for each in with_walkers.devices[-6:]}
        assert len({each.mac for each in with_walkers.devices}) == len(with_walkers.devices)
        assert {each.position.floor for each in with_walkers.devices[-6:]} == set(site.floors)


@pytest.mark.rule("gateway-51")
@each_row(("kind", "points"), [(SiteKind.HALL, 20), (SiteKind.BUILDING, 20), (SiteKind.OFFICES, 1)])
def test_the_points_of_a_survey_are_spread_over_all_floors(kind: SiteKind, points: int) -> None:
    site = plan_survey(generate_position_site(GATEWAY, kind), points)
    ((mac, survey),) = site.movements.items()
    assert isinstance(survey, Survey)
    carried = next(each for each in site.devices if each.mac == mac)
    assert carried.product.role is NodeRole.LEAF
    assert len(set(survey.points)) == points
    for floor in site.floors:
        on_floor = [each for each in survey.points if each.floor == floor]
        assert abs(len(on_floor) - points / len(site.floors)) < 1
        for this in on_floor:
            others = [abs(this.x - each.x) + abs(this.y - each.y) for each in on_floor if each != this]
            assert not others or 4.0 < min(others) < 20.0


def test_a_survey_needs_a_device_to_carry() -> None:
    for site in (
        generate_site(GATEWAY, devices=0, seed=1),
        add_walkers(generate_site(GATEWAY, devices=0, seed=1), 2),
    ):
        with pytest.raises(ValueError, match="no device that can be carried"):
            plan_survey(site, 3)


@pytest.mark.rule("gateway-44")
@each_row("kind", SiteKind)
def test_the_description_of_a_site_for_positioning_is_a_site_file_of_the_same_site(kind: SiteKind) -> None:
    site = plan_survey(add_walkers(generate_position_site(GATEWAY, kind), 2), 5)
    description = json.dumps(describe_site(site, SimulatedMesh(site)))
    parsed = parse_site(description.encode(), source="-", gateway=GATEWAY, seed=site.seed)
    for field in ("walls", "areas", "receivers", "gains", "powers", "movements", "interval"):
        assert getattr(parsed, field) == getattr(site, field), field
    assert [each.position for each in parsed.devices] == [each.position for each in site.devices]
