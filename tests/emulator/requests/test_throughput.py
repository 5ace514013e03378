"""Throughput tests: packets that are sent to be counted."""

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


def far(extenders: int = 2) -> RequestDriver:
    row = extender_chain(extenders)
    return RequestDriver(*row, device_at_end(row), place_device(101, 0.0, 4.0, code="000F"))


def order(packets: int, *, interval: int = 20, burst: int = 1, priority: int = 2, to: str = "") -> str:
    """The value of 8303 or, with a target, of 8304."""
    return f"{packets:04x}{interval:04x}{burst:02x}{priority:02x}{to}"


def count(asked: RequestDriver, device: Mac = GATEWAY) -> int:
    return int(asked.request_and_wait(device, "read/8305")["value"], 16)


@each_row("burst", [1, 7, 255])
def test_packets_to_the_gateway_are_counted_there(burst: int) -> None:
    asked = far()
    assert asked.request_and_wait(TARGET, "write/8303", value=order(100, burst=burst))["status"] == Status.OK
    asked.advance(20.0)
    assert count(asked) == 100


def test_packets_to_one_device_are_counted_there() -> None:
    asked = far()
    assert asked.request_and_wait(GATEWAY, "write/8304", value=order(80, to=TARGET))["status"] == Status.OK
    asked.advance(20.0)
    assert count(asked, TARGET) == 80
    assert count(asked, device_mac(1)) == 0


def test_packets_to_all_are_counted_by_all_who_hold_a_link() -> None:
    asked = far()
    answer = asked.request_and_wait(
        GATEWAY,
        "write-decoded/start-downstream-throughput-test",
        value={"packets": 30, "interval": 200, "burst": 1, "target": ALL},
    )
    assert answer["status"] == Status.OK
    asked.advance(30.0)
    assert [count(asked, each) for each in (device_mac(1), device_mac(2), TARGET)] == [30, 30, 30]
    assert count(asked, device_mac(101)) == 0


@each_row("target", [device_mac(98), GATEWAY])
def test_packets_to_nobody_are_not_sent(target: Mac) -> None:
    assert (
        far().request_and_wait(GATEWAY, "write/8304", value=order(5, to=target))["status"]
        == Status.UNREACHABLE
    )


def test_a_device_without_a_link_sends_no_packets() -> None:
    assert (
        far().request_and_wait(device_mac(101), "write/8303", value=order(5))["status"]
        == Status.NOT_SUPPORTED
    )


@pytest.mark.rule("gateway-36", "response-33")
def test_a_second_test_fails_while_one_runs() -> None:
    asked = far()
    assert asked.request_and_wait(TARGET, "write/8303", value=order(100, interval=100))["status"] == Status.OK
    assert asked.request_and_wait(TARGET, "write/8303", value=order(1))["status"] == Status.BUSY
    asked.advance(15.0)
    assert count(asked) == 100
    assert asked.request_and_wait(TARGET, "write/8303", value=order(1))["status"] == Status.OK
    asked.advance(1.0)
    assert count(asked) == 1


@pytest.mark.rule("gateway-36")
def test_no_packets_stop_a_test() -> None:
    asked = far()
    asked.request_and_wait(TARGET, "write/8303", value=order(1000, interval=100))
    asked.advance(5.0)
    assert asked.request_and_wait(TARGET, "write/8303", value=order(0))["status"] == Status.OK
    asked.advance(2.0)
    stopped = count(asked)
    assert 30 < stopped < 100
    asked.advance(20.0)
    assert count(asked) == stopped


def test_stopping_what_does_not_run_is_fine() -> None:
    assert far().request_and_wait(TARGET, "write/8303", value=order(0))["status"] == Status.OK


def test_a_restart_ends_a_test() -> None:
    asked = far()
    asked.request_and_wait(TARGET, "write/8303", value=order(10_000, interval=100))
    asked.request_and_wait(TARGET, "write/8300")
    asked.advance(20.0)
    ended = count(asked)
    asked.advance(20.0)
    assert count(asked) == ended
    assert asked.request_and_wait(TARGET, "write/8303", value=order(1))["status"] == Status.OK


def test_a_fast_test_fills_the_air_and_loses_little() -> None:
    asked = far(3)
    asked.request_and_wait(TARGET, "write/8303", value=order(2000, interval=0, burst=255))
    asked.advance(60.0)
    assert 1900 < count(asked) <= 2000


@each_row("value", [order(5)[:-2], order(5) + "1414", "", order(5, burst=0), order(5, priority=5)])
def test_an_order_that_makes_no_sense_is_refused_and_starts_nothing(value: str) -> None:
    asked = far()
    assert asked.request_and_wait(TARGET, "write/8303", value=value)["status"] == Status.INVALID_VALUE
    assert asked.request_and_wait(TARGET, "write/8303", value=order(1))["status"] == Status.OK


def test_the_size_of_the_packets_may_be_told() -> None:
    asked = far()
    assert asked.request_and_wait(TARGET, "write/8303", value=order(5) + "14")["status"] == Status.OK


@pytest.mark.rule("response-28")
def test_the_counter_is_not_written() -> None:
    answer = far().request_and_wait(GATEWAY, "write/8305", value="00000000")
    assert answer["status"] == Status.ACCESS_NOT_ALLOWED


def test_a_device_that_becomes_unconnected_sends_no_more() -> None:
    row = extender_chain(1)
    asked = RequestDriver(*row, device_at_end(row, code="0005"))
    asked.request_and_wait(TARGET, "write/8303", value=order(1000, interval=100))
    asked.request_and_wait(TARGET, "write/8110", value="04")
    asked.advance(5.0)
    before = count(asked)
    asked.advance(20.0)
    assert count(asked) == before
