"""Devices that walk through a site: their reports, their links, and the record of where they really are."""

from __future__ import annotations

from itertools import pairwise
from math import hypot
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from meshfleet.emulator import EmulatorSettings, GatewayEmulator, SimulatedClock, SimulatedMesh
from meshfleet.emulator.device_movement import SurveyPoint, TruePosition
from meshfleet.emulator.simulation.position_sites import (
    SiteKind,
    add_walkers,
    generate_position_site,
    plan_survey,
)
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.emulator.simulation.radio import (
    FAST_FADING_DB,
    MIN_AUDIBLE_DBM,
    SLOW_FADING_DB,
    estimate_mean_rssi,
)
from meshfleet.emulator.simulation.receivers import MAX_RECEIVERS
from meshfleet.emulator.simulation.routes import build_routes
from meshfleet.emulator.simulation.site import Site, SitePosition, Survey, Walk
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.ids import Mac, to_device_id, to_mac
from meshfleet.protocol.times import parse_millis
from tests.emulator.simulated_gateway import (
    MINUTE,
    ORIGIN,
    ObservedReport,
    SimulatedGateway,
    nearby_device,
    select_reports,
)
from tests.emulator.simulation.sites import GATEWAY, device_mac

if TYPE_CHECKING:
    from meshfleet.emulator.device_movement import MovementRecord

HALL = add_walkers(generate_position_site(GATEWAY, SiteKind.HALL, gain_sd=0.0, devices=2), 2)
"""Hall in which the last device but one is connected and the last one is not; both walk."""
WALKERS = [each.mac for each in HALL.devices[-2:]]


def run(site: Site, seconds: float) -> list[MovementRecord]:
    """Run a gateway at ten times real time. Return where its devices moved."""
    records: list[MovementRecord] = []
    gateway = GatewayEmulator(
        EmulatorSettings(mac=site.gateway), site, SimulatedClock(ORIGIN, 10.0), on_movement=records.append
    )
    gateway.advance(seconds)
    return records


@pytest.mark.rule("gateway-50")
def test_a_walking_device_is_reported_at_its_interval_by_every_node_that_hears_it() -> None:
    simulation = SimulatedGateway(replace(HALL, interval=5.0))
    observed = simulation.advance(5 * MINUTE)
    for mac in WALKERS:
        readings = select_reports(observed, mac, Kind.RSSI)
        moments = sorted({each.moment for each in readings})
        assert [round(later - earlier, 6) for earlier, later in pairwise(moments)] == [5.0] * 59
        assert fmean(sum(each.moment == moment for each in readings) for moment in moments) > 10
        assert len(select_reports(observed, mac, Kind.HEARTBEAT)) == 5


@pytest.mark.rule("gateway-49", "gateway-50")
def test_the_readings_of_a_walking_device_follow_its_true_place() -> None:
    site = add_walkers(generate_position_site(GATEWAY, SiteKind.OFFICES, anchors=20, devices=0), 2)
    simulation = SimulatedGateway(site)
    places = {each.mac: each.position for each in site.devices} | {GATEWAY: SitePosition(0, 0.0, 0.0)}
    routes = build_routes(site)

    def find_level(reading: ObservedReport) -> float:
        """Return the mean RSSI in dBm at the true position of the device at the time of a reading."""
        position, parent = routes[reading.mac].find_position(reading.moment), reading.report.parent
        return estimate_mean_rssi(position, places[parent], site.walls) + site.gains.get(parent, 0.0)

    observed = simulation.advance(15 * MINUTE)
    for mac, route in routes.items():
        visited = [route.find_position(each.moment) for each in select_reports(observed, mac, Kind.RSSI)]
        assert max(hypot(each.x - visited[0].x, each.y - visited[0].y) for each in visited) > 10.0
        errors = [
            reading.report.rssi - level
            for reading in select_reports(observed, mac, Kind.RSSI)
            # Weaker signals are not always received, which raises the mean of those that are.
            if (level := find_level(reading)) > MIN_AUDIBLE_DBM + SLOW_FADING_DB + FAST_FADING_DB
        ]
        assert len(errors) > 1_500
        assert abs(fmean(errors)) < 2.0  # each pair of nodes fades for half an hour
        assert max(map(abs, errors)) <= SLOW_FADING_DB + FAST_FADING_DB + 0.5


@pytest.mark.rule("gateway-19", "gateway-50")
def test_a_connected_walker_keeps_a_link_to_a_node_that_receives_it() -> None:
    site = add_walkers(generate_position_site(GATEWAY, SiteKind.OFFICES, anchors=20, devices=0), 4)
    site = replace(site, movements={mac: Walk(speed=3.0, pause=0.0) for mac in site.movements})
    simulation = SimulatedGateway(site)
    walkers = [simulation.device(mac) for mac in site.movements if simulation.device(mac).is_connected]
    parents, connected = set(), 0
    for _ in range(400):
        simulation.advance_in_one_step(3.0)
        for walker in walkers:
            node = walker.node
            assert node.parent is None or node.parent in node.receivers[:MAX_RECEIVERS]
            parents.add(node.parent)
            connected += node.depth > 0
        for each in simulation.devices:
            assert each.node.child_count == sum(
                other.node.parent is each.node for other in simulation.devices
            )
    assert len(parents) > 8
    assert connected > 0.97 * 400 * len(walkers)


