"""Commands: restarts, changes of mode and reports of all properties."""

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
REBOOT_SECONDS = 10.0
"""Seconds within which a restart ends."""


def read_uptime(simulation: SimulatedGateway, device: str = "") -> int:
    return int.from_bytes(simulation.read(device_mac(1) if not device else simulation.mac, "8101"), "big")


@each_row("code", ["0018", "000F", "0040"])
def test_a_soft_reset_restarts_a_device_which_reports_its_properties(code: str) -> None:
    simulation = SimulatedGateway([nearby_device(1, code=code)])
    simulation.advance(5 * MINUTE)
    assert simulation.write(device_mac(1), "9802", "00") == Status.OK
    seq_before = simulation.device(device_mac(1)).seqs[0]
    assert simulation.write(device_mac(1), SOFT_RESET) == Status.OK
    reports = select_reports(simulation.advance(REBOOT_SECONDS), device_mac(1))
    heartbeats = [report for report in reports if report.kind is Kind.HEARTBEAT]
    assert heartbeats[-1].report.seq == seq_before
    assert {report.identifier for report in reports if report.kind is Kind.PROPERTY} == set(
        PRODUCTS_BY_CODE[code].reported_properties
    )
    assert read_uptime(simulation) <= REBOOT_SECONDS
    assert simulation.read(device_mac(1), "8102") == b"\x04"
    assert simulation.read(device_mac(1), "9802") == b"\0"


def test_a_device_sends_no_reports_while_it_restarts() -> None:
    simulation = SimulatedGateway([nearby_device(n, x=1.0 + n) for n in range(1, 6)])
    simulation.advance(HOUR)
    for n in range(1, 6):
        simulation.send_write(device_mac(n), SOFT_RESET)
    reports = simulation.advance(7.5)
    assert [
        report for report in reports if report.moment > simulation.now - 7.0 and report.mac != simulation.mac
    ] == []
    simulation.advance(3.0)
    assert simulation.write(device_mac(1), "9802", "00") == Status.OK


def test_a_factory_reset_restores_the_default_values() -> None:
    simulation = SimulatedGateway([nearby_device(1, code=EXTENDER)])
    defaults = dict(simulation.device(device_mac(1)).product.default_values)
    for identifier, raw in (("9802", "00"), ("8210", "03")):
        assert simulation.write(device_mac(1), identifier, raw) == Status.OK
    node = simulation.device(device_mac(1)).node
    assert (node.tx_gain, node.capacity) == (-4.0, 3)
    assert simulation.write(device_mac(1), FACTORY_RESET) == Status.OK
    simulation.advance(REBOOT_SECONDS)
    assert {identifier: simulation.read(device_mac(1), identifier) for identifier in defaults} == defaults
    assert (node.tx_gain, node.capacity) == (0.0, 18)
    assert read_uptime(simulation) <= REBOOT_SECONDS


def test_the_children_of_an_extender_that_restarts_reconnect() -> None:
    simulation = SimulatedGateway(
        [
            nearby_device(1, code=EXTENDER, position=SitePosition(1, 1.0, 0.0)),
            nearby_device(2, code=EXTENDER, position=SitePosition(1, 3.0, 0.0)),
            nearby_device(3, position=SitePosition(2, 1.0, 0.0)),
        ]
    )
    simulation.advance(MINUTE)
    leaf = simulation.device(device_mac(3)).node
    assert leaf.parent is not None
    assert simulation.write(leaf.parent.mac, SOFT_RESET) == Status.OK
    simulation.advance(1.0)
    assert leaf.depth == -1
    reports = select_reports(simulation.advance(3 * MINUTE), device_mac(3), Kind.HEARTBEAT)
    assert leaf.depth == 2
    assert len(reports) >= 2
    assert simulation.write(device_mac(3), "9802", "00") == Status.OK


