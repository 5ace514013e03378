"""What a write does: the value is checked, taken, reported, and has its effect."""

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


def reported(world: SimulatedGateway, since: int, identifier: str) -> list[ObservedReport]:
    return select_reports(
        decode_reports(world.gateway, world.published[since:]), device_mac(1), Kind.PROPERTY, identifier
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
def test_a_value_that_fits_is_taken_reported_and_read(code: str, identifier: str, raw: str) -> None:
    world = SimulatedGateway([nearby_device(1, code=code)])
    world.advance(MINUTE)
    since = len(world.published)
    assert world.write(device_mac(1), identifier, raw.upper()) == Status.OK
    assert [each.raw.hex() for each in reported(world, since, identifier)] == [raw]
    assert world.read(device_mac(1), identifier).hex() == raw


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
def test_a_value_that_does_not_fit_is_refused_and_changes_nothing(
    code: str, identifier: str, raw: str
) -> None:
    world = SimulatedGateway([nearby_device(1, code=code)])
    world.advance(MINUTE)
    before, since = world.read(device_mac(1), identifier), len(world.published)
    assert world.write(device_mac(1), identifier, raw) == Status.INVALID_VALUE
    assert world.read(device_mac(1), identifier) == before
    assert reported(world, since, identifier) == []


@each_row("code", [code for code in PRODUCTS_BY_CODE if code != "2011"])
def test_a_device_takes_the_power_steps_of_its_chip_and_no_others(code: str) -> None:
    product, taken = PRODUCTS_BY_CODE[code], set()
    for power in range(-45, 12):
        if power != 4:  # as it is from the first day
            world = SimulatedGateway([nearby_device(1, x=0.5, code=code)])
            world.send_write(device_mac(1), "9802", f"{power & 0xFF:02x}")
            world.advance(8.0)  # a response may not come any more from one that whispers
            new = world.device(device_mac(1)).value(Identifier("9802"))
            taken |= {power} if new == (power & 0xFF).to_bytes() else set()
    assert taken == set(product.chip.value) - {4}


@each_row("power", [-20, -8, 0, 8])
def test_power_changes_how_well_a_device_is_heard_by_as_much(power: int) -> None:
    plain, other = (SimulatedGateway([nearby_device(1, code=EXTENDER)]) for _ in range(2))
    assert other.write(device_mac(1), "9802", f"{power & 0xFF:02x}") == Status.OK
    levels = [
        fmean(each.report.rssi for each in select_reports(w.advance(6 * HOUR), device_mac(1), Kind.RSSI))
        for w in (plain, other)
    ]
    assert levels[1] - levels[0] == pytest.approx(power - 4, abs=0.3)


def children(world: SimulatedGateway, of_whom: Mac) -> int:
    parent = world.device(of_whom).node
    return sum(each.node.parent is parent for each in world.devices)


def test_an_extender_has_as_many_children_as_it_is_told_and_the_others_go_elsewhere() -> None:
    leaves = [nearby_device(n, position=SitePosition(1, 0.1 * n, 0.0)) for n in range(3, 11)]
    extenders = [nearby_device(n, code=EXTENDER, position=SitePosition(1, 0.2 * n, 0.5)) for n in (1, 2)]
    world = SimulatedGateway([*extenders, *leaves])
    world.advance(MINUTE)
    full = max((device_mac(1), device_mac(2)), key=lambda each: children(world, each))
    before = children(world, full)
    assert before > 2
    assert world.write(full, "8210", "02") == Status.OK
    world.advance(10 * MINUTE)
    assert children(world, full) <= 2
    assert all(each.node.depth > 0 for each in world.devices if each.mac != world.mac)
    assert world.device(full).node.child_count == children(world, full)


def test_an_extender_without_children_gets_them_back() -> None:
    world = SimulatedGateway(
        [
            nearby_device(1, code=EXTENDER, position=SitePosition(1, 1.0, 0.0)),
            nearby_device(2, position=SitePosition(2, 1.0, 0.0)),
        ]
    )
    world.advance(MINUTE)
    assert children(world, device_mac(1)) == 1
    assert world.write(device_mac(1), "8210", "00") == Status.OK
    world.advance(10 * MINUTE)
    assert (children(world, device_mac(1)), world.device(device_mac(2)).node.depth) == (0, -1)
    assert world.write(device_mac(1), "8210", "12") == Status.OK
    world.advance(2 * MINUTE)
    assert (children(world, device_mac(1)), world.device(device_mac(2)).node.depth) == (1, 2)


def answer_times(world: SimulatedGateway) -> list[Any]:
    times = []
    for _ in range(40):
        response: Any = world.request(Operation.READ, device_mac(1), "9802")
        assert (response.status, response.origin) == (Status.OK, 1)
        times.append(response.response_time)
        world.advance(3.0)
    return times


@pytest.mark.rule("gateway-20", "gateway-27")
@each_row(("code", "identifier", "sleeps"), [("0011-04", "9804", False), ("000F", "9807", True)])
def test_the_advertisement_interval_decides_how_soon_an_unconnected_device_answers(
    code: str, identifier: str, *, sleeps: bool
) -> None:
    world = SimulatedGateway([nearby_device(1, code=code)])
    # Somebody who never rests never sleeps, and the other way round.
    world.advance(10.0)
    assert world.write(device_mac(1), identifier, "001401") == Status.OK
    if sleeps:
        while world.device(device_mac(1)).is_moving or not world.device(device_mac(1)).is_asleep(world.now):
            world.advance(10.0)
    quick = answer_times(world)[:10]
    assert world.write(device_mac(1), identifier, "1f4001") == Status.OK
    slow = answer_times(world)
    assert max(quick) < 300
    assert 1000 < fmean(slow) < 6000
    assert max(slow) < 8500


def test_response_times_are_those_on_the_wall() -> None:
    fast = SimulatedGateway([nearby_device(1, code="0011-04")], speed=10.0)
    fast.write(device_mac(1), "9804", "1f4001")
    assert 100 < fmean(answer_times(fast)) < 600


def test_the_motion_timeout_is_how_long_motion_lasts_at_least() -> None:
    world = SimulatedGateway([nearby_device(1)])
    assert world.write(device_mac(1), "8204", "0708") == Status.OK
    events = select_reports(world.advance(3 * DAY), device_mac(1), Kind.EVENT, "8810")
    moving = [b.moment - a.moment for a, b in pairwise(events) if a.raw[0]]
    assert len(moving) > 20
    assert min(moving[1:]) >= 1800


def test_a_text_is_unread_until_somebody_reads_it() -> None:
    world = SimulatedGateway([nearby_device(1, code="000F")])
    world.advance(MINUTE)
    assert world.read(device_mac(1), "9821") == b"\0"
    since = len(world.published)
    assert world.write(device_mac(1), "9820", "Grüße".encode().hex()) == Status.OK
    assert [each.raw for each in reported(world, since, "9821")] == [b"\1"]
    assert world.read(device_mac(1), "9821") == b"\1"
    since = len(world.published)
    world.advance(HOUR)
    told = [each.raw for each in reported(world, since, "9821")]
    assert told[-1] == b"\0"
    assert told == sorted(told, reverse=True)


@each_row("raw", ["", "41" * 201])
def test_a_text_that_is_none_or_too_long_is_refused(raw: str) -> None:
    world = SimulatedGateway([nearby_device(1, code="000F")])
    assert world.write(device_mac(1), "9820", raw) == Status.INVALID_VALUE
    assert world.read(device_mac(1), "9821") == b"\0"


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
def test_what_a_device_does_not_have_or_not_allow_is_not_written(
    code: str, identifier: str, status: int
) -> None:
    world = SimulatedGateway([nearby_device(1, code=code)])
    assert world.write(device_mac(1), identifier, "00") == status


def test_a_write_that_is_heard_is_done_also_when_its_response_is_late() -> None:
    world = generated_gateway(10)
    target = next(
        each for each in world.devices if each.mode is DeviceMode.CONNECTED and each.mac != world.mac
    )
    world.send_write(target.mac, "9802", "00")
    world.send_write(target.mac, "9802", "fc", priority=0)
    world.advance(5.0)
    assert world.read(target.mac, "9802") == b"\xfc"
    assert target.node.tx_gain == -8.0


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.part("fuzz")) for seed in range(1, 20))]
)
def test_no_value_whatever_stops_a_gateway_or_makes_it_unreadable(seed: int) -> None:
    chance = Random(seed)  # noqa: S311 # a die, no secret
    world = generated_gateway(12, seed)
    for _ in range(400):
        target = chance.choice(world.devices)
        identifier = chance.choice(sorted(target.product.identifiers))
        raw = bytes(chance.choice((0, 1, 2, 3, 4, 255)) for _ in range(chance.choice((0, 1, 2, 3, 7, 9, 12))))
        access = {"accessType": target.access} if target.access else {}
        world.send_write(target.mac, identifier, raw.hex(), **access)
        world.advance(3.0 * chance.random())
    world.advance(HOUR)
    assert world.request(Operation.APIVERSION, world.mac).status == Status.OK
    assert world.scheduled_count < 100
    assert not any(each.is_offline or each.is_reporting for each in world.devices)