def test_a_walker_without_a_receiver_is_not_reported_and_comes_back() -> None:
    path = tuple(SitePosition(0, x, 0.0) for x in (2.0, 300.0))
    site = Site(
        gateway=GATEWAY,
        seed=1,
        devices=(nearby_device(1),),
        movements={device_mac(1): Walk(speed=10.0, pause=60.0, path=path)},
    )
    simulation = SimulatedGateway(site)
    near = simulation.advance(60.0)
    simulation.advance(25.0)
    far = simulation.advance(60.0)
    node = simulation.device(device_mac(1)).node
    assert (node.depth, node.receivers) == (-1, ())
    simulation.advance(40.0)
    back = simulation.advance(40.0)
    counts = [len(select_reports(each, device_mac(1), Kind.RSSI)) for each in (near, far, back)]
    assert (counts[0], counts[1]) == (20, 0)
    assert counts[2] > 10
    assert all(each.report.channel is UNSET for each in select_reports(back, device_mac(1), Kind.RSSI))
    assert node.depth == 1


def test_a_walker_in_storage_mode_moves_without_reports() -> None:
    device = nearby_device(1, mode=DeviceMode.STORAGE)
    path = tuple(SitePosition(0, x, 0.0) for x in (2.0, 12.0))
    walk = {device.mac: Walk(speed=1.0, pause=0.0, path=path)}
    simulation = SimulatedGateway(Site(gateway=GATEWAY, seed=1, devices=(device,), movements=walk))
    assert not select_reports(simulation.advance(65.0), device.mac, Kind.RSSI)
    assert simulation.gateway.true_place(device.mac).x == pytest.approx(7.0, abs=3.0)


@pytest.mark.rule("gateway-41")
def test_a_run_with_walkers_does_not_depend_on_the_steps_of_time() -> None:
    in_one_step, in_steps = SimulatedGateway(HALL), SimulatedGateway(HALL)
    messages = [message for _ in range(100) for message in in_steps.advance_in_one_step(7.3)]
    assert messages == in_one_step.advance_in_one_step(in_steps.now)


# --- Surveys and the truth ---


@pytest.mark.rule("gateway-51")
def test_a_survey_records_each_stop_with_the_time_spent_there() -> None:
    site = plan_survey(HALL, 4)
    ((carried, survey),) = site.movements.items() - HALL.movements.items()
    assert isinstance(survey, Survey)
    records = run(site, 10 * MINUTE)
    stops = [each for each in records if isinstance(each, SurveyPoint)]
    assert [(each.floor, each.x, each.y) for each in stops] == list(survey.points)
    assert {each.device for each in stops} == {to_device_id(carried)}
    for stop in stops:
        begin, end = parse_millis(stop.begin), parse_millis(stop.end)
        assert end - begin == pytest.approx(6_000, abs=1)  # 60 s at ten times real time
        inside = [
            each
            for each in records
            if isinstance(each, TruePosition)
            and each.device == stop.device
            and stop.begin <= each.time <= stop.end
        ]
        assert len(inside) in {20, 21}
        assert {(each.floor, each.x, each.y) for each in inside} == {(stop.floor, stop.x, stop.y)}


@pytest.mark.rule("gateway-52")
def test_the_true_position_is_recorded_with_the_time_of_the_reports() -> None:
    records = [each for each in run(HALL, 5 * MINUTE) if isinstance(each, TruePosition)]
    assert {to_mac(each.device) for each in records} == set(WALKERS)
    simulation = SimulatedGateway(HALL, speed=10.0)
    reported = {
        (each.mac, parse_millis(each.report.time.isoformat()))
        for each in simulation.advance(5 * MINUTE)
        if each.kind is Kind.RSSI and each.mac in WALKERS
    }
    assert reported == {(to_mac(each.device), parse_millis(each.time)) for each in records}


@pytest.mark.rule("gateway-52")
def test_the_true_place_of_every_device_is_known_at_any_time() -> None:
    simulation = SimulatedGateway(HALL)
    gateway = simulation.gateway
    assert gateway.true_place(GATEWAY) == SitePosition(0, 0.0, 0.0)
    for device in HALL.devices[:-2]:
        assert gateway.true_place(device.mac) == device.position
    before = [gateway.true_place(mac) for mac in WALKERS]
    assert before == [each.position for each in HALL.devices[-2:]]
    simulation.advance_in_one_step(10 * MINUTE)
    assert all(one != gateway.true_place(mac) for one, mac in zip(before, WALKERS, strict=True))
    with pytest.raises(KeyError):
        gateway.true_place(Mac("00c0ffee0000"))


def test_a_leaf_of_a_site_without_movement_cannot_be_moved() -> None:
    mesh = SimulatedMesh(Site(gateway=GATEWAY, seed=1, devices=(nearby_device(1),)))
    with pytest.raises(ValueError, match="no moving devices"):
        mesh.move(mesh.nodes[device_mac(1)], SitePosition(0, 1.0, 1.0), 0.0)
