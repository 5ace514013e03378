"""What properties hold: motion, alarms, doors, batteries, and what a device is."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from meshfleet.emulator import ReportMode as Writing
from meshfleet.emulator.simulation.site import derive_public_key
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from tests.emulator.simulated_gateway import (
    DAY,
    HOUR,
    MINUTE,
    ObservedReport,
    SimulatedGateway,
    decode_reports,
    generated_gateway,
    nearby_device,
    select_reports,
)
from tests.emulator.simulation.sites import device_mac
from tests.row_tables import each_row

MOTION, MINUTES, ALARM, DOORS = "8810", "8813", "9800", "8831"


@pytest.fixture(scope="module", params=["0018", "0005", "0011-01"])
def mover(request: pytest.FixtureRequest) -> tuple[SimulatedGateway, list[ObservedReport]]:
    """A day of something that notices motion."""
    world = SimulatedGateway([nearby_device(1, code=request.param)])
    return world, world.advance(DAY)


def motion(told: list[ObservedReport], kind: Kind) -> list[tuple[float, int, int, bool]]:
    """Moment, value, transitions so far, and whether this is one."""
    found = []
    for each in select_reports(told, device_mac(1), kind, MOTION):
        decoded = BUILTIN_CATALOGUE.decode(MOTION, each.raw)
        ext: Any = decoded.ext
        found.append((each.moment, int(decoded.value), ext["transitionCounter"], ext["isTransition"]))
    return found


@pytest.mark.rule("gateway-27")
def test_every_turn_is_an_event_and_the_counter_counts_them_all(
    mover: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    world, told = mover
    events = motion(told, Kind.EVENT)
    assert len(events) > 50
    assert [counter for _, _, counter, _ in events] == list(range(1, len(events) + 1))
    causes = [value for _, value, _, _ in events]
    assert causes == [
        world.device(device_mac(1)).product.motion_code if n % 2 == 0 else 0 for n in range(len(events))
    ]


def test_only_an_event_is_a_transition(mover: tuple[SimulatedGateway, list[ObservedReport]]) -> None:
    _, told = mover
    assert all(flag for *_, flag in motion(told, Kind.EVENT))
    assert not any(flag for *_, flag in motion(told, Kind.PROPERTY))


def test_the_motion_property_tells_what_the_last_event_told(
    mover: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    _, told = mover
    events = motion(told, Kind.EVENT)
    for moment, value, counter, _ in motion(told, Kind.PROPERTY):
        past = [(event[1], event[2]) for event in events if event[0] <= moment]
        assert (value, counter) == (past[-1] if past else (0, 0))


def test_things_rest_longer_than_they_move_and_move_longer_than_their_timeout(
    mover: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    _, told = mover
    turns = [moment for moment, *_ in motion(told, Kind.EVENT)]
    pauses = [b - a for a, b in pairwise(turns)]
    moving, still = pauses[::2], pauses[1::2]
    assert min(moving) >= 60.0
    assert 90 < fmean(moving) < 180
    assert 400 < fmean(still) < 900


def test_minutes_in_motion_are_those_between_the_events(
    mover: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    _, told = mover
    turns = [moment for moment, *_ in motion(told, Kind.EVENT)]
    reported = [
        each
        for each in select_reports(told, device_mac(1))
        if each.identifier == MINUTES and hasattr(each.report, "value")
    ]
    for each in reported:
        edges = [turn for turn in turns if turn <= each.moment]
        edges += [each.moment] if len(edges) % 2 else []
        seconds = sum(b - a for a, b in zip(edges[::2], edges[1::2], strict=True))
        # A report is made a moment before it arrives.
        assert (seconds - 0.05) // 60 <= int.from_bytes(each.raw, "big") <= seconds // 60


@pytest.mark.rule("gateway-34")
def test_a_button_raises_an_alarm_that_stays_until_it_is_cleared() -> None:
    world = SimulatedGateway([nearby_device(1, code="000F")])
    pressed: list[ObservedReport] = []
    while not pressed:
        pressed = select_reports(world.advance(HOUR), device_mac(1), Kind.EVENT, ALARM)
    assert pressed[0].raw == b"\1"
    assert world.read(device_mac(1), ALARM) == b"\1"
    assert {
        each.raw for each in select_reports(world.advance(45 * MINUTE), device_mac(1), Kind.PROPERTY, ALARM)
    } == {b"\1"}
    assert world.write(device_mac(1), ALARM, "00") == 0
    assert world.read(device_mac(1), ALARM) == b"\0"


@pytest.mark.rule("gateway-34")
def test_raising_and_clearing_an_alarm_are_reported_at_once() -> None:
    world = SimulatedGateway([nearby_device(1, code="0011-04")])
    world.advance(MINUTE)
    for raw in ("01", "00"):
        sent = len(world.published)
        assert world.write(device_mac(1), ALARM, raw) == 0
        world.advance(1.0)
        tail = [
            message for _, message in world.published[sent:] if message.topic.endswith(f"property/{ALARM}")
        ]
        assert len(tail) == 1
        assert f'"value":"{raw}"'.encode() in tail[0].payload


def test_alarms_come_about_once_in_six_hours_and_only_where_there_is_a_button() -> None:
    world = generated_gateway(10)
    alarms = [
        message
        for message in world.advance_in_one_step(12 * HOUR)
        if message.topic.endswith(f"/event/{ALARM}")
    ]
    told = list(decode_reports(world.gateway, ((0.0, message) for message in alarms)))
    buttons = [each for each in world.devices if each.product.has_button]
    assert {each.mac for each in told} <= {each.mac for each in buttons}
    assert len(buttons) < len(told) < 4 * len(buttons)


def test_a_door_counter_only_grows_also_over_a_restart() -> None:
    world = SimulatedGateway([nearby_device(1, code="0050")])
    told = world.advance(8 * HOUR)
    assert world.write(device_mac(1), "8300") == 0
    told += world.advance(8 * HOUR)
    counts = [
        int.from_bytes(each.raw, "big") for each in select_reports(told, device_mac(1), Kind.PROPERTY, DOORS)
    ]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


@pytest.mark.rule("gateway-29", "gateway-30")
def test_a_failed_measurement_is_told_and_so_is_the_heartbeat_after_it() -> None:
    world = SimulatedGateway([nearby_device(1, code="0005")])
    told = world.advance(3 * DAY)
    errors = select_reports(told, device_mac(1), Kind.MEASUREMENT_ERROR)
    assert {each.report.error for each in errors} == {1, 8, 9}
    failed = {round(each.moment) for each in errors}
    for heartbeat in select_reports(told, device_mac(1), Kind.HEARTBEAT):
        # What it failed to measure a minute ago it complains of now.
        assert (heartbeat.report.status == 2) == (round(heartbeat.moment - MINUTE) in failed)


def test_a_failed_measurement_leaves_no_hole_in_the_measured_ones() -> None:
    world = SimulatedGateway([nearby_device(1, code="0005")])
    told = world.advance(DAY)
    for kind in (Kind.MEASUREMENT, Kind.MEASUREMENT_ERROR):
        seqs = [each.report.seq for each in select_reports(told, device_mac(1), kind, "8800")]
        assert seqs == [n % 256 for n in range(len(seqs))]
        assert seqs


@each_row("code", ["0018", "0011-04", "0040", "0063"])
def test_a_device_knows_what_it_is(code: str) -> None:
    world = SimulatedGateway([nearby_device(1, code=code)])
    product = world.device(device_mac(1)).product
    info: Any = world.request(Operation.READ, device_mac(1), "8005")
    assert info.status == 0
    told: Any = BUILTIN_CATALOGUE.decode("8005", bytes.fromhex(info.value)).value
    assert told["mac"] == world.read(device_mac(1), "8003").hex() == device_mac(1)
    assert (
        told["modelNumber"]
        == int.from_bytes(world.read(device_mac(1), "8000"), "big")
        == int(product.model, 16)
    )
    assert told["variant"] == world.read(device_mac(1), "8007")[0] == product.variant
    assert (
        told["publicKey"] == world.read(device_mac(1), "8008").hex() == derive_public_key(device_mac(1)).hex()
    )
    assert BUILTIN_CATALOGUE.decode("8001", world.read(device_mac(1), "8001")).value == str(product.firmware)
    assert told["firmwareVersion"] == str(product.firmware)


def test_the_voltage_falls_with_the_battery() -> None:
    world = SimulatedGateway([nearby_device(n, x=1.0 + n, code="0050", battery=10 * n) for n in range(1, 11)])
    for n in range(1, 11):
        assert world.read(device_mac(n), "8100")[0] == 10 * n
    volts = [int.from_bytes(world.read(device_mac(n), "8103"), "big") for n in range(1, 11)]
    assert volts == sorted(volts)
    assert 2000 < volts[0] < volts[-1] == 3000


def test_reading_finds_what_was_reported_and_changes_nothing() -> None:
    world = generated_gateway(10, mode=Writing.RAW)
    told = world.advance(MINUTE)
    for each in told:
        open_to_all = world.device(each.mac).access is None
        if (
            each.kind is Kind.PROPERTY
            and open_to_all
            and each.identifier in world.device(each.mac).product.default_values
        ):
            assert world.read(each.mac, each.identifier) == each.raw
