"""What devices do on command: restarts, modes, reporting all there is."""

from __future__ import annotations

import pytest

from meshfleet.emulator.context import CloseConnection, OpenConnection
from meshfleet.emulator.simulation.products import PRODUCTS_BY_CODE, DeviceMode
from meshfleet.emulator.simulation.site import SitePosition
from meshfleet.protocol.codes import Kind, Operation, Status
from meshfleet.protocol.ids import Identifier
from tests.emulator.simulated_gateway import (
    EXTENDER,
    HOUR,
    MINUTE,
    ObservedReport,
    SimulatedGateway,
    generated_gateway,
    nearby_device,
    select_reports,
)
from tests.emulator.simulation.sites import device_mac
from tests.row_tables import each_row

SOFT_RESET, FACTORY_RESET, REPORT_ALL, MODE = "8300", "8301", "8302", "8110"
DFU, CONNECTED, STORAGE, UNCONNECTED = (f"{mode:02x}" for mode in (1, 2, 3, 4))
REBOOT = 10.0
"""Seconds within which a device is back."""


def uptime(world: SimulatedGateway, of_whom: str = "") -> int:
    return int.from_bytes(world.read(device_mac(1) if not of_whom else world.mac, "8101"), "big")


@each_row("code", ["0018", "000F", "0040"])
def test_a_soft_reset_restarts_a_device_which_introduces_itself(code: str) -> None:
    world = SimulatedGateway([nearby_device(1, code=code)])
    world.advance(5 * MINUTE)
    assert world.write(device_mac(1), "9802", "00") == Status.OK
    before = world.device(device_mac(1)).seqs[0]
    assert world.write(device_mac(1), SOFT_RESET) == Status.OK
    told = select_reports(world.advance(REBOOT), device_mac(1))
    back = [each for each in told if each.kind is Kind.HEARTBEAT]
    assert back[-1].report.seq == before
    assert {each.identifier for each in told if each.kind is Kind.PROPERTY} == set(
        PRODUCTS_BY_CODE[code].reported_properties
    )
    assert uptime(world) <= REBOOT
    assert world.read(device_mac(1), "8102") == b"\x04"
    assert world.read(device_mac(1), "9802") == b"\0"


def test_nothing_is_heard_of_a_device_while_it_restarts() -> None:
    world = SimulatedGateway([nearby_device(n, x=1.0 + n) for n in range(1, 6)])
    world.advance(HOUR)
    for n in range(1, 6):
        world.send_write(device_mac(n), SOFT_RESET)
    told = world.advance(7.5)
    assert [each for each in told if each.moment > world.now - 7.0 and each.mac != world.mac] == []
    world.advance(3.0)
    assert world.write(device_mac(1), "9802", "00") == Status.OK


def test_a_factory_reset_forgets_what_was_written() -> None:
    world = SimulatedGateway([nearby_device(1, code=EXTENDER)])
    defaults = dict(world.device(device_mac(1)).product.default_values)
    for identifier, raw in (("9802", "00"), ("8210", "03")):
        assert world.write(device_mac(1), identifier, raw) == Status.OK
    node = world.device(device_mac(1)).node
    assert (node.tx_gain, node.capacity) == (-4.0, 3)
    assert world.write(device_mac(1), FACTORY_RESET) == Status.OK
    world.advance(REBOOT)
    assert {each: world.read(device_mac(1), each) for each in defaults} == defaults
    assert (node.tx_gain, node.capacity) == (0.0, 18)
    assert uptime(world) <= REBOOT


def test_the_children_of_an_extender_that_restarts_find_another_one_or_come_back() -> None:
    world = SimulatedGateway(
        [
            nearby_device(1, code=EXTENDER, position=SitePosition(1, 1.0, 0.0)),
            nearby_device(2, code=EXTENDER, position=SitePosition(1, 3.0, 0.0)),
            nearby_device(3, position=SitePosition(2, 1.0, 0.0)),
        ]
    )
    world.advance(MINUTE)
    leaf = world.device(device_mac(3)).node
    assert leaf.parent is not None
    assert world.write(leaf.parent.mac, SOFT_RESET) == Status.OK
    world.advance(1.0)
    assert leaf.depth == -1
    told = select_reports(world.advance(3 * MINUTE), device_mac(3), Kind.HEARTBEAT)
    assert leaf.depth == 2
    assert len(told) >= 2
    assert world.write(device_mac(3), "9802", "00") == Status.OK


