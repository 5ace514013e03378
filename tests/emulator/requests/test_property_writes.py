"""Writes of properties: the value is checked, stored, reported, and takes effect."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.emulator.simulation.products import PRODUCTS_BY_CODE, DeviceMode
from meshfleet.emulator.simulation.site import SitePosition
from meshfleet.protocol.codes import Kind, Operation, Status
from meshfleet.protocol.ids import Identifier
from tests.emulator.simulated_gateway import (
    DAY,
    EXTENDER,
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

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac


def find_reports(simulation: SimulatedGateway, since: int, identifier: str) -> list[ObservedReport]:
    return select_reports(
        decode_reports(simulation.gateway, simulation.published[since:]),
        device_mac(1),
        Kind.PROPERTY,
        identifier,
    )


@each_row(
    ("code", "identifier", "raw"),
    [
        ("000F", "9800", "01"),
        ("000F", "9801", "01"),
        ("000F", "9802", "fc"),
        ("000F", "9803", "0064"),
        ("000F", "9803", "1f40"),
        ("000F", "9804", "001401"),
        ("000F", "9807", "2800ff"),
        ("000F", "9808", "ffff"),
        ("000F", "9810", "0102030405ff"),
        ("0018", "8150", "05"),
        ("0018", "8204", "0001"),
        ("0005", "8806", "1000"),
        ("0040", "8210", "00"),
        ("0040", "9802", "08"),
    ],
)
def test_a_valid_value_is_stored_reported_and_read(code: str, identifier: str, raw: str) -> None:
    simulation = SimulatedGateway([nearby_device(1, code=code)])
    simulation.advance(MINUTE)
    since = len(simulation.published)
    assert simulation.write(device_mac(1), identifier, raw.upper()) == Status.OK
    assert [each.raw.hex() for each in find_reports(simulation, since, identifier)] == [raw]
    assert simulation.read(device_mac(1), identifier).hex() == raw


@each_row(
    ("code", "identifier", "raw"),
    [
        ("000F", "9800", "02"),
        ("000F", "9800", "0100"),
        ("000F", "9800", ""),
        ("000F", "9802", "d8"),
        ("000F", "9802", "05"),
        ("0018", "9802", "e2"),
        ("0018", "9802", "08"),
        ("0040", "9802", "01"),
        ("000F", "9803", "0000"),
        ("000F", "9803", "0065"),
        ("000F", "9803", "1fa4"),
        ("000F", "9804", "001301"),
        ("000F", "9804", "280101"),
        ("000F", "9804", "00c800"),
        ("000F", "9804", "00c8"),
        ("000F", "9808", "003c00"),
        ("0018", "8150", "0001"),
        ("0018", "8204", "3c"),
        ("0005", "8806", "1001"),
        ("0040", "8210", "13"),
        ("0040", "8210", "0012"),
        ("0005", "8110", "05"),
        ("0005", "8110", ""),
    ],
)
def test_an_invalid_value_is_rejected_and_changes_nothing(code: str, identifier: str, raw: str) -> None:
    simulation = SimulatedGateway([nearby_device(1, code=code)])
    simulation.advance(MINUTE)
    before, since = simulation.read(device_mac(1), identifier), len(simulation.published)
    assert simulation.write(device_mac(1), identifier, raw) == Status.INVALID_VALUE
    assert simulation.read(device_mac(1), identifier) == before
    assert find_reports(simulation, since, identifier) == []


@each_row("code", [code for code in PRODUCTS_BY_CODE if code != "2011"])
def test_a_device_accepts_the_power_steps_of_its_chip_and_no_others(code: str) -> None:
    product, accepted = PRODUCTS_BY_CODE[code], set()
    for power in range(-45, 12):
        if power != 4:  # the default
            simulation = SimulatedGateway([nearby_device(1, x=0.5, code=code)])
            simulation.send_write(device_mac(1), "9802", f"{power & 0xFF:02x}")
            simulation.advance(8.0)  # at low power the response may be lost
            new_value = simulation.device(device_mac(1)).value(Identifier("9802"))
            accepted |= {power} if new_value == (power & 0xFF).to_bytes() else set()
    assert accepted == set(product.chip.value) - {4}


@each_row("power", [-20, -8, 0, 8])
def test_the_rssi_of_a_device_changes_by_as_much_as_its_power(power: int) -> None:
    default_simulation, changed_simulation = (
        SimulatedGateway([nearby_device(1, code=EXTENDER)]) for _ in range(2)
    )
    assert changed_simulation.write(device_mac(1), "9802", f"{power & 0xFF:02x}") == Status.OK
    levels = [
        fmean(
            each.report.rssi
            for each in select_reports(each_simulation.advance(6 * HOUR), device_mac(1), Kind.RSSI)
        )
        for each_simulation in (default_simulation, changed_simulation)
    ]
    assert levels[1] - levels[0] == pytest.approx(power - 4, abs=0.3)


def count_children(simulation: SimulatedGateway, mac: Mac) -> int:
    parent = simulation.device(mac).node
    return sum(each.node.parent is parent for each in simulation.devices)


def test_an_extender_has_at_most_the_written_number_of_children() -> None:
    leaves = [nearby_device(n, position=SitePosition(1, 0.1 * n, 0.0)) for n in range(3, 11)]
    extenders = [nearby_device(n, code=EXTENDER, position=SitePosition(1, 0.2 * n, 0.5)) for n in (1, 2)]
    simulation = SimulatedGateway([*extenders, *leaves])
    simulation.advance(MINUTE)
    fullest = max((device_mac(1), device_mac(2)), key=lambda each: count_children(simulation, each))
    before = count_children(simulation, fullest)
    assert before > 2
    assert simulation.write(fullest, "8210", "02") == Status.OK
    simulation.advance(10 * MINUTE)
    assert count_children(simulation, fullest) <= 2
    assert all(each.node.depth > 0 for each in simulation.devices if each.mac != simulation.mac)
    assert simulation.device(fullest).node.child_count == count_children(simulation, fullest)


def test_children_return_when_the_capacity_of_an_extender_is_restored() -> None:
    simulation = SimulatedGateway(
        [
            nearby_device(1, code=EXTENDER, position=SitePosition(1, 1.0, 0.0)),
            nearby_device(2, position=SitePosition(2, 1.0, 0.0)),
        ]
    )
    simulation.advance(MINUTE)
    assert count_children(simulation, device_mac(1)) == 1
    assert simulation.write(device_mac(1), "8210", "00") == Status.OK
    simulation.advance(10 * MINUTE)
    assert (count_children(simulation, device_mac(1)), simulation.device(device_mac(2)).node.depth) == (0, -1)
    assert simulation.write(device_mac(1), "8210", "12") == Status.OK
    simulation.advance(2 * MINUTE)
    assert (count_children(simulation, device_mac(1)), simulation.device(device_mac(2)).node.depth) == (1, 2)


def measure_response_times(simulation: SimulatedGateway) -> list[Any]:
    times = []
    for _ in range(40):
        response: Any = simulation.request(Operation.READ, device_mac(1), "9802")
        assert (response.status, response.origin) == (Status.OK, 1)
        times.append(response.response_time)
        simulation.advance(3.0)
    return times


@pytest.mark.rule("gateway-20", "gateway-27")
@each_row(("code", "identifier", "is_asleep"), [("0011-04", "9804", False), ("000F", "9807", True)])
def test_the_advertisement_interval_determines_the_response_time_of_an_unconnected_device(
    code: str, identifier: str, *, is_asleep: bool
) -> None:
    simulation = SimulatedGateway([nearby_device(1, code=code)])
    # One device never sleeps while the other does.
    simulation.advance(10.0)
    assert simulation.write(device_mac(1), identifier, "001401") == Status.OK
    if is_asleep:
        while simulation.device(device_mac(1)).is_moving or not simulation.device(device_mac(1)).is_asleep(
            simulation.now
        ):
            simulation.advance(10.0)
    short_times = measure_response_times(simulation)[:10]
    assert simulation.write(device_mac(1), identifier, "1f4001") == Status.OK
    long_times = measure_response_times(simulation)
    assert max(short_times) < 300
    assert 1000 < fmean(long_times) < 6000
    assert max(long_times) < 8500


def test_response_times_are_in_wall_clock_time() -> None:
    simulation = SimulatedGateway([nearby_device(1, code="0011-04")], speed=10.0)
    simulation.write(device_mac(1), "9804", "1f4001")
    assert 100 < fmean(measure_response_times(simulation)) < 600


def test_motion_lasts_at_least_as_long_as_the_motion_timeout() -> None:
    simulation = SimulatedGateway([nearby_device(1)])
    assert simulation.write(device_mac(1), "8204", "0708") == Status.OK
    events = select_reports(simulation.advance(3 * DAY), device_mac(1), Kind.EVENT, "8810")
    durations = [b.moment - a.moment for a, b in pairwise(events) if a.raw[0]]
    assert len(durations) > 20
    assert min(durations[1:]) >= 1800


def test_a_text_message_is_unread_until_it_is_read() -> None:
    simulation = SimulatedGateway([nearby_device(1, code="000F")])
    simulation.advance(MINUTE)
    assert simulation.read(device_mac(1), "9821") == b"\0"
    since = len(simulation.published)
    assert simulation.write(device_mac(1), "9820", "Grüße".encode().hex()) == Status.OK
    assert [each.raw for each in find_reports(simulation, since, "9821")] == [b"\1"]
    assert simulation.read(device_mac(1), "9821") == b"\1"
    since = len(simulation.published)
    simulation.advance(HOUR)
    values = [each.raw for each in find_reports(simulation, since, "9821")]
    assert values[-1] == b"\0"
    assert values == sorted(values, reverse=True)


@each_row("raw", ["", "41" * 201])
def test_an_empty_or_too_long_text_message_is_rejected(raw: str) -> None:
    simulation = SimulatedGateway([nearby_device(1, code="000F")])
    assert simulation.write(device_mac(1), "9820", raw) == Status.INVALID_VALUE
    assert simulation.read(device_mac(1), "9821") == b"\0"


@each_row(
    ("code", "identifier", "status"),
    [
        ("0018", "8100", Status.ACCESS_NOT_ALLOWED),
        ("0018", "8810", Status.ACCESS_NOT_ALLOWED),
        ("000F", "9821", Status.ACCESS_NOT_ALLOWED),
        ("0018", "9800", Status.UNKNOWN_IDENTIFIER),
        ("0018", "9820", Status.UNKNOWN_IDENTIFIER),
        ("0018", "8111", Status.NOT_SUPPORTED),
    ],
)
def test_a_write_that_the_product_does_not_allow_is_rejected(code: str, identifier: str, status: int) -> None:
    simulation = SimulatedGateway([nearby_device(1, code=code)])
    assert simulation.write(device_mac(1), identifier, "00") == status


def test_the_last_of_two_writes_wins_whatever_its_priority() -> None:
    simulation = generated_gateway(10)
    target = next(
        each
        for each in simulation.devices
        if each.mode is DeviceMode.CONNECTED and each.mac != simulation.mac
    )
    simulation.send_write(target.mac, "9802", "00")
    simulation.send_write(target.mac, "9802", "fc", priority=0)
    simulation.advance(5.0)
    assert simulation.read(target.mac, "9802") == b"\xfc"
    assert target.node.tx_gain == -8.0


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.part("fuzz")) for seed in range(1, 20))]
)
def test_no_written_value_stops_a_gateway(seed: int) -> None:
    random = Random(seed)  # noqa: S311 # not for security
    simulation = generated_gateway(12, seed)
    for _ in range(400):
        target = random.choice(simulation.devices)
        identifier = random.choice(sorted(target.product.identifiers))
        raw = bytes(random.choice((0, 1, 2, 3, 4, 255)) for _ in range(random.choice((0, 1, 2, 3, 7, 9, 12))))
        access = {"accessType": target.access} if target.access else {}
        simulation.send_write(target.mac, identifier, raw.hex(), **access)
        simulation.advance(3.0 * random.random())
    simulation.advance(HOUR)
    assert simulation.request(Operation.APIVERSION, simulation.mac).status == Status.OK
    assert simulation.scheduled_count < 100
    assert not any(each.is_offline or each.is_reporting for each in simulation.devices)
