"""Behavior of devices without requests, over simulated hours."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from msgspec import UNSET

from meshfleet.emulator.device_behavior import HEARTBEAT_INTERVAL, HOP_SECONDS
from meshfleet.emulator.simulation.mesh_node import MAX_DEPTH
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.emulator.simulation.radio import MIN_USABLE_DBM
from meshfleet.emulator.simulation.site import SitePosition
from meshfleet.protocol.codes import Kind, Status
from meshfleet.protocol.ids import Identifier
from meshfleet.protocol.times import from_millis, to_millis
from tests.emulator.simulated_gateway import (
    EXTENDER,
    HOUR,
    MINUTE,
    ORIGIN,
    ObservedReport,
    SimulatedGateway,
    generated_gateway,
    nearby_device,
    select_reports,
)
from tests.emulator.simulation.sites import device_mac
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac

REPORTED_ON_CHANGE = {Identifier(each) for each in ("8810", "9800", "9821")}
"""Properties that are also reported when they change."""


@pytest.fixture(scope="module")
def day() -> tuple[SimulatedGateway, list[ObservedReport]]:
    """Simulate eight hours of a small site. Return the simulation and its reports."""
    simulation = generated_gateway(10)
    return simulation, simulation.advance(8 * HOUR)


def get_intervals(reports: list[ObservedReport]) -> list[float]:
    return [b.moment - a.moment for a, b in pairwise(reports)]


def list_undisturbed(simulation: SimulatedGateway) -> list[Mac]:
    """Return the connected devices that were never reset."""
    return [each.mac for each in simulation.devices if each.reset_cause == 0 and each.is_connected]


@pytest.mark.rule("gateway-23", "gateway-25")
def test_every_device_and_the_gateway_report_once_in_a_minute(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    simulation, reports = day
    assert simulation.mac in list_undisturbed(simulation)
    for mac in list_undisturbed(simulation):
        heartbeats = select_reports(reports, mac, Kind.HEARTBEAT)
        assert len(heartbeats) == 480
        assert get_intervals(heartbeats) == pytest.approx([HEARTBEAT_INTERVAL] * 479)
        for identifier in simulation.device(mac).product.measurements:
            measured = select_reports(reports, mac, Kind.MEASUREMENT, identifier)
            failed = select_reports(reports, mac, Kind.MEASUREMENT_ERROR, identifier)
            assert len(measured) + len(failed) == 480
        minutes = Counter(int(each.moment // MINUTE) for each in select_reports(reports, mac, Kind.RSSI))
        assert len(minutes) >= 478


@pytest.mark.rule("gateway-20", "gateway-23")
def test_an_unconnected_device_is_received_nearly_every_minute(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    simulation, reports = day
    unconnected = [each.mac for each in simulation.devices if each.mode is DeviceMode.UNCONNECTED]
    assert len(unconnected) >= 4
    for mac in unconnected:
        assert 400 < len(select_reports(reports, mac, Kind.HEARTBEAT)) <= 482


@pytest.mark.rule("gateway-24")
def test_properties_are_reported_at_once_and_every_twenty_minutes(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    simulation, reports = day
    for mac in list_undisturbed(simulation):
        for identifier in set(simulation.device(mac).product.reported_properties) - REPORTED_ON_CHANGE:
            reported = select_reports(reports, mac, Kind.PROPERTY, identifier)
            assert len(reported) == 24, (mac, identifier)
            assert reported[0].moment < MINUTE
            assert get_intervals(reported) == pytest.approx([20 * MINUTE] * 23)


@pytest.mark.rule("gateway-26")
def test_properties_that_must_be_read_are_never_reported(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    simulation, reports = day
    reported = {(each.mac, each.identifier) for each in reports if each.kind is Kind.PROPERTY}
    for each in simulation.devices:
        assert {identifier for mac, identifier in reported if mac == each.mac} <= set(
            each.product.reported_properties
        )


@each_row("devices", [0, 1, 29, 30, 300])
def test_all_devices_report_in_the_first_minute_and_the_load_is_even(devices: int) -> None:
    simulation = generated_gateway(devices)
    reports = [each for each in simulation.advance(MINUTE) if each.kind is Kind.HEARTBEAT]
    connected = {each.mac for each in simulation.devices if each.is_connected and each.node.depth >= 0}
    assert connected <= {each.mac for each in reports}
    halves = Counter(each.moment < MINUTE / 2 for each in reports)
    assert abs(halves[True] - halves[False]) <= 1 + 0.3 * len(reports)


@pytest.mark.rule("gateway-42")
@each_row("speed", [0.5, 1.0, 60.0, 1000.0])
def test_the_time_of_a_report_is_the_wall_clock_time_of_its_creation(speed: float) -> None:
    simulation = generated_gateway(10, speed=speed)
    for each in simulation.advance(30 * MINUTE):
        created = (to_millis(each.report.time) - ORIGIN) * speed / 1000.0
        # The report was created up to some hops earlier, and milliseconds are rounded down.
        assert each.moment - MAX_DEPTH * HOP_SECONDS - speed / 1000.0 - 1e-6 <= created <= each.moment + 1e-6


@pytest.mark.rule("gateway-42")
def test_a_fast_simulation_reports_more_often_in_wall_clock_time() -> None:
    simulation = generated_gateway(3, speed=20.0)
    reports = select_reports(simulation.advance(20 * MINUTE), simulation.mac, Kind.HEARTBEAT)
    times = [to_millis(each.report.time) for each in reports]
    assert len(times) == 20
    assert {b - a for a, b in pairwise(times)} <= {2999, 3000, 3001}
    assert (
        from_millis(ORIGIN)
        <= reports[0].report.time
        <= reports[-1].report.time
        <= from_millis(ORIGIN + 60_000)
    )


@pytest.mark.rule("report-38")
def test_sequence_numbers_of_every_series_count_from_0_to_255_repeatedly(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    simulation, reports = day
    series = defaultdict(list)
    for each in reports:
        series[each.series].append(each.report.seq)
    assert max(map(len, series.values())) > 300
    for (mac, kind, _), seqs in series.items():
        if kind is Kind.MEASUREMENT and not simulation.device(mac).is_connected:
            # A sample that was not received has a number too, and is buffered.
            assert sum((b - a) % 256 != 1 for a, b in pairwise(seqs)) < len(seqs) / 4
        else:
            assert seqs == [n % 256 for n in range(len(seqs))], (mac, kind)


def test_the_reports_of_a_series_are_in_order_of_time(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    _, reports = day
    latest: dict[tuple[Mac, Kind, str], ObservedReport] = {}
    for each in reports:
        before = latest.get(each.series)
        assert before is None or before.report.time <= each.report.time, each.series
        latest[each.series] = each


def test_battery_levels_and_uptimes_are_continuous(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    simulation, reports = day
    for mac in list_undisturbed(simulation):
        levels = [each.value for each in select_reports(reports, mac, Kind.PROPERTY, "8100")]
        assert len(set(levels)) <= 2
        uptimes = select_reports(reports, mac, Kind.PROPERTY, "8101")
        steps = [b.value - a.value for a, b in pairwise(uptimes)]
        assert all(step == pytest.approx(20 * MINUTE, abs=1) for step in steps)


def test_a_reset_by_the_watchdog_is_reported() -> None:
    # Few devices have one; this one within twelve hours.
    simulation = SimulatedGateway([nearby_device(55)])
    reports = select_reports(simulation.advance(13 * HOUR), device_mac(55))
    (event,) = [each for each in reports if (each.kind, each.identifier) == (Kind.EVENT, "8113")]
    assert event.report.value is UNSET
    assert [each for each in reports if event.moment - 7.0 < each.moment < event.moment] == []
    assert simulation.read(device_mac(55), "8102") == b"\x02"
    assert simulation.device(device_mac(55)).booted_at == event.moment
    heartbeats = [each.moment for each in reports if each.kind is Kind.HEARTBEAT]
    assert event.moment in heartbeats


@pytest.mark.rule("gateway-27", "gateway-29")
def test_a_device_reports_a_low_battery_and_is_silent_when_it_is_empty() -> None:
    simulation = SimulatedGateway(
        [nearby_device(1, code="0050", battery=9), nearby_device(2, x=3.0, code="0050", battery=10)]
    )
    reports = simulation.advance(5 * HOUR)
    assert {each.report.status for each in select_reports(reports, device_mac(1), Kind.HEARTBEAT)} <= {1, 2}
    assert 0 in {each.report.status for each in select_reports(reports, device_mac(2), Kind.HEARTBEAT)}
    simulation.device(device_mac(1)).battery = 0
    later = simulation.advance(5 * HOUR)
    assert select_reports(later, device_mac(1)) == []
    assert len(select_reports(later, device_mac(2), Kind.HEARTBEAT)) == 300


def test_a_device_with_an_empty_battery_neither_reports_nor_responds() -> None:
    simulation = SimulatedGateway([nearby_device(1, battery=0)])
    assert select_reports(simulation.advance(6 * HOUR), device_mac(1)) == []
    assert simulation.write(device_mac(1), "9802", "00") in {Status.TIMEOUT, Status.UNREACHABLE}


def test_an_extender_with_an_empty_battery_has_no_children() -> None:
    simulation = SimulatedGateway([nearby_device(1, 10.0, code="0043", battery=0), nearby_device(2, 12.0)])
    simulation.advance(10 * MINUTE)
    assert simulation.device(device_mac(2)).node.parent is simulation.device(simulation.mac).node


@pytest.mark.rule("gateway-22")
def test_rssi_reports_have_the_parents_and_readings_of_the_mesh() -> None:
    simulation = generated_gateway(30)
    parents_by_device: dict[Mac, set[Mac]] = defaultdict(set)
    for _ in range(90):
        reports = simulation.advance(MINUTE)
        for each in reports:
            if each.kind is Kind.RSSI:
                node = simulation.device(each.mac).node
                receivers = {receiver.mac for receiver in node.receivers}
                assert each.report.parent in receivers
                assert each.report.channel is UNSET or 37 <= each.report.channel <= 39
                assert -97 <= each.report.rssi <= -20 or each.report.channel is UNSET
        for device in simulation.devices:
            if device.node.parent is not None:
                parents_by_device[device.mac].add(device.node.parent.mac)
    assert any(len(parents) > 1 for parents in parents_by_device.values())


@pytest.mark.rule("gateway-22")
def test_rssi_of_advertisements_has_a_channel_and_rssi_of_links_has_none() -> None:
    simulation = SimulatedGateway([nearby_device(1), nearby_device(2, x=3.0, code="000F")])
    reports = simulation.advance(10 * MINUTE)
    assert {each.report.channel for each in select_reports(reports, device_mac(1), Kind.RSSI)} == {UNSET}
    assert {each.report.channel for each in select_reports(reports, device_mac(2), Kind.RSSI)} == {37, 38, 39}


def advance_and_find_stable_parents(
    simulation: SimulatedGateway, seconds: float
) -> tuple[list[ObservedReport], dict[Mac, Mac]]:
    """Advance the time. Return the reports, and the parents of devices that did not change them."""
    before = {each.mac: each.node.parent for each in simulation.devices}
    reports = simulation.advance(seconds)
    stable = {
        each.mac: each.node.parent for each in simulation.devices if before[each.mac] is each.node.parent
    }
    return reports, {mac: parent.mac for mac, parent in stable.items() if parent is not None}


@pytest.mark.rule("gateway-19")
def test_the_rssi_at_the_parent_of_every_connected_device_is_reported() -> None:
    simulation = generated_gateway(50)
    for _ in range(20):
        reports, parents = advance_and_find_stable_parents(simulation, MINUTE)
        assert len(parents) > 20
        for mac, parent in parents.items():
            links = [each for each in select_reports(reports, mac, Kind.RSSI) if each.report.channel is UNSET]
            assert parent in {each.report.parent for each in links}, mac


def test_weak_advertisements_are_unreachable_and_links_never_are() -> None:
    reports = [each.report for each in generated_gateway(50).advance(HOUR / 2) if each.kind is Kind.RSSI]
    advertised = [each for each in reports if each.channel is not UNSET]
    assert {each.unreachable for each in advertised} == {True, False}
    assert all(each.unreachable for each in advertised if each.rssi < MIN_USABLE_DBM)
    links = [each for each in reports if each.channel is UNSET]
    assert not any(each.unreachable for each in links)


def test_a_device_out_of_range_has_no_reports() -> None:
    simulation = SimulatedGateway(
        [
            nearby_device(1, 500.0),
            nearby_device(2, 500.0, code="000F"),
            nearby_device(3, 500.0, mode=DeviceMode.STORAGE),
        ]
    )
    reports = simulation.advance(12 * HOUR)
    assert {each.mac for each in reports} == {simulation.mac}


def test_a_device_without_a_route_buffers_its_samples_and_reconnects() -> None:
    simulation = SimulatedGateway(
        [
            nearby_device(1, code=EXTENDER, position=SitePosition(1, 2.0, 0.0)),
            # Two floors above the gateway, and so out of its range.
            nearby_device(2, position=SitePosition(2, 2.0, 1.0)),
        ]
    )
    simulation.advance(10 * MINUTE)
    assert simulation.device(device_mac(2)).node.parent is simulation.device(device_mac(1)).node
    assert simulation.write(device_mac(1), "8110", "03") == 0
    simulation.advance(MINUTE)
    assert select_reports(simulation.advance(4 * HOUR), device_mac(2)) == []
    buffer = simulation.device(device_mac(2)).sample_buffer(Kind.MEASUREMENT, Identifier("8813"))
    assert len(buffer) > 240
    assert simulation.write(device_mac(1), "8110", "02") == 0
    simulation.advance(3 * MINUTE)
    assert len(select_reports(simulation.advance(10 * MINUTE), device_mac(2), Kind.HEARTBEAT)) == 10


@pytest.mark.rule("gateway-33")
def test_the_events_of_the_gateway_for_a_device_in_storage_mode_are_not_buffered() -> None:
    simulation = SimulatedGateway([nearby_device(1, mode=DeviceMode.STORAGE)])
    assert len(select_reports(simulation.advance(10 * MINUTE), device_mac(1), Kind.EVENT, "8112")) == 10
    assert not simulation.device(device_mac(1)).sample_buffers


def test_a_missed_heartbeat_leaves_a_gap_and_shows_in_the_next_one() -> None:
    simulation = SimulatedGateway([nearby_device(1, code="000F")])
    before = select_reports(simulation.advance(3 * MINUTE), device_mac(1), Kind.HEARTBEAT)
    receivers = simulation.device(device_mac(1)).node.receivers
    simulation.device(device_mac(1)).node.receivers = ()
    assert not select_reports(simulation.advance(2 * MINUTE), device_mac(1), Kind.HEARTBEAT)
    simulation.device(device_mac(1)).node.receivers = receivers
    after = select_reports(simulation.advance(2 * MINUTE), device_mac(1), Kind.HEARTBEAT)
    assert after[0].report.seq - before[-1].report.seq == 3
    assert [each.report.last_count for each in after] == [0, 3]