def test_a_whole_branch_reconnects_after_its_root_has_restarted() -> None:
    chain = [nearby_device(n, code=EXTENDER, position=SitePosition(n, 1.0, 0.0)) for n in range(1, 5)]
    simulation = SimulatedGateway([*chain, nearby_device(5, position=SitePosition(5, 1.0, 0.0))])
    simulation.advance(MINUTE)
    assert simulation.device(device_mac(5)).node.depth == 5
    assert simulation.write(device_mac(1), SOFT_RESET) == Status.OK
    simulation.advance(1.0)
    assert {simulation.device(device_mac(n)).node.depth for n in range(1, 6)} == {-1}
    reports = simulation.advance(10 * MINUTE)
    assert [simulation.device(device_mac(n)).node.depth for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert len(select_reports(reports, device_mac(5), Kind.HEARTBEAT)) >= 5


def test_a_gateway_that_restarts_disconnects_and_publishes_nothing_until_it_reconnects() -> None:
    simulation = generated_gateway(20)
    simulation.advance(HOUR)
    sample_counts = {
        id(each): len(each.sample_buffer(Kind.MEASUREMENT, Identifier("8800"))) for each in simulation.devices
    }
    assert simulation.write(simulation.mac, SOFT_RESET) == Status.OK
    reports = simulation.advance(5 * MINUTE)
    (down, first), (up, second) = simulation.actions
    assert isinstance(first, CloseConnection)
    assert isinstance(second, OpenConnection)
    assert 5.0 < up - down < REBOOT_SECONDS
    assert [each for each in reports if down < each.moment < up] == []
    assert select_reports(reports, simulation.mac)[-1].moment > up
    for each in simulation.devices:
        if Identifier("8800") in each.product.measurements:
            assert len(each.sample_buffer(Kind.MEASUREMENT, Identifier("8800"))) > sample_counts[id(each)]
    assert read_uptime(simulation, "gateway") < 5 * MINUTE


def test_a_gateway_ignores_requests_while_it_restarts() -> None:
    simulation = generated_gateway(5)
    assert simulation.write(simulation.mac, SOFT_RESET) == Status.OK
    simulation.advance(1.0)
    assert simulation.gateway.is_restarting
    simulation.send(Operation.APIVERSION, simulation.mac)
    simulation.send_write(simulation.mac, "9802", "00")
    before = len(simulation.published)
    simulation.advance(5.0)
    assert len(simulation.published) == before
    simulation.advance(10.0)
    assert not [message for _, message in simulation.published[before:] if "/response/" in message.topic]
    assert simulation.read(simulation.mac, "9802") == b"\x04"


@pytest.mark.rule("gateway-35")
@each_row("code", ["0018", "000F", "0040", "0050"])
def test_a_device_reports_all_its_properties_on_command_and_is_busy_meanwhile(code: str) -> None:
    simulation = SimulatedGateway([nearby_device(1, code=code)])
    simulation.advance(5 * MINUTE)
    assert simulation.write(device_mac(1), REPORT_ALL) == Status.OK
    before = len(simulation.published)
    assert simulation.write(device_mac(1), REPORT_ALL) == Status.BUSY
    reports = select_reports(simulation.advance(10.0), device_mac(1), Kind.PROPERTY)
    topics = [message.topic for _, message in simulation.published[before:] if "/property/" in message.topic]
    assert {topic.rsplit("/")[-1] for topic in topics} >= set(PRODUCTS_BY_CODE[code].reported_properties[1:])
    assert len(reports) <= len(PRODUCTS_BY_CODE[code].reported_properties) + 1
    assert simulation.write(device_mac(1), REPORT_ALL) == Status.OK


@each_row("pause", [0.0, 0.5, 2.0])
def test_a_device_that_restarts_while_it_reports_is_no_longer_busy(pause: float) -> None:
    simulation = SimulatedGateway([nearby_device(1, code="000F")])
    simulation.advance(5 * MINUTE)
    assert simulation.write(device_mac(1), REPORT_ALL) == Status.OK
    simulation.advance(pause)
    assert simulation.write(device_mac(1), SOFT_RESET) == Status.OK
    simulation.advance(REBOOT_SECONDS + 3.0)
    assert simulation.write(device_mac(1), REPORT_ALL) == Status.OK
    assert (
        len(select_reports(simulation.advance(10.0), device_mac(1), Kind.PROPERTY))
        >= len(PRODUCTS_BY_CODE["000F"].reported_properties) - 1
    )


def has_only_storage_events(reports: list[ObservedReport]) -> bool:
    return {(each.kind, each.identifier) for each in reports} == {(Kind.EVENT, "8112")}


@pytest.mark.rule("gateway-32", "gateway-33")
@each_row("code", [code for code in PRODUCTS_BY_CODE if code != "2011"])
def test_a_device_in_storage_mode_has_only_the_events_of_the_gateway(code: str) -> None:
    simulation = SimulatedGateway([nearby_device(1, code=code)])
    simulation.advance(5 * MINUTE)
    assert simulation.write(device_mac(1), MODE, STORAGE) == Status.OK
    assert [
        each.raw.hex() for each in select_reports(simulation.advance(1.0), device_mac(1), Kind.PROPERTY, MODE)
    ] == [STORAGE]
    reports = select_reports(simulation.advance(3 * HOUR), device_mac(1))
    assert has_only_storage_events(reports)
    assert len(reports) == 180
    product = PRODUCTS_BY_CODE[code]
    assert {each.raw.hex() for each in reports} == {f"{product.model.lower()}{product.variant:02x}"}
    assert simulation.request(Operation.READ, device_mac(1), "8000").status == Status.TIMEOUT
    assert simulation.write(device_mac(1), MODE, f"{product.default_mode:02x}") == Status.OK
    simulation.advance(MINUTE)
    assert len(select_reports(simulation.advance(10 * MINUTE), device_mac(1), Kind.HEARTBEAT)) >= 9


@pytest.mark.rule("gateway-33")
def test_a_device_that_enters_storage_mode_while_it_reports_stops() -> None:
    simulation = SimulatedGateway([nearby_device(1, code="0005")])
    simulation.advance(5 * MINUTE)
    simulation.send_write(device_mac(1), REPORT_ALL)
    assert simulation.write(device_mac(1), MODE, STORAGE) == Status.OK
    simulation.advance(0.2)
    assert [
        each for each in select_reports(simulation.advance(30.0), device_mac(1)) if each.identifier != "8112"
    ] == []


@pytest.mark.rule("gateway-33")
def test_a_device_in_storage_mode_reports_no_alarm_and_no_motion() -> None:
    simulation = SimulatedGateway(
        [
            nearby_device(1, code="000F", mode=DeviceMode.STORAGE),
            nearby_device(2, x=3.0, mode=DeviceMode.STORAGE),
        ]
    )
    assert has_only_storage_events(
        [each for each in simulation.advance(12 * HOUR) if each.mac != simulation.mac]
    )


@each_row("code", [code for code in PRODUCTS_BY_CODE if code != "2011"])
def test_a_device_has_the_modes_of_its_product_and_no_others(code: str) -> None:
    for mode in DeviceMode:
        simulation = SimulatedGateway([nearby_device(1, x=1.0, code=code)])
        expected = Status.OK if mode in PRODUCTS_BY_CODE[code].modes else Status.NOT_SUPPORTED
        assert simulation.write(device_mac(1), MODE, f"{mode:02x}") == expected
        simulation.advance(1.0)
        assert (simulation.device(device_mac(1)).mode is mode) == (
            expected is Status.OK or mode is PRODUCTS_BY_CODE[code].default_mode
        )


def test_a_device_can_leave_the_mesh_and_join_it_again() -> None:
    simulation = SimulatedGateway([nearby_device(1)])
    assert simulation.request(Operation.READ, device_mac(1), "8000").origin == 0
    assert simulation.write(device_mac(1), MODE, UNCONNECTED) == Status.OK
    simulation.advance(1.0)
    assert simulation.device(device_mac(1)).node.parent is None
    assert simulation.request(Operation.READ, device_mac(1), "8000").origin == 1
    assert simulation.write(device_mac(1), MODE, CONNECTED) == Status.OK
    simulation.advance(1.0)
    assert simulation.request(Operation.READ, device_mac(1), "8000").origin == 0


@pytest.mark.rule("gateway-32", "report-43")
def test_a_device_in_dfu_mode_has_only_dfu_reports() -> None:
    simulation = SimulatedGateway([nearby_device(1)])
    simulation.advance(MINUTE)
    assert simulation.write(device_mac(1), MODE, DFU) == Status.OK
    simulation.advance(1.0)
    reports = select_reports(simulation.advance(5 * MINUTE), device_mac(1))
    assert {each.kind for each in reports} == {Kind.DFU}
    assert len(reports) == 30
    assert {each.report.parent for each in reports} == {simulation.mac}
    simulation.advance(6 * MINUTE)
    assert len(select_reports(simulation.advance(10 * MINUTE), device_mac(1), Kind.HEARTBEAT)) == 10, (
        "the device left DFU mode after its timeout"
    )


@pytest.mark.rule("gateway-32")
@each_row("mode", [DFU, STORAGE])
def test_the_gateway_switches_the_mode_of_a_legacy_device(mode: str) -> None:
    simulation = SimulatedGateway([nearby_device(1, code="000F")])
    assert simulation.write(simulation.mac, "8111", device_mac(1) + mode) == Status.OK
    reports = select_reports(simulation.advance(1.0), device_mac(1), Kind.PROPERTY, MODE)
    assert [each.raw.hex() for each in reports] == [mode]
    assert f"{simulation.device(device_mac(1)).mode:02x}" == mode
    assert simulation.write(simulation.mac, "8111", device_mac(1) + UNCONNECTED) == Status.OK
    simulation.advance(1.0)
    assert simulation.write(device_mac(1), "9802", "00") == Status.OK


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
def test_an_impossible_change_of_mode_is_rejected(raw: str, status: Status) -> None:
    simulation = SimulatedGateway([nearby_device(1, code="000F")])
    assert simulation.write(simulation.mac, "8111", raw) == status
    assert simulation.device(device_mac(1)).mode is DeviceMode.UNCONNECTED


@each_row("mode", [DFU, STORAGE, UNCONNECTED])
def test_a_device_survives_a_restart_and_a_change_of_mode_at_the_same_time(mode: str) -> None:
    simulation = SimulatedGateway([nearby_device(1)])
    simulation.advance(MINUTE)
    simulation.send_write(device_mac(1), SOFT_RESET)
    simulation.send_write(device_mac(1), MODE, mode)
    simulation.advance(2 * MINUTE)
    reports = select_reports(simulation.advance(2 * MINUTE), device_mac(1))
    expected_kinds = {DFU: Kind.DFU, STORAGE: Kind.EVENT, UNCONNECTED: Kind.HEARTBEAT}
    # Either it changed its mode, or it restarted first and discarded the command; it must not be lost.
    assert expected_kinds[mode] in {each.kind for each in reports} or Kind.HEARTBEAT in {
        each.kind for each in reports
    }


def test_a_device_leaves_dfu_mode_after_a_timeout_even_if_an_update_failed_before() -> None:
    simulation = SimulatedGateway([nearby_device(1)])
    # An image for another model: the update fails, and the device keeps that state.
    assert simulation.write(device_mac(1), "8121", "0005" + "09000000" + "00") == Status.OK
    assert simulation.write(device_mac(1), MODE, DFU) == Status.OK
    simulation.advance(15 * MINUTE)
    assert len(select_reports(simulation.advance(10 * MINUTE), device_mac(1), Kind.HEARTBEAT)) == 10
