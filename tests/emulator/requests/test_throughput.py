"""Throughput tests: packets that are sent only to be counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.protocol.codes import Status
from tests.emulator.requests.driver import RequestDriver, device_at_end, extender_chain
from tests.emulator.simulation.sites import GATEWAY, device_mac, place_device
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac

TARGET = device_mac(100)
ALL = "000000000000"


def create_driver(extenders: int = 2) -> RequestDriver:
    chain = extender_chain(extenders)
    return RequestDriver(*chain, device_at_end(chain), place_device(101, 0.0, 4.0, code="000F"))


def build_test(
    packets: int, *, interval: int = 20, burst: int = 1, priority: int = 2, target: str = ""
) -> str:
    """Return the value of 8303 or, with a target, of 8304."""
    return f"{packets:04x}{interval:04x}{burst:02x}{priority:02x}{target}"


def read_count(driver: RequestDriver, device: Mac = GATEWAY) -> int:
    return int(driver.request_and_wait(device, "read/8305")["value"], 16)


@each_row("burst", [1, 7, 255])
def test_packets_to_the_gateway_are_counted_there(burst: int) -> None:
    driver = create_driver()
    assert (
        driver.request_and_wait(TARGET, "write/8303", value=build_test(100, burst=burst))["status"]
        == Status.OK
    )
    driver.advance(20.0)
    assert read_count(driver) == 100


def test_packets_to_one_device_are_counted_there() -> None:
    driver = create_driver()
    assert (
        driver.request_and_wait(GATEWAY, "write/8304", value=build_test(80, target=TARGET))["status"]
        == Status.OK
    )
    driver.advance(20.0)
    assert read_count(driver, TARGET) == 80
    assert read_count(driver, device_mac(1)) == 0


def test_packets_to_all_are_counted_by_all_connected_devices() -> None:
    driver = create_driver()
    response = driver.request_and_wait(
        GATEWAY,
        "write-decoded/start-downstream-throughput-test",
        value={"packets": 30, "interval": 200, "burst": 1, "target": ALL},
    )
    assert response["status"] == Status.OK
    driver.advance(30.0)
    assert [read_count(driver, device) for device in (device_mac(1), device_mac(2), TARGET)] == [30, 30, 30]
    assert read_count(driver, device_mac(101)) == 0


@each_row("target", [device_mac(98), GATEWAY])
def test_packets_to_an_unknown_target_are_not_sent(target: Mac) -> None:
    assert (
        create_driver().request_and_wait(GATEWAY, "write/8304", value=build_test(5, target=target))["status"]
        == Status.UNREACHABLE
    )


def test_a_device_without_a_link_sends_no_packets() -> None:
    assert (
        create_driver().request_and_wait(device_mac(101), "write/8303", value=build_test(5))["status"]
        == Status.NOT_SUPPORTED
    )


@pytest.mark.rule("gateway-36", "response-33")
def test_a_second_test_is_rejected_while_one_runs() -> None:
    driver = create_driver()
    assert (
        driver.request_and_wait(TARGET, "write/8303", value=build_test(100, interval=100))["status"]
        == Status.OK
    )
    assert driver.request_and_wait(TARGET, "write/8303", value=build_test(1))["status"] == Status.BUSY
    driver.advance(15.0)
    assert read_count(driver) == 100
    assert driver.request_and_wait(TARGET, "write/8303", value=build_test(1))["status"] == Status.OK
    driver.advance(1.0)
    assert read_count(driver) == 1


@pytest.mark.rule("gateway-36")
def test_a_test_without_packets_stops_the_running_one() -> None:
    driver = create_driver()
    driver.request_and_wait(TARGET, "write/8303", value=build_test(1000, interval=100))
    driver.advance(5.0)
    assert driver.request_and_wait(TARGET, "write/8303", value=build_test(0))["status"] == Status.OK
    driver.advance(2.0)
    count_when_stopped = read_count(driver)
    assert 30 < count_when_stopped < 100
    driver.advance(20.0)
    assert read_count(driver) == count_when_stopped


def test_stopping_succeeds_if_no_test_is_running() -> None:
    assert create_driver().request_and_wait(TARGET, "write/8303", value=build_test(0))["status"] == Status.OK


def test_a_restart_ends_a_test() -> None:
    driver = create_driver()
    driver.request_and_wait(TARGET, "write/8303", value=build_test(10_000, interval=100))
    driver.request_and_wait(TARGET, "write/8300")
    driver.advance(20.0)
    count_when_ended = read_count(driver)
    driver.advance(20.0)
    assert read_count(driver) == count_when_ended
    assert driver.request_and_wait(TARGET, "write/8303", value=build_test(1))["status"] == Status.OK


def test_a_fast_test_uses_the_full_air_time_and_loses_few_packets() -> None:
    driver = create_driver(3)
    driver.request_and_wait(TARGET, "write/8303", value=build_test(2000, interval=0, burst=255))
    driver.advance(60.0)
    assert 1900 < read_count(driver) <= 2000


@each_row(
    "value",
    [build_test(5)[:-2], build_test(5) + "1414", "", build_test(5, burst=0), build_test(5, priority=5)],
)
def test_an_invalid_test_is_rejected_and_starts_nothing(value: str) -> None:
    driver = create_driver()
    assert driver.request_and_wait(TARGET, "write/8303", value=value)["status"] == Status.INVALID_VALUE
    assert driver.request_and_wait(TARGET, "write/8303", value=build_test(1))["status"] == Status.OK


def test_a_test_may_contain_the_size_of_the_packets() -> None:
    driver = create_driver()
    assert driver.request_and_wait(TARGET, "write/8303", value=build_test(5) + "14")["status"] == Status.OK


@pytest.mark.rule("response-28")
def test_the_counter_is_read_only() -> None:
    response = create_driver().request_and_wait(GATEWAY, "write/8305", value="00000000")
    assert response["status"] == Status.ACCESS_NOT_ALLOWED


def test_a_device_that_becomes_unconnected_sends_no_more() -> None:
    chain = extender_chain(1)
    driver = RequestDriver(*chain, device_at_end(chain, code="0005"))
    driver.request_and_wait(TARGET, "write/8303", value=build_test(1000, interval=100))
    driver.request_and_wait(TARGET, "write/8110", value="04")
    driver.advance(5.0)
    before = read_count(driver)
    driver.advance(20.0)
    assert read_count(driver) == before
