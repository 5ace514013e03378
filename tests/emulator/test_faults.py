"""Trouble on request."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec import UNSET

from meshfleet.emulator import Faults
from meshfleet.emulator import ReportMode as Writing
from meshfleet.emulator.context import CloseConnection, OpenConnection
from meshfleet.emulator.device_behavior import REBOOT_SECONDS
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.errors.protocol import WireError
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
def test_without_a_word_there_is_no_trouble() -> None:
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


def test_several_faults_come_together_and_the_last_word_counts() -> None:
    faults = Faults.parse("loss=0.1", "delay=2.5", "loss=0.2", "crash=86400")
    assert faults == Faults(loss=0.2, delay=2.5, crash=86_400.0)


@pytest.mark.rule("gateway-39")
@each_row("name", NAMES)
@each_row("value", ["", "much", "-0.1", "nan", "inf", "1e9", "0,5"])
def test_a_value_that_is_none_is_refused_with_its_name(name: str, value: str) -> None:
    with pytest.raises(WireError) as caught:
        Faults.parse(f"{name}={value}")
    assert name in str(caught.value)
    assert value in str(caught.value)


@each_row("name", FRACTIONS)
def test_a_fraction_is_at_most_one(name: str) -> None:
    with pytest.raises(WireError, match="fraction from 0 to 1"):
        Faults.parse(f"{name}=1.01")


@each_row("text", ["", "=1", "lost=1", "LOSS=1", "quoted_seq=1", "loss:1", " loss=1"])
def test_an_unknown_fault_is_refused_and_the_known_ones_are_told(text: str) -> None:
    with pytest.raises(WireError) as caught:
        Faults.parse(text)
    assert all(name in str(caught.value) for name in NAMES)


def test_a_fault_without_a_value_is_refused() -> None:
    with pytest.raises(WireError, match="loss"):
        Faults.parse("loss")


@pytest.mark.rule("gateway-40")
@each_row(("fraction", "least", "most"), [(0.0, 0, 0), (0.3, 20, 40), (1.0, 100, 100)])
def test_a_fraction_of_the_devices_is_silent(fraction: float, least: int, most: int) -> None:
    world = generated_gateway(100, faults=Faults(silent=fraction))
    assert least <= sum(each.is_silent for each in world.devices) <= most
    assert not world.device(world.mac).is_silent


@pytest.mark.rule("gateway-28", "gateway-40")
@each_row(("code", "origin"), [("0018", 32), ("0060", 16)])
def test_a_silent_device_reports_and_does_not_answer(code: str, origin: int) -> None:
    world = SimulatedGateway([nearby_device(1, code=code)], faults=Faults(silent=1.0))
    asked = world.now
    response = world.request(Operation.READ, device_mac(1), "8000")
    assert (response.status, response.origin) == (Status.TIMEOUT, origin)
    assert world.now - asked == pytest.approx(10.0)
    assert len(select_reports(world.advance(HOUR), device_mac(1), Kind.HEARTBEAT)) >= 59
    assert world.request(Operation.READ, world.mac, "8000").status == Status.OK


def test_a_silent_device_does_nothing_that_it_is_told() -> None:
    world = SimulatedGateway(
        [nearby_device(1), nearby_device(2, x=3.0, code="0060", mode=DeviceMode.STORAGE)],
        faults=Faults(silent=1.0),
    )
    for target, identifier, raw in (
        (device_mac(1), "9802", "00"),
        (device_mac(1), "8300", ""),
        (device_mac(2), "8110", "04"),
    ):
        assert world.write(target, identifier, raw) == Status.TIMEOUT
    world.advance(30.0)
    assert world.device(device_mac(1)).value(Identifier("9802")) == b"\x04"
    assert world.device(device_mac(1)).booted_at <= 0
    assert world.device(device_mac(2)).mode is DeviceMode.STORAGE


def falls(world: SimulatedGateway) -> list[float]:
    return [t for t, chore in world.actions if isinstance(chore, CloseConnection)]


@pytest.mark.rule("gateway-38", "gateway-39", "gateway-42")
@each_row("speed", [1.0, 10.0, 0.5])
@each_row("seconds", [1.0, 30.0, 600.0])
def test_a_gateway_crashes_again_and_again_by_the_clock_on_the_wall(speed: float, seconds: float) -> None:
    world = SimulatedGateway([nearby_device(1)], speed=speed, faults=Faults(crash=seconds))
    world.advance(10 * (seconds * speed + REBOOT_SECONDS))
    down = falls(world)
    assert 8 <= len(down) <= 20
    # The time of the restart itself may come to it.
    for gap in [b - a for a, b in pairwise(down)]:
        assert seconds * speed - 1e-6 <= gap <= seconds * speed + REBOOT_SECONDS + 1e-6
    assert [type(chore) for _, chore in world.actions[:4]] == [
        CloseConnection,
        OpenConnection,
        CloseConnection,
        OpenConnection,
    ]


@pytest.mark.rule("report-11")
def test_the_event_of_a_watchdog_has_no_value_in_decoded_mode_either() -> None:
    world = SimulatedGateway([nearby_device(1)], faults=Faults(crash=100.0), mode=Writing.DECODED)
    first = select_reports(world.advance(5 * MINUTE), world.mac, Kind.EVENT, "8113")[0]
    assert isinstance(first.report, reports.EventDecoded)
    assert (first.report.value, first.report.ext) == (UNSET, UNSET)


def test_a_gateway_tells_that_a_watchdog_has_reset_it() -> None:
    world = SimulatedGateway([nearby_device(1)], faults=Faults(crash=100.0))
    told = world.advance(5 * MINUTE)
    assert falls(world)
    assert select_reports(told, world.mac, Kind.EVENT, "8113")
    causes = [each.raw for each in select_reports(told, world.mac, Kind.PROPERTY, "8102")]
    assert (causes[0], causes[-1]) == (b"\0", b"\x02")


@each_row("faults", [Faults(crash=20.0), Faults(crash=20.0, delay=3.0, reorder=0.5)])
def test_nothing_is_published_while_the_gateway_is_down(faults: Faults) -> None:
    world = generated_gateway(20, faults=faults)
    world.advance(10 * MINUTE)
    downs = falls(world)
    ups = [t for t, chore in world.actions if isinstance(chore, OpenConnection)]
    spans = list(zip(downs, ups, strict=False))
    assert len(spans) > 10
    assert [t for t, _ in world.published if any(down < t < up for down, up in spans)] == []


def test_samples_are_kept_over_crashes() -> None:
    world = SimulatedGateway([nearby_device(1)], faults=Faults(crash=30.0))
    world.advance(HOUR)
    assert len(world.device(device_mac(1)).sample_buffer(Kind.MEASUREMENT, Identifier("8803"))) >= 58


@pytest.mark.rule("gateway-41")
def test_trouble_repeats_with_the_seed() -> None:
    faults = Faults.parse("loss=0.2", "duplicate=0.2", "reorder=0.3", "quoted-seq=0.3", "broken-json=0.1")
    one, same, other = (
        generated_gateway(10, seed, faults=faults).advance_in_one_step(HOUR) for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_all_trouble_at_once_stops_nobody() -> None:
    faults = Faults.parse(*(f"{name}=0.5" for name in NAMES if name != "crash"), "crash=60")
    world = generated_gateway(20, faults=faults)
    published = []
    for n in range(60):
        world.send(Operation.READ, world.devices[n % 20].mac, "8000")
        published += world.advance_in_one_step(MINUTE)
    readable = 0
    for message in published:
        topic = world.gateway.topics.parse(message.topic)
        if isinstance(topic, ReportTopic):
            try:
                reports.decode_report(topic.kind, message.payload)
            except WireError:
                continue
            readable += 1
    assert 1000 < readable < len(published)
