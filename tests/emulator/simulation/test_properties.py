"""Values of properties: motion, alarms, doors, batteries and identity."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from meshfleet.emulator import ReportMode
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
def motion_day(request: pytest.FixtureRequest) -> tuple[SimulatedGateway, list[ObservedReport]]:
    """Simulate one day of a device with motion detection. Return the simulation and its reports."""
    simulation = SimulatedGateway([nearby_device(1, code=request.param)])
    return simulation, simulation.advance(DAY)


def decode_motion(reports: list[ObservedReport], kind: Kind) -> list[tuple[float, int, int, bool]]:
    """Return time, value, transition counter and transition flag of each motion report."""
    states = []
    for each in select_reports(reports, device_mac(1), kind, MOTION):
        decoded = BUILTIN_CATALOGUE.decode(MOTION, each.raw)
        ext: Any = decoded.ext
        states.append((each.moment, int(decoded.value), ext["transitionCounter"], ext["isTransition"]))
    return states


@pytest.mark.rule("gateway-27")
def test_every_change_of_motion_is_an_event_and_is_counted(
    motion_day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    simulation, reports = motion_day
    events = decode_motion(reports, Kind.EVENT)
    assert len(events) > 50
    assert [counter for _, _, counter, _ in events] == list(range(1, len(events) + 1))
    causes = [value for _, value, _, _ in events]
    assert causes == [
        simulation.device(device_mac(1)).product.motion_code if n % 2 == 0 else 0 for n in range(len(events))
    ]


def test_only_events_have_the_transition_flag(
    motion_day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    _, reports = motion_day
    assert all(flag for *_, flag in decode_motion(reports, Kind.EVENT))
    assert not any(flag for *_, flag in decode_motion(reports, Kind.PROPERTY))


def test_the_motion_property_has_the_value_of_the_last_event(
    motion_day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    _, reports = motion_day
    events = decode_motion(reports, Kind.EVENT)
    for moment, value, counter, _ in decode_motion(reports, Kind.PROPERTY):
        earlier_states = [(event[1], event[2]) for event in events if event[0] <= moment]
        assert (value, counter) == (earlier_states[-1] if earlier_states else (0, 0))


def test_motion_lasts_longer_than_its_timeout_and_rest_lasts_longer_than_motion(
    motion_day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    _, reports = motion_day
    changes = [moment for moment, *_ in decode_motion(reports, Kind.EVENT)]
    pauses = [b - a for a, b in pairwise(changes)]
    moving, still = pauses[::2], pauses[1::2]
    assert min(moving) >= 60.0
    assert 90 < fmean(moving) < 180
    assert 400 < fmean(still) < 900


def test_minutes_in_motion_are_those_between_the_events(
    motion_day: tuple[SimulatedGateway, list[ObservedReport]],
) -> None:
    _, reports = motion_day
    changes = [moment for moment, *_ in decode_motion(reports, Kind.EVENT)]
    reported = [
        each
        for each in select_reports(reports, device_mac(1))
        if each.identifier == MINUTES and hasattr(each.report, "value")
    ]
    for each in reported:
        boundaries = [change for change in changes if change <= each.moment]
        boundaries += [each.moment] if len(boundaries) % 2 else []
        seconds = sum(b - a for a, b in zip(boundaries[::2], boundaries[1::2], strict=True))
        # A report is created shortly before it arrives.
        assert (seconds - 0.05) // 60 <= int.from_bytes(each.raw, "big") <= seconds // 60


@pytest.mark.rule("gateway-34")
def test_a_button_raises_an_alarm_that_stays_until_it_is_cleared() -> None:
    simulation = SimulatedGateway([nearby_device(1, code="000F")])
    alarms: list[ObservedReport] = []
    while not alarms:
        alarms = select_reports(simulation.advance(HOUR), device_mac(1), Kind.EVENT, ALARM)
    assert alarms[0].raw == b"\1"
    assert simulation.read(device_mac(1), ALARM) == b"\1"
    assert {
        each.raw
        for each in select_reports(simulation.advance(45 * MINUTE), device_mac(1), Kind.PROPERTY, ALARM)
    } == {b"\1"}
    assert simulation.write(device_mac(1), ALARM, "00") == 0
    assert simulation.read(device_mac(1), ALARM) == b"\0"


@pytest.mark.rule("gateway-34")
def test_raising_and_clearing_an_alarm_are_reported_at_once() -> None:
    simulation = SimulatedGateway([nearby_device(1, code="0011-04")])
    simulation.advance(MINUTE)
    for raw in ("01", "00"):
        published_before = len(simulation.published)
        assert simulation.write(device_mac(1), ALARM, raw) == 0
        simulation.advance(1.0)
        messages = [
            message
            for _, message in simulation.published[published_before:]
            if message.topic.endswith(f"property/{ALARM}")
        ]
        assert len(messages) == 1
        assert f'"value":"{raw}"'.encode() in messages[0].payload


def test_alarms_are_raised_about_every_six_hours_by_devices_with_a_button() -> None:
    simulation = generated_gateway(10)
    alarms = [
        message
        for message in simulation.advance_in_one_step(12 * HOUR)
        if message.topic.endswith(f"/event/{ALARM}")
    ]
    reports = list(decode_reports(simulation.gateway, ((0.0, message) for message in alarms)))
    buttons = [each for each in simulation.devices if each.product.has_button]
    assert {each.mac for each in reports} <= {each.mac for each in buttons}
    assert len(buttons) < len(reports) < 4 * len(buttons)


def test_a_door_counter_never_decreases_even_by_a_restart() -> None:
    simulation = SimulatedGateway([nearby_device(1, code="0050")])
    reports = simulation.advance(8 * HOUR)
    assert simulation.write(device_mac(1), "8300") == 0
    reports += simulation.advance(8 * HOUR)
    counts = [
        int.from_bytes(each.raw, "big")
        for each in select_reports(reports, device_mac(1), Kind.PROPERTY, DOORS)
    ]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


@pytest.mark.rule("gateway-29", "gateway-30")
def test_a_failed_measurement_is_reported_and_shows_in_the_next_heartbeat() -> None:
    simulation = SimulatedGateway([nearby_device(1, code="0005")])
    reports = simulation.advance(2 * DAY)
    errors = select_reports(reports, device_mac(1), Kind.MEASUREMENT_ERROR)
    assert {each.report.error for each in errors} == {1, 8, 9}
    failed = {round(each.moment) for each in errors}
    for heartbeat in select_reports(reports, device_mac(1), Kind.HEARTBEAT):
        # A failure of the previous minute shows in the heartbeat.
        assert (heartbeat.report.status == 2) == (round(heartbeat.moment - MINUTE) in failed)


def test_a_failed_measurement_leaves_no_gap_in_sequence_numbers() -> None:
    simulation = SimulatedGateway([nearby_device(1, code="0005")])
    reports = simulation.advance(DAY)
    for kind in (Kind.MEASUREMENT, Kind.MEASUREMENT_ERROR):
        seqs = [each.report.seq for each in select_reports(reports, device_mac(1), kind, "8800")]
        assert seqs == [n % 256 for n in range(len(seqs))]
        assert seqs


@each_row("code", ["0018", "0011-04", "0040", "0063"])
def test_a_device_returns_its_identity(code: str) -> None:
    simulation = SimulatedGateway([nearby_device(1, code=code)])
    product = simulation.device(device_mac(1)).product
    response: Any = simulation.request(Operation.READ, device_mac(1), "8005")
    assert response.status == 0
    info: Any = BUILTIN_CATALOGUE.decode("8005", bytes.fromhex(response.value)).value
    assert info["mac"] == simulation.read(device_mac(1), "8003").hex() == device_mac(1)
    assert (
        info["modelNumber"]
        == int.from_bytes(simulation.read(device_mac(1), "8000"), "big")
        == int(product.model, 16)
    )
    assert info["variant"] == simulation.read(device_mac(1), "8007")[0] == product.variant
    assert (
        info["publicKey"]
        == simulation.read(device_mac(1), "8008").hex()
        == derive_public_key(device_mac(1)).hex()
    )
    assert BUILTIN_CATALOGUE.decode("8001", simulation.read(device_mac(1), "8001")).value == str(
        product.firmware
    )
    assert info["firmwareVersion"] == str(product.firmware)


def test_the_voltage_depends_on_the_battery_level() -> None:
    simulation = SimulatedGateway(
        [nearby_device(n, x=1.0 + n, code="0050", battery=10 * n) for n in range(1, 11)]
    )
    for n in range(1, 11):
        assert simulation.read(device_mac(n), "8100")[0] == 10 * n
    volts = [int.from_bytes(simulation.read(device_mac(n), "8103"), "big") for n in range(1, 11)]
    assert volts == sorted(volts)
    assert 2000 < volts[0] < volts[-1] == 3000


def test_a_read_returns_the_reported_value() -> None:
    simulation = generated_gateway(10, mode=ReportMode.RAW)
    reports = simulation.advance(MINUTE)
    for each in reports:
        is_provisioned = simulation.device(each.mac).access is None
        if (
            each.kind is Kind.PROPERTY
            and is_provisioned
            and each.identifier in simulation.device(each.mac).product.default_values
        ):
            assert simulation.read(each.mac, each.identifier) == each.raw
