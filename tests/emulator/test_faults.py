"""Injected faults."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec import UNSET

from meshfleet.emulator import Faults, ReportMode
from meshfleet.emulator.context import CloseConnection, OpenConnection
from meshfleet.emulator.device_behavior import REBOOT_SECONDS
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol import reports
from meshfleet.protocol.codes import Kind, Operation, Status
from meshfleet.protocol.ids import Identifier
from meshfleet.protocol.topics import ReportTopic
from tests.emulator.simulated_gateway import (
    HOUR,
    MINUTE,
    SimulatedGateway,
    generated_gateway,
    nearby_device,
    select_reports,
)
from tests.emulator.simulation.sites import device_mac
from tests.row_tables import each_row

NAMES = [
    "loss",
    "delay",
    "duplicate",
    "reorder",
    "quoted-seq",
    "broken-json",
    "silent",
    "update-fail",
    "crash",
]
FRACTIONS = [each for each in NAMES if each not in {"delay", "crash"}]


@pytest.mark.rule("gateway-38")
def test_there_are_no_faults_by_default() -> None:
    assert Faults.parse() == Faults()
    assert not Faults().affects_messages


@pytest.mark.rule("gateway-38", "gateway-39")
@each_row("name", NAMES)
@each_row("value", [0, 0.3, 1])
def test_every_fault_is_set_by_its_name(name: str, value: float) -> None:
    faults = Faults.parse(f"{name}={value}")
    assert getattr(faults, name.replace("-", "_")) == value
    others = {each: getattr(faults, each.replace("-", "_")) for each in NAMES if each != name}
    assert set(others.values()) == {0.0}


def test_several_faults_are_combined_and_the_last_value_wins() -> None:
    faults = Faults.parse("loss=0.1", "delay=2.5", "loss=0.2", "crash=86400")
    assert faults == Faults(loss=0.2, delay=2.5, crash=86_400.0)


@pytest.mark.rule("gateway-39")
@each_row("name", NAMES)
@each_row("value", ["", "much", "-0.1", "nan", "inf", "1e9", "0,5"])
def test_an_invalid_value_is_rejected_with_the_name_of_its_fault(name: str, value: str) -> None:
    with pytest.raises(MalformedInput) as caught:
        Faults.parse(f"{name}={value}")
    assert name in str(caught.value)
    assert value in str(caught.value)


@each_row("name", FRACTIONS)
def test_a_fraction_is_at_most_one(name: str) -> None:
    with pytest.raises(MalformedInput, match="fraction from 0 to 1"):
        Faults.parse(f"{name}=1.01")


@each_row("text", ["", "=1", "lost=1", "LOSS=1", "quoted_seq=1", "loss:1", " loss=1"])
def test_an_unknown_fault_is_rejected_with_a_list_of_all_faults(text: str) -> None:
    with pytest.raises(MalformedInput) as caught:
        Faults.parse(text)
    assert all(name in str(caught.value) for name in NAMES)


def test_a_fault_without_a_value_is_rejected() -> None:
    with pytest.raises(MalformedInput, match="loss"):
        Faults.parse("loss")


@pytest.mark.rule("gateway-40")
@each_row(("fraction", "minimum", "maximum"), [(0.0, 0, 0), (0.3, 20, 40), (1.0, 100, 100)])
def test_a_fraction_of_the_devices_is_silent(fraction: float, minimum: int, maximum: int) -> None:
    simulation = generated_gateway(100, faults=Faults(silent=fraction))
    assert minimum <= sum(each.is_silent for each in simulation.devices) <= maximum
    assert not simulation.device(simulation.mac).is_silent


@pytest.mark.rule("gateway-28", "gateway-40")
@each_row(("code", "origin"), [("0018", 32), ("0060", 16)])
def test_a_silent_device_reports_and_does_not_respond(code: str, origin: int) -> None:
    simulation = SimulatedGateway([nearby_device(1, code=code)], faults=Faults(silent=1.0))
    started = simulation.now
    response = simulation.request(Operation.READ, device_mac(1), "8000")
    assert (response.status, response.origin) == (Status.TIMEOUT, origin)
    assert simulation.now - started == pytest.approx(10.0)
    assert len(select_reports(simulation.advance(HOUR), device_mac(1), Kind.HEARTBEAT)) >= 59
    assert simulation.request(Operation.READ, simulation.mac, "8000").status == Status.OK


def test_a_silent_device_executes_no_requests() -> None:
    simulation = SimulatedGateway(
        [nearby_device(1), nearby_device(2, x=3.0, code="0060", mode=DeviceMode.STORAGE)],
        faults=Faults(silent=1.0),
    )
    for target, identifier, raw in (
        (device_mac(1), "9802", "00"),
        (device_mac(1), "8300", ""),
        (device_mac(2), "8110", "04"),
    ):
        assert simulation.write(target, identifier, raw) == Status.TIMEOUT
    simulation.advance(30.0)
    assert simulation.device(device_mac(1)).value(Identifier("9802")) == b"\x04"
    assert simulation.device(device_mac(1)).booted_at <= 0
    assert simulation.device(device_mac(2)).mode is DeviceMode.STORAGE


def list_crashes(simulation: SimulatedGateway) -> list[float]:
    return [t for t, action in simulation.actions if isinstance(action, CloseConnection)]


@pytest.mark.rule("gateway-38", "gateway-39", "gateway-42")
@each_row("speed", [1.0, 10.0, 0.5])
@each_row("seconds", [1.0, 30.0, 600.0])
def test_a_gateway_crashes_at_wall_clock_intervals(speed: float, seconds: float) -> None:
    simulation = SimulatedGateway([nearby_device(1)], speed=speed, faults=Faults(crash=seconds))
    simulation.advance(10 * (seconds * speed + REBOOT_SECONDS))
    crash_times = list_crashes(simulation)
    assert 8 <= len(crash_times) <= 20
    # The duration of the restart may be added.
    for interval in [b - a for a, b in pairwise(crash_times)]:
        assert seconds * speed - 1e-6 <= interval <= seconds * speed + REBOOT_SECONDS + 1e-6
    assert [type(action) for _, action in simulation.actions[:4]] == [
        CloseConnection,
        OpenConnection,
        CloseConnection,
        OpenConnection,
    ]


@pytest.mark.rule("report-11")
def test_the_watchdog_event_has_no_value_in_decoded_mode() -> None:
    simulation = SimulatedGateway([nearby_device(1)], faults=Faults(crash=100.0), mode=ReportMode.DECODED)
    first = select_reports(simulation.advance(5 * MINUTE), simulation.mac, Kind.EVENT, "8113")[0]
    assert isinstance(first.report, reports.EventDecoded)
    assert (first.report.value, first.report.ext) == (UNSET, UNSET)


def test_a_gateway_reports_a_reset_by_its_watchdog() -> None:
    simulation = SimulatedGateway([nearby_device(1)], faults=Faults(crash=100.0))
    observed = simulation.advance(5 * MINUTE)
    assert list_crashes(simulation)
    assert select_reports(observed, simulation.mac, Kind.EVENT, "8113")
    causes = [each.raw for each in select_reports(observed, simulation.mac, Kind.PROPERTY, "8102")]
    assert (causes[0], causes[-1]) == (b"\0", b"\x02")


@each_row("faults", [Faults(crash=20.0), Faults(crash=20.0, delay=3.0, reorder=0.5)])
def test_nothing_is_published_while_the_gateway_is_down(faults: Faults) -> None:
    simulation = generated_gateway(20, faults=faults)
    simulation.advance(10 * MINUTE)
    crash_times = list_crashes(simulation)
    restart_times = [t for t, action in simulation.actions if isinstance(action, OpenConnection)]
    downtimes = list(zip(crash_times, restart_times, strict=False))
    assert len(downtimes) > 10
    assert [t for t, _ in simulation.published if any(down < t < up for down, up in downtimes)] == []


def test_samples_survive_crashes() -> None:
    simulation = SimulatedGateway([nearby_device(1)], faults=Faults(crash=30.0))
    simulation.advance(HOUR)
    assert len(simulation.device(device_mac(1)).sample_buffer(Kind.MEASUREMENT, Identifier("8803"))) >= 58


@pytest.mark.rule("gateway-41")
def test_faults_depend_on_the_seed_alone() -> None:
    faults = Faults.parse("loss=0.2", "duplicate=0.2", "reorder=0.3", "quoted-seq=0.3", "broken-json=0.1")
    one, same, other = (
        generated_gateway(10, seed, faults=faults).advance_in_one_step(HOUR) for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_a_gateway_runs_with_all_faults_at_once() -> None:
    faults = Faults.parse(*(f"{name}=0.5" for name in NAMES if name != "crash"), "crash=60")
    simulation = generated_gateway(20, faults=faults)
    published = []
    for n in range(60):
        simulation.send(Operation.READ, simulation.devices[n % 20].mac, "8000")
        published += simulation.advance_in_one_step(MINUTE)
    valid_count = 0
    for message in published:
        topic = simulation.gateway.topics.parse(message.topic)
        if isinstance(topic, ReportTopic):
            try:
                reports.decode_report(topic.kind, message.payload)
            except MalformedInput:
                continue
            valid_count += 1
    assert 1000 < valid_count < len(published)
