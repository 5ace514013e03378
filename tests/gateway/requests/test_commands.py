"""What devices do on command: restarts, modes, reporting all there is."""

from __future__ import annotations

import pytest

from meshfleet.gateway.core import ComeUp, GoDown
from meshfleet.gateway.world.places import Place
from meshfleet.gateway.world.products import BY_CODE, Mode
from meshfleet.wire.codes import Kind, Operation, Status
from meshfleet.wire.ids import Identifier
from tests.gateway.living import EXTENDER, HOUR, MINUTE, Told, World, device, of, town
from tests.gateway.world.trees import mac
from tests.tables import each_row

SOFT_RESET, FACTORY_RESET, REPORT_ALL, MODE = "8300", "8301", "8302", "8110"
DFU, CONNECTED, STORAGE, UNCONNECTED = (f"{mode:02x}" for mode in (1, 2, 3, 4))
REBOOT = 10.0
"""Seconds within which a device is back."""


def uptime(world: World, of_whom: str = "") -> int:
    return int.from_bytes(world.read(mac(1) if not of_whom else world.mac, "8101"), "big")


@each_row("code", ["0018", "000F", "0040"])
def test_a_soft_reset_restarts_a_device_which_introduces_itself(code: str) -> None:
    world = World([device(1, code=code)])
    world.live(5 * MINUTE)
    assert world.write(mac(1), "9802", "00") == Status.OK
    before = world.device(mac(1)).seqs[0]
    assert world.write(mac(1), SOFT_RESET) == Status.OK
    told = of(world.live(REBOOT), mac(1))
    back = [each for each in told if each.kind is Kind.HEARTBEAT]
    assert back[-1].report.seq == before
    assert {each.identifier for each in told if each.kind is Kind.PROPERTY} == set(BY_CODE[code].reported)
    assert uptime(world) <= REBOOT
    assert world.read(mac(1), "8102") == b"\x04"
    assert world.read(mac(1), "9802") == b"\0"


def test_nothing_is_heard_of_a_device_while_it_restarts() -> None:
    world = World([device(n, x=1.0 + n) for n in range(1, 6)])
    world.live(HOUR)
    for n in range(1, 6):
        world.send_write(mac(n), SOFT_RESET)
    told = world.live(7.5)
    assert [each for each in told if each.moment > world.now - 7.0 and each.mac != world.mac] == []
    world.live(3.0)
    assert world.write(mac(1), "9802", "00") == Status.OK


def test_a_factory_reset_forgets_what_was_written() -> None:
    world = World([device(1, code=EXTENDER)])
    defaults = dict(world.device(mac(1)).product.values)
    for identifier, raw in (("9802", "00"), ("8210", "03")):
        assert world.write(mac(1), identifier, raw) == Status.OK
    node = world.device(mac(1)).node
    assert (node.gain, node.capacity) == (-4.0, 3)
    assert world.write(mac(1), FACTORY_RESET) == Status.OK
    world.live(REBOOT)
    assert {each: world.read(mac(1), each) for each in defaults} == defaults
    assert (node.gain, node.capacity) == (0.0, 18)
    assert uptime(world) <= REBOOT


def test_the_children_of_an_extender_that_restarts_find_another_one_or_come_back() -> None:
    world = World(
        [
            device(1, code=EXTENDER, place=Place(1, 1.0, 0.0)),
            device(2, code=EXTENDER, place=Place(1, 3.0, 0.0)),
            device(3, place=Place(2, 1.0, 0.0)),
        ]
    )
    world.live(MINUTE)
    leaf = world.device(mac(3)).node
    assert leaf.parent is not None
    assert world.write(leaf.parent.mac, SOFT_RESET) == Status.OK
    world.live(1.0)
    assert leaf.depth == -1
    told = of(world.live(3 * MINUTE), mac(3), Kind.HEARTBEAT)
    assert leaf.depth == 2
    assert len(told) >= 2
    assert world.write(mac(3), "9802", "00") == Status.OK


