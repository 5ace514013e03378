"""What devices do by themselves, over simulated hours."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from msgspec import UNSET

from meshfleet.emulator.device_behavior import HEARTBEAT_INTERVAL, HOP_SECONDS
from meshfleet.emulator.simulation.mesh import MAX_DEPTH
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

BESIDES = {Identifier(each) for each in ("8810", "9800", "9821")}
"""Properties that are reported when they change, too."""


@pytest.fixture(scope="module")
def day() -> tuple[SimulatedGateway, list[ObservedReport]]:
    """Eight hours of a small site."""
    world = generated_gateway(10)
    return world, world.advance(8 * HOUR)


def gaps(told: list[ObservedReport]) -> list[float]:
    return [b.moment - a.moment for a, b in pairwise(told)]


def unbothered(world: SimulatedGateway) -> list[Mac]:
    """Devices that were never reset, nor out of hearing."""
    return [each.mac for each in world.devices if each.reset_cause == 0 and each.is_connected]


@pytest.mark.rule("gateway-23", "gateway-25")
def test_every_device_and_the_gateway_report_once_in_a_minute(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    world, told = day
    assert world.mac in unbothered(world)
    for mac_ in unbothered(world):
        heartbeats = select_reports(told, mac_, Kind.HEARTBEAT)
        assert len(heartbeats) == 480
        assert gaps(heartbeats) == pytest.approx([HEARTBEAT_INTERVAL] * 479)
        for identifier in world.device(mac_).product.measurements:
            measured = select_reports(told, mac_, Kind.MEASUREMENT, identifier)
            failed = select_reports(told, mac_, Kind.MEASUREMENT_ERROR, identifier)
            assert len(measured) + len(failed) == 480
        minutes = Counter(int(each.moment // MINUTE) for each in select_reports(told, mac_, Kind.RSSI))
        assert len(minutes) >= 478


@pytest.mark.rule("gateway-20", "gateway-23")
def test_an_unconnected_device_is_heard_nearly_every_minute(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    world, told = day
    others = [each.mac for each in world.devices if each.mode is DeviceMode.UNCONNECTED]
    assert len(others) >= 4
    for mac_ in others:
        assert 400 < len(select_reports(told, mac_, Kind.HEARTBEAT)) <= 482


@pytest.mark.rule("gateway-24")
def test_properties_come_every_twenty_minutes_and_the_first_of_them_at_once(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    world, told = day
    for mac_ in unbothered(world):
        for identifier in set(world.device(mac_).product.reported_properties) - BESIDES:
            reported = select_reports(told, mac_, Kind.PROPERTY, identifier)
            assert len(reported) == 24, (mac_, identifier)
            assert reported[0].moment < MINUTE
            assert gaps(reported) == pytest.approx([20 * MINUTE] * 23)


@pytest.mark.rule("gateway-26")
def test_properties_that_must_be_read_are_never_reported(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    world, told = day
    reported = {(each.mac, each.identifier) for each in told if each.kind is Kind.PROPERTY}
    for each in world.devices:
        assert {identifier for mac_, identifier in reported if mac_ == each.mac} <= set(
            each.product.reported_properties
        )


@each_row("devices", [0, 1, 29, 30, 100, 1000])
def test_everybody_is_heard_of_in_the_first_minute_and_the_load_is_even(devices: int) -> None:
    world = generated_gateway(devices)
    told = [each for each in world.advance(MINUTE) if each.kind is Kind.HEARTBEAT]
    connected = {each.mac for each in world.devices if each.is_connected and each.node.depth >= 0}
    assert connected <= {each.mac for each in told}
    halves = Counter(each.moment < MINUTE / 2 for each in told)
    assert abs(halves[True] - halves[False]) <= 1 + 0.3 * len(told)


@pytest.mark.rule("gateway-42")
@each_row("speed", [0.5, 1.0, 60.0, 1000.0])
def test_the_time_of_a_report_is_that_of_its_making_on_the_wall(speed: float) -> None:
    world = generated_gateway(10, speed=speed)
    for each in world.advance(30 * MINUTE):
        made = (to_millis(each.report.time) - ORIGIN) * speed / 1000.0
        # On its way it was from hop to hop, and milliseconds are cut off.
        assert each.moment - MAX_DEPTH * HOP_SECONDS - speed / 1000.0 - 1e-6 <= made <= each.moment + 1e-6


@pytest.mark.rule("gateway-42")
def test_a_fast_world_reports_more_often_by_the_clock_on_the_wall() -> None:
    world = generated_gateway(3, speed=20.0)
    told = select_reports(world.advance(20 * MINUTE), world.mac, Kind.HEARTBEAT)
    times = [to_millis(each.report.time) for each in told]
    assert len(times) == 20
    assert {b - a for a, b in pairwise(times)} <= {2999, 3000, 3001}
    assert from_millis(ORIGIN) <= told[0].report.time <= told[-1].report.time <= from_millis(ORIGIN + 60_000)


@pytest.mark.rule("report-38")
def test_every_series_counts_up_from_0_and_again_after_255(
    day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    world, told = day
    series = defaultdict(list)
    for each in told:
        series[each.series].append(each.report.seq)
    assert max(map(len, series.values())) > 300
    for (mac_, kind, _), seqs in series.items():
        if kind is Kind.MEASUREMENT and not world.device(mac_).is_connected:
            # What nobody heard has its number too, and is kept.
            assert sum((b - a) % 256 != 1 for a, b in pairwise(seqs)) < len(seqs) / 4
        else:
            assert seqs == [n % 256 for n in range(len(seqs))], (mac_, kind)


def test_a_series_runs_in_the_order_of_time(day: tuple[SimulatedGateway, list[ObservedReport]]) -> None:
    _, told = day
    latest: dict[tuple[Mac, Kind, str], ObservedReport] = {}
    for each in told:
        before = latest.get(each.series)
        assert before is None or before.report.time <= each.report.time, each.series
        latest[each.series] = each


def test_batteries_and_uptimes_tell_of_one_life(day: tuple[SimulatedGateway, list[ObservedReport]]) -> None:
    world, told = day
    for mac_ in unbothered(world):
        levels = [each.value for each in select_reports(told, mac_, Kind.PROPERTY, "8100")]
        assert len(set(levels)) <= 2
        uptimes = select_reports(told, mac_, Kind.PROPERTY, "8101")
        steps = [b.value - a.value for a, b in pairwise(uptimes)]
        assert all(step == pytest.approx(20 * MINUTE, abs=1) for step in steps)


def test_a_device_that_hangs_is_reset_by_its_watchdog_and_says_so() -> None:
    # Few do; this one does within twelve hours.
    world = SimulatedGateway([nearby_device(55)])
    told = select_reports(world.advance(13 * HOUR), device_mac(55))
    (event,) = [each for each in told if (each.kind, each.identifier) == (Kind.EVENT, "8113")]
    assert event.report.value is UNSET
    assert [each for each in told if event.moment - 7.0 < each.moment < event.moment] == []
    assert world.read(device_mac(55), "8102") == b"\x02"
    assert world.device(device_mac(55)).booted_at == event.moment
    heartbeats = [each.moment for each in told if each.kind is Kind.HEARTBEAT]
    assert event.moment in heartbeats


@pytest.mark.rule("gateway-27", "gateway-29")
def test_a_device_warns_of_its_battery_and_then_falls_silent_for_good() -> None:
    world = SimulatedGateway(
        [nearby_device(1, code="0050", battery=9), nearby_device(2, x=3.0, code="0050", battery=10)]
    )
    told = world.advance(5 * HOUR)
    assert {each.report.status for each in select_reports(told, device_mac(1), Kind.HEARTBEAT)} <= {1, 2}
    assert 0 in {each.report.status for each in select_reports(told, device_mac(2), Kind.HEARTBEAT)}
    world.device(device_mac(1)).battery = 0
    later = world.advance(5 * HOUR)
    assert select_reports(later, device_mac(1)) == []
    assert len(select_reports(later, device_mac(2), Kind.HEARTBEAT)) == 300


def test_a_dead_device_neither_reports_what_moves_nor_answers() -> None:
    world = SimulatedGateway([nearby_device(1, battery=0)])
    assert select_reports(world.advance(6 * HOUR), device_mac(1)) == []
    assert world.write(device_mac(1), "9802", "00") in {Status.TIMEOUT, Status.UNREACHABLE}


def test_a_dead_extender_carries_nobody() -> None:
    world = SimulatedGateway([nearby_device(1, 10.0, code="0043", battery=0), nearby_device(2, 12.0)])
    world.advance(10 * MINUTE)
    assert world.device(device_mac(2)).node.parent is world.device(world.mac).node


@pytest.mark.rule("gateway-22")
def test_parents_and_readings_are_those_of_the_mesh() -> None:
    world = generated_gateway(30)
    moved: dict[Mac, set[Mac]] = defaultdict(set)
    for _ in range(90):
        told = world.advance(MINUTE)
        for each in told:
            if each.kind is Kind.RSSI:
                node = world.device(each.mac).node
                hearers = {hearer.mac for hearer in node.receivers}
                assert each.report.parent in hearers
                assert each.report.channel is UNSET or 37 <= each.report.channel <= 39
                assert -97 <= each.report.rssi <= -20 or each.report.channel is UNSET
        for one in world.devices:
            if one.node.parent is not None:
                moved[one.mac].add(one.node.parent.mac)
    assert any(len(parents) > 1 for parents in moved.values())


@pytest.mark.rule("gateway-22")
def test_what_is_advertised_is_heard_on_each_channel_and_a_link_has_none() -> None:
    world = SimulatedGateway([nearby_device(1), nearby_device(2, x=3.0, code="000F")])
    told = world.advance(10 * MINUTE)
    assert {each.report.channel for each in select_reports(told, device_mac(1), Kind.RSSI)} == {UNSET}
    assert {each.report.channel for each in select_reports(told, device_mac(2), Kind.RSSI)} == {37, 38, 39}


def settled(world: SimulatedGateway, seconds: float) -> tuple[list[ObservedReport], dict[Mac, Mac]]:
    """Live on; gives what was told, and the parents of those who had the same one all the time."""
    before = {each.mac: each.node.parent for each in world.devices}
    told = world.advance(seconds)
    kept = {each.mac: each.node.parent for each in world.devices if before[each.mac] is each.node.parent}
    return told, {mac_: parent.mac for mac_, parent in kept.items() if parent is not None}


@pytest.mark.rule("gateway-19")
def test_every_connected_device_tells_how_well_its_parent_hears_it() -> None:
    world = generated_gateway(50)
    for _ in range(20):
        told, parents = settled(world, MINUTE)
        assert len(parents) > 20
        for mac_, parent in parents.items():
            links = [each for each in select_reports(told, mac_, Kind.RSSI) if each.report.channel is UNSET]
            assert parent in {each.report.parent for each in links}, mac_


def test_unreachable_says_that_no_link_can_be_made_and_never_contradicts_one_that_is_there() -> None:
    told = [each.report for each in generated_gateway(50).advance(HOUR / 2) if each.kind is Kind.RSSI]
    heard = [each for each in told if each.channel is not UNSET]
    assert {each.unreachable for each in heard} == {True, False}
    assert all(each.unreachable for each in heard if each.rssi < MIN_USABLE_DBM)
    links = [each for each in told if each.channel is UNSET]
    assert not any(each.unreachable for each in links)


def test_who_cannot_be_heard_is_not_heard_of() -> None:
    world = SimulatedGateway(
        [
            nearby_device(1, 500.0),
            nearby_device(2, 500.0, code="000F"),
            nearby_device(3, 500.0, mode=DeviceMode.STORAGE),
        ]
    )
    told = world.advance(12 * HOUR)
    assert {each.mac for each in told} == {world.mac}


def test_a_device_that_is_cut_off_keeps_its_samples_and_comes_back() -> None:
    world = SimulatedGateway(
        [
            nearby_device(1, code=EXTENDER, position=SitePosition(1, 2.0, 0.0)),
            # Two floors above the gateway, which does not hear it.
            nearby_device(2, position=SitePosition(2, 2.0, 1.0)),
        ]
    )
    world.advance(10 * MINUTE)
    assert world.device(device_mac(2)).node.parent is world.device(device_mac(1)).node
    assert world.write(device_mac(1), "8110", "03") == 0
    world.advance(MINUTE)
    assert select_reports(world.advance(4 * HOUR), device_mac(2)) == []
    kept = world.device(device_mac(2)).sample_buffer(Kind.MEASUREMENT, Identifier("8813"))
    assert len(kept) > 240
    assert world.write(device_mac(1), "8110", "02") == 0
    world.advance(3 * MINUTE)
    assert len(select_reports(world.advance(10 * MINUTE), device_mac(2), Kind.HEARTBEAT)) == 10


@pytest.mark.rule("gateway-33")
def test_a_device_in_storage_mode_keeps_nothing_of_what_the_gateway_says_for_it() -> None:
    world = SimulatedGateway([nearby_device(1, mode=DeviceMode.STORAGE)])
    assert len(select_reports(world.advance(10 * MINUTE), device_mac(1), Kind.EVENT, "8112")) == 10
    assert not world.device(device_mac(1)).sample_buffers


def test_a_heartbeat_that_nobody_hears_leaves_a_hole_and_the_next_one_tells() -> None:
    world = SimulatedGateway([nearby_device(1, code="000F")])
    before = select_reports(world.advance(3 * MINUTE), device_mac(1), Kind.HEARTBEAT)
    hearers = world.device(device_mac(1)).node.receivers
    world.device(device_mac(1)).node.receivers = ()
    assert not select_reports(world.advance(2 * MINUTE), device_mac(1), Kind.HEARTBEAT)
    world.device(device_mac(1)).node.receivers = hearers
    after = select_reports(world.advance(2 * MINUTE), device_mac(1), Kind.HEARTBEAT)
    assert after[0].report.seq - before[-1].report.seq == 3
    assert [each.report.last_count for each in after] == [0, 3]