def test_a_whole_branch_comes_back_after_its_root_has_restarted() -> None:
    tower = [nearby_device(n, code=EXTENDER, position=SitePosition(n, 1.0, 0.0)) for n in range(1, 5)]
    world = SimulatedGateway([*tower, nearby_device(5, position=SitePosition(5, 1.0, 0.0))])
    world.advance(MINUTE)
    assert world.device(device_mac(5)).node.depth == 5
    assert world.write(device_mac(1), SOFT_RESET) == Status.OK
    world.advance(1.0)
    assert {world.device(device_mac(n)).node.depth for n in range(1, 6)} == {-1}
    told = world.advance(10 * MINUTE)
    assert [world.device(device_mac(n)).node.depth for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert len(select_reports(told, device_mac(5), Kind.HEARTBEAT)) >= 5


def test_a_gateway_that_restarts_goes_down_and_comes_up_and_is_silent_in_between() -> None:
    world = generated_gateway(20)
    world.advance(HOUR)
    kept = {id(each): len(each.sample_buffer(Kind.MEASUREMENT, Identifier("8800"))) for each in world.devices}
    assert world.write(world.mac, SOFT_RESET) == Status.OK
    told = world.advance(5 * MINUTE)
    (down, first), (up, second) = world.actions
    assert isinstance(first, CloseConnection)
    assert isinstance(second, OpenConnection)
    assert 5.0 < up - down < REBOOT
    assert [each for each in told if down < each.moment < up] == []
    assert select_reports(told, world.mac)[-1].moment > up
    for each in world.devices:
        if Identifier("8800") in each.product.measurements:
            assert len(each.sample_buffer(Kind.MEASUREMENT, Identifier("8800"))) > kept[id(each)]
    assert uptime(world, "gateway") < 5 * MINUTE


def test_a_gateway_hears_nothing_while_it_restarts() -> None:
    world = generated_gateway(5)
    assert world.write(world.mac, SOFT_RESET) == Status.OK
    world.advance(1.0)
    assert world.gateway.is_down
    world.send(Operation.APIVERSION, world.mac)
    world.send_write(world.mac, "9802", "00")
    before = len(world.published)
    world.advance(5.0)
    assert len(world.published) == before
    world.advance(10.0)
    assert not [message for _, message in world.published[before:] if "/response/" in message.topic]
    assert world.read(world.mac, "9802") == b"\x04"


@pytest.mark.rule("gateway-35")
@each_row("code", ["0018", "000F", "0040", "0050"])
def test_a_device_reports_all_its_properties_when_asked_and_is_busy_meanwhile(code: str) -> None:
    world = SimulatedGateway([nearby_device(1, code=code)])
    world.advance(5 * MINUTE)
    assert world.write(device_mac(1), REPORT_ALL) == Status.OK
    before = len(world.published)
    assert world.write(device_mac(1), REPORT_ALL) == Status.BUSY
    told = select_reports(world.advance(10.0), device_mac(1), Kind.PROPERTY)
    late = [message.topic for _, message in world.published[before:] if "/property/" in message.topic]
    assert {topic.rsplit("/")[-1] for topic in late} >= set(PRODUCTS_BY_CODE[code].reported_properties[1:])
    assert len(told) <= len(PRODUCTS_BY_CODE[code].reported_properties) + 1
    assert world.write(device_mac(1), REPORT_ALL) == Status.OK


@each_row("pause", [0.0, 0.5, 2.0])
def test_a_device_that_restarts_while_it_reports_is_free_again(pause: float) -> None:
    world = SimulatedGateway([nearby_device(1, code="000F")])
    world.advance(5 * MINUTE)
    assert world.write(device_mac(1), REPORT_ALL) == Status.OK
    world.advance(pause)
    assert world.write(device_mac(1), SOFT_RESET) == Status.OK
    world.advance(REBOOT + 3.0)
    assert world.write(device_mac(1), REPORT_ALL) == Status.OK
    assert (
        len(select_reports(world.advance(10.0), device_mac(1), Kind.PROPERTY))
        >= len(PRODUCTS_BY_CODE["000F"].reported_properties) - 1
    )


def only_storage(told: list[ObservedReport]) -> bool:
    return {(each.kind, each.identifier) for each in told} == {(Kind.EVENT, "8112")}


@pytest.mark.rule("gateway-32", "gateway-33")
@each_row("code", [code for code in PRODUCTS_BY_CODE if code != "2011"])
def test_in_storage_mode_a_device_makes_no_report_but_the_event_of_the_gateway(code: str) -> None:
    world = SimulatedGateway([nearby_device(1, code=code)])
    world.advance(5 * MINUTE)
    assert world.write(device_mac(1), MODE, STORAGE) == Status.OK
    assert [
        each.raw.hex() for each in select_reports(world.advance(1.0), device_mac(1), Kind.PROPERTY, MODE)
    ] == [STORAGE]
    told = select_reports(world.advance(3 * HOUR), device_mac(1))
    assert only_storage(told)
    assert len(told) == 180
    product = PRODUCTS_BY_CODE[code]
    assert {each.raw.hex() for each in told} == {f"{product.model.lower()}{product.variant:02x}"}
    assert world.request(Operation.READ, device_mac(1), "8000").status == Status.TIMEOUT
    assert world.write(device_mac(1), MODE, f"{product.default_mode:02x}") == Status.OK
    world.advance(MINUTE)
    assert len(select_reports(world.advance(10 * MINUTE), device_mac(1), Kind.HEARTBEAT)) >= 9


@pytest.mark.rule("gateway-33")
def test_a_device_that_goes_into_storage_while_it_reports_is_silent() -> None:
    world = SimulatedGateway([nearby_device(1, code="0005")])
    world.advance(5 * MINUTE)
    world.send_write(device_mac(1), REPORT_ALL)
    assert world.write(device_mac(1), MODE, STORAGE) == Status.OK
    world.advance(0.2)
    assert [
        each for each in select_reports(world.advance(30.0), device_mac(1)) if each.identifier != "8112"
    ] == []


@pytest.mark.rule("gateway-33")
def test_a_device_in_storage_raises_no_alarm_and_notices_no_motion() -> None:
    world = SimulatedGateway(
        [
            nearby_device(1, code="000F", mode=DeviceMode.STORAGE),
            nearby_device(2, x=3.0, mode=DeviceMode.STORAGE),
        ]
    )
    assert only_storage([each for each in world.advance(12 * HOUR) if each.mac != world.mac])


@each_row("code", [code for code in PRODUCTS_BY_CODE if code != "2011"])
def test_a_device_has_the_modes_of_its_product_and_no_others(code: str) -> None:
    for mode in DeviceMode:
        world = SimulatedGateway([nearby_device(1, x=1.0, code=code)])
        wanted = Status.OK if mode in PRODUCTS_BY_CODE[code].modes else Status.NOT_SUPPORTED
        assert world.write(device_mac(1), MODE, f"{mode:02x}") == wanted
        world.advance(1.0)
        assert (world.device(device_mac(1)).mode is mode) == (
            wanted is Status.OK or mode is PRODUCTS_BY_CODE[code].default_mode
        )


def test_a_device_that_leaves_the_mesh_is_reached_through_an_extender_and_comes_back() -> None:
    world = SimulatedGateway([nearby_device(1)])
    assert world.request(Operation.READ, device_mac(1), "8000").origin == 0
    assert world.write(device_mac(1), MODE, UNCONNECTED) == Status.OK
    world.advance(1.0)
    assert world.device(device_mac(1)).node.parent is None
    assert world.request(Operation.READ, device_mac(1), "8000").origin == 1
    assert world.write(device_mac(1), MODE, CONNECTED) == Status.OK
    world.advance(1.0)
    assert world.request(Operation.READ, device_mac(1), "8000").origin == 0


@pytest.mark.rule("gateway-32", "report-43")
def test_in_dfu_mode_a_device_advertises_and_makes_no_other_report() -> None:
    world = SimulatedGateway([nearby_device(1)])
    world.advance(MINUTE)
    assert world.write(device_mac(1), MODE, DFU) == Status.OK
    world.advance(1.0)
    told = select_reports(world.advance(5 * MINUTE), device_mac(1))
    assert {each.kind for each in told} == {Kind.DFU}
    assert len(told) == 30
    assert {each.report.parent for each in told} == {world.mac}
    world.advance(6 * MINUTE)
    assert len(select_reports(world.advance(10 * MINUTE), device_mac(1), Kind.HEARTBEAT)) == 10, (
        "nobody came to update it"
    )


@pytest.mark.rule("gateway-32")
@each_row("mode", [DFU, STORAGE])
def test_the_gateway_switches_the_mode_of_a_legacy_device(mode: str) -> None:
    world = SimulatedGateway([nearby_device(1, code="000F")])
    assert world.write(world.mac, "8111", device_mac(1) + mode) == Status.OK
    told = select_reports(world.advance(1.0), device_mac(1), Kind.PROPERTY, MODE)
    assert [each.raw.hex() for each in told] == [mode]
    assert f"{world.device(device_mac(1)).mode:02x}" == mode
    assert world.write(world.mac, "8111", device_mac(1) + UNCONNECTED) == Status.OK
    world.advance(1.0)
    assert world.write(device_mac(1), "9802", "00") == Status.OK


@each_row(
    ("raw", "status"),
    [
        (device_mac(9) + DFU, Status.UNREACHABLE),
        (device_mac(1) + CONNECTED, Status.NOT_SUPPORTED),
        (device_mac(1) + "05", Status.NOT_SUPPORTED),
        (device_mac(1) + "09", Status.INVALID_VALUE),
        (device_mac(1), Status.INVALID_VALUE),
        ("", Status.INVALID_VALUE),
    ],
)
def test_a_switch_of_mode_that_is_not_possible_is_refused(raw: str, status: Status) -> None:
    world = SimulatedGateway([nearby_device(1, code="000F")])
    assert world.write(world.mac, "8111", raw) == status
    assert world.device(device_mac(1)).mode is DeviceMode.UNCONNECTED


@each_row("mode", [DFU, STORAGE, UNCONNECTED])
def test_a_device_told_to_restart_and_to_change_its_mode_does_both_in_the_end(mode: str) -> None:
    world = SimulatedGateway([nearby_device(1)])
    world.advance(MINUTE)
    world.send_write(device_mac(1), SOFT_RESET)
    world.send_write(device_mac(1), MODE, mode)
    world.advance(2 * MINUTE)
    told = select_reports(world.advance(2 * MINUTE), device_mac(1))
    sign = {DFU: Kind.DFU, STORAGE: Kind.EVENT, UNCONNECTED: Kind.HEARTBEAT}
    # Either it took the mode, or it restarted first and never heard of it; it must not be lost.
    assert sign[mode] in {each.kind for each in told} or Kind.HEARTBEAT in {each.kind for each in told}


def test_a_device_that_nobody_updates_leaves_dfu_mode_also_when_an_update_failed_before() -> None:
    world = SimulatedGateway([nearby_device(1)])
    # An image for another model: the update fails, and the device remembers that.
    assert world.write(device_mac(1), "8121", "0005" + "09000000" + "00") == Status.OK
    assert world.write(device_mac(1), MODE, DFU) == Status.OK
    world.advance(15 * MINUTE)
    assert len(select_reports(world.advance(10 * MINUTE), device_mac(1), Kind.HEARTBEAT)) == 10