def test_a_whole_branch_comes_back_after_its_root_has_restarted() -> None:
    tower = [device(n, code=EXTENDER, place=Place(n, 1.0, 0.0)) for n in range(1, 5)]
    world = World([*tower, device(5, place=Place(5, 1.0, 0.0))])
    world.live(MINUTE)
    assert world.device(mac(5)).node.depth == 5
    assert world.write(mac(1), SOFT_RESET) == Status.OK
    world.live(1.0)
    assert {world.device(mac(n)).node.depth for n in range(1, 6)} == {-1}
    told = world.live(10 * MINUTE)
    assert [world.device(mac(n)).node.depth for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert len(of(told, mac(5), Kind.HEARTBEAT)) >= 5


def test_a_gateway_that_restarts_goes_down_and_comes_up_and_is_silent_in_between() -> None:
    world = town(20)
    world.live(HOUR)
    kept = {id(each): len(each.samples_of(Kind.MEASUREMENT, Identifier("8800"))) for each in world.devices}
    assert world.write(world.mac, SOFT_RESET) == Status.OK
    told = world.live(5 * MINUTE)
    (down, first), (up, second) = world.chores
    assert isinstance(first, GoDown)
    assert isinstance(second, ComeUp)
    assert 5.0 < up - down < REBOOT
    assert [each for each in told if down < each.moment < up] == []
    assert of(told, world.mac)[-1].moment > up
    for each in world.devices:
        if Identifier("8800") in each.product.measured:
            assert len(each.samples_of(Kind.MEASUREMENT, Identifier("8800"))) > kept[id(each)]
    assert uptime(world, "gateway") < 5 * MINUTE


def test_a_gateway_hears_nothing_while_it_restarts() -> None:
    world = town(5)
    assert world.write(world.mac, SOFT_RESET) == Status.OK
    world.live(1.0)
    assert world.gateway.is_down
    world.send(Operation.APIVERSION, world.mac)
    world.send_write(world.mac, "9802", "00")
    before = len(world.published)
    world.live(5.0)
    assert len(world.published) == before
    world.live(10.0)
    assert not [message for _, message in world.published[before:] if "/response/" in message.topic]
    assert world.read(world.mac, "9802") == b"\x04"


@pytest.mark.rule("gateway-35")
@each_row("code", ["0018", "000F", "0040", "0050"])
def test_a_device_reports_all_its_properties_when_asked_and_is_busy_meanwhile(code: str) -> None:
    world = World([device(1, code=code)])
    world.live(5 * MINUTE)
    assert world.write(mac(1), REPORT_ALL) == Status.OK
    before = len(world.published)
    assert world.write(mac(1), REPORT_ALL) == Status.BUSY
    told = of(world.live(10.0), mac(1), Kind.PROPERTY)
    late = [message.topic for _, message in world.published[before:] if "/property/" in message.topic]
    assert {topic.rsplit("/")[-1] for topic in late} >= set(BY_CODE[code].reported[1:])
    assert len(told) <= len(BY_CODE[code].reported) + 1
    assert world.write(mac(1), REPORT_ALL) == Status.OK


@each_row("pause", [0.0, 0.5, 2.0])
def test_a_device_that_restarts_while_it_reports_is_free_again(pause: float) -> None:
    world = World([device(1, code="000F")])
    world.live(5 * MINUTE)
    assert world.write(mac(1), REPORT_ALL) == Status.OK
    world.live(pause)
    assert world.write(mac(1), SOFT_RESET) == Status.OK
    world.live(REBOOT + 3.0)
    assert world.write(mac(1), REPORT_ALL) == Status.OK
    assert len(of(world.live(10.0), mac(1), Kind.PROPERTY)) >= len(BY_CODE["000F"].reported) - 1


def only_storage(told: list[Told]) -> bool:
    return {(each.kind, each.identifier) for each in told} == {(Kind.EVENT, "8112")}


@pytest.mark.rule("gateway-32", "gateway-33")
@each_row("code", [code for code in BY_CODE if code != "2011"])
def test_in_storage_mode_a_device_makes_no_report_but_the_event_of_the_gateway(code: str) -> None:
    world = World([device(1, code=code)])
    world.live(5 * MINUTE)
    assert world.write(mac(1), MODE, STORAGE) == Status.OK
    assert [each.raw.hex() for each in of(world.live(1.0), mac(1), Kind.PROPERTY, MODE)] == [STORAGE]
    told = of(world.live(3 * HOUR), mac(1))
    assert only_storage(told)
    assert len(told) == 180
    product = BY_CODE[code]
    assert {each.raw.hex() for each in told} == {f"{product.model.lower()}{product.variant:02x}"}
    assert world.ask(Operation.READ, mac(1), "8000").status == Status.TIMEOUT
    assert world.write(mac(1), MODE, f"{product.usual:02x}") == Status.OK
    world.live(MINUTE)
    assert len(of(world.live(10 * MINUTE), mac(1), Kind.HEARTBEAT)) >= 9


@pytest.mark.rule("gateway-33")
def test_a_device_that_goes_into_storage_while_it_reports_is_silent() -> None:
    world = World([device(1, code="0005")])
    world.live(5 * MINUTE)
    world.send_write(mac(1), REPORT_ALL)
    assert world.write(mac(1), MODE, STORAGE) == Status.OK
    world.live(0.2)
    assert [each for each in of(world.live(30.0), mac(1)) if each.identifier != "8112"] == []


@pytest.mark.rule("gateway-33")
def test_a_device_in_storage_raises_no_alarm_and_notices_no_motion() -> None:
    world = World([device(1, code="000F", mode=Mode.STORAGE), device(2, x=3.0, mode=Mode.STORAGE)])
    assert only_storage([each for each in world.live(12 * HOUR) if each.mac != world.mac])


@each_row("code", [code for code in BY_CODE if code != "2011"])
def test_a_device_has_the_modes_of_its_product_and_no_others(code: str) -> None:
    for mode in Mode:
        world = World([device(1, x=1.0, code=code)])
        wanted = Status.OK if mode in BY_CODE[code].modes else Status.NOT_SUPPORTED
        assert world.write(mac(1), MODE, f"{mode:02x}") == wanted
        world.live(1.0)
        assert (world.device(mac(1)).mode is mode) == (wanted is Status.OK or mode is BY_CODE[code].usual)


def test_a_device_that_leaves_the_mesh_is_reached_through_an_extender_and_comes_back() -> None:
    world = World([device(1)])
    assert world.ask(Operation.READ, mac(1), "8000").origin == 0
    assert world.write(mac(1), MODE, UNCONNECTED) == Status.OK
    world.live(1.0)
    assert world.device(mac(1)).node.parent is None
    assert world.ask(Operation.READ, mac(1), "8000").origin == 1
    assert world.write(mac(1), MODE, CONNECTED) == Status.OK
    world.live(1.0)
    assert world.ask(Operation.READ, mac(1), "8000").origin == 0


@pytest.mark.rule("gateway-32", "report-43")
def test_in_dfu_mode_a_device_advertises_and_makes_no_other_report() -> None:
    world = World([device(1)])
    world.live(MINUTE)
    assert world.write(mac(1), MODE, DFU) == Status.OK
    world.live(1.0)
    told = of(world.live(5 * MINUTE), mac(1))
    assert {each.kind for each in told} == {Kind.DFU}
    assert len(told) == 30
    assert {each.report.parent for each in told} == {world.mac}
    world.live(6 * MINUTE)
    assert len(of(world.live(10 * MINUTE), mac(1), Kind.HEARTBEAT)) == 10, "nobody came to update it"


@pytest.mark.rule("gateway-32")
@each_row("mode", [DFU, STORAGE])
def test_the_gateway_switches_the_mode_of_a_legacy_device(mode: str) -> None:
    world = World([device(1, code="000F")])
    assert world.write(world.mac, "8111", mac(1) + mode) == Status.OK
    told = of(world.live(1.0), mac(1), Kind.PROPERTY, MODE)
    assert [each.raw.hex() for each in told] == [mode]
    assert f"{world.device(mac(1)).mode:02x}" == mode
    assert world.write(world.mac, "8111", mac(1) + UNCONNECTED) == Status.OK
    world.live(1.0)
    assert world.write(mac(1), "9802", "00") == Status.OK


@each_row(
    ("raw", "status"),
    [
        (mac(9) + DFU, Status.UNREACHABLE),
        (mac(1) + CONNECTED, Status.NOT_SUPPORTED),
        (mac(1) + "05", Status.NOT_SUPPORTED),
        (mac(1) + "09", Status.INVALID_VALUE),
        (mac(1), Status.INVALID_VALUE),
        ("", Status.INVALID_VALUE),
    ],
)
def test_a_switch_of_mode_that_is_not_possible_is_refused(raw: str, status: Status) -> None:
    world = World([device(1, code="000F")])
    assert world.write(world.mac, "8111", raw) == status
    assert world.device(mac(1)).mode is Mode.UNCONNECTED


@each_row("mode", [DFU, STORAGE, UNCONNECTED])
def test_a_device_told_to_restart_and_to_change_its_mode_does_both_in_the_end(mode: str) -> None:
    world = World([device(1)])
    world.live(MINUTE)
    world.send_write(mac(1), SOFT_RESET)
    world.send_write(mac(1), MODE, mode)
    world.live(2 * MINUTE)
    told = of(world.live(2 * MINUTE), mac(1))
    sign = {DFU: Kind.DFU, STORAGE: Kind.EVENT, UNCONNECTED: Kind.HEARTBEAT}
    # Either it took the mode, or it restarted first and never heard of it; it must not be lost.
    assert sign[mode] in {each.kind for each in told} or Kind.HEARTBEAT in {each.kind for each in told}


def test_a_device_that_nobody_updates_leaves_dfu_mode_also_when_an_update_failed_before() -> None:
    world = World([device(1)])
    # An image for another model: the update fails, and the device remembers that.
    assert world.write(mac(1), "8121", "0005" + "09000000" + "00") == Status.OK
    assert world.write(mac(1), MODE, DFU) == Status.OK
    world.live(15 * MINUTE)
    assert len(of(world.live(10 * MINUTE), mac(1), Kind.HEARTBEAT)) == 10
