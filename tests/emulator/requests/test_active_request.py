"""Origin, route and duration of responses are those of the simulated path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from meshfleet.emulator import Faults
from meshfleet.emulator.simulation.packet_forwarding import AIRTIME_SECONDS, HOP_LATENCY_SECONDS
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.protocol.codes import Operation, Status
from meshfleet.protocol.ids import Version
from meshfleet.protocol.responses import decode_response
from meshfleet.protocol.times import to_millis
from tests.emulator.requests.driver import (
    ORIGIN,
    Message,
    RequestDriver,
    device_at_end,
    extender_chain,
    format_route,
)
from tests.emulator.simulation.sites import GATEWAY, device_mac, place_device
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac

TARGET = device_mac(100)
ROUTE_FIELDS = {"route", "extenderId", "extenderRoute"}
TIMEOUT_SECONDS = 10.0
SILENT = Faults(silent=1.0)


def create_driver(
    extenders: int,
    *,
    speed: float = 1.0,
    faults: Faults = Faults(),  # noqa: B008 # frozen
    **device_fields: Any,
) -> RequestDriver:
    """Return a driver with one target at the end of a chain of extenders."""
    chain = extender_chain(extenders)
    return RequestDriver(*chain, device_at_end(chain, **device_fields), speed=speed, faults=faults)


def get_route(response: dict[str, Any]) -> dict[str, Any]:
    return {name: response[name] for name in ROUTE_FIELDS & response.keys()}


def via(*numbers: int) -> dict[str, Any]:
    return {"extenderId": device_mac(numbers[-1]).upper(), "extenderRoute": format_route(*numbers)}


VIA_GATEWAY = {"extenderId": GATEWAY.upper(), "extenderRoute": GATEWAY}


@pytest.mark.rule("response-8", "response-12")
@each_row("extenders", [0, 1, 3, 10])
@each_row("operation", ["read/8000", "read/8112", "write/8300", "write/8000", "read-decoded/uptime"])
def test_a_connected_target_responds_with_its_route(extenders: int, operation: str) -> None:
    response = create_driver(extenders).request_and_wait(TARGET, operation)
    assert response["origin"] == 0
    assert get_route(response) == {"route": format_route(*range(1, extenders + 1), 100)}


@each_row("extenders", [4, 8, 10])
@each_row(("operation", "value"), [("8300", None), ("8301", None), ("8110", "04"), ("8110", "01")])
def test_the_route_is_that_of_the_request_even_if_the_target_left_since(
    extenders: int, operation: str, value: str | None
) -> None:
    response = create_driver(extenders, code="0005").request_and_wait(
        TARGET, f"write/{operation}", value=value
    )
    assert (response["status"], response["origin"]) == (Status.OK, 0)
    assert get_route(response) == {"route": format_route(*range(1, extenders + 1), 100)}


@pytest.mark.rule("response-9")
@each_row(
    "operation",
    ["apiversion", "read/8000", "read/9800", "write/8000", "write/9802", "nonsense", "read-decoded/x"],
)
def test_a_gateway_responds_for_itself_without_a_route(operation: str) -> None:
    response = create_driver(1).request_and_wait(GATEWAY, operation)
    assert (response["origin"], get_route(response)) == (0, {})


@pytest.mark.rule("response-10", "id-27", "gateway-20")
@each_row("extenders", [3, 6])
@each_row("operation", ["read/8000", "read/8803", "write/8300", "write/8000"])
def test_an_unconnected_target_responds_through_an_extender(extenders: int, operation: str) -> None:
    response = create_driver(extenders, code="000F").request_and_wait(TARGET, operation)
    assert response["origin"] == 1
    assert get_route(response) == via(*range(1, extenders + 1))


@pytest.mark.rule("response-11")
def test_the_extender_may_be_the_gateway_itself() -> None:
    response = create_driver(0, code="000F").request_and_wait(TARGET, "read/8000")
    assert (response["origin"], get_route(response)) == (1, VIA_GATEWAY)


@pytest.mark.rule("response-30", "gateway-40")
@each_row("extenders", [0, 4])
def test_the_extender_responds_for_a_silent_unconnected_target(extenders: int) -> None:
    response = create_driver(extenders, code="000F", faults=SILENT).request_and_wait(TARGET, "read/8000")
    assert (response["status"], response["origin"]) == (Status.TIMEOUT, 16)
    assert get_route(response) == (via(*range(1, extenders + 1)) if extenders else VIA_GATEWAY)


@pytest.mark.rule("response-29", "gateway-40")
@each_row("extenders", [0, 4])
def test_the_gateway_responds_for_a_silent_connected_target(extenders: int) -> None:
    response = create_driver(extenders, faults=SILENT).request_and_wait(TARGET, "read/8000")
    assert (response["status"], response["origin"], get_route(response)) == (Status.TIMEOUT, 32, {})


@pytest.mark.rule("gateway-40")
def test_a_silent_device_continues_to_report() -> None:
    messages = create_driver(1, faults=SILENT).advance(120.0)
    assert {message.kind for message in messages if TARGET in message.topic} >= {"heartbeat", "rssi"}


@pytest.mark.rule("response-31")
@each_row("operation", ["read/8000", "write/8300", "nonsense", "apiversion", "read-decoded/x"])
def test_the_gateway_responds_for_an_unknown_target(operation: str) -> None:
    response = create_driver(1).request_and_wait(device_mac(98), operation)
    assert (response["origin"], get_route(response)) == (32, {})


def test_the_extender_responds_for_a_target_in_storage() -> None:
    response = create_driver(4, mode=DeviceMode.STORAGE).request_and_wait(TARGET, "read/8000")
    assert (response["status"], response["origin"], get_route(response)) == (9, 16, via(1, 2, 3, 4))


def test_the_extender_responds_for_a_target_in_dfu_mode() -> None:
    driver = create_driver(4)
    driver.request_and_wait(TARGET, "write/8110", value="01")
    driver.wait(lambda message: message.kind == "dfu")
    response = driver.request_and_wait(TARGET, "read/8000")
    assert (response["status"], response["origin"], get_route(response)) == (9, 16, via(1, 2, 3, 4))


def test_the_extender_responds_for_an_unconnected_target_that_restarts() -> None:
    driver = create_driver(4, code="000F")
    driver.request_and_wait(TARGET, "write/8300")
    driver.advance(0.2)
    response = driver.request_message(TARGET, "read/8000")
    assert (response.body["status"], response.body["origin"]) == (9, 16)
    driver.advance(2.0)
    assert driver.request_and_wait(TARGET, "read/8000")["status"] == Status.OK


def test_a_request_to_a_target_that_restarts_meanwhile_times_out() -> None:
    driver = create_driver(8)
    driver.request(TARGET, "write/8300", id="first")
    driver.advance(0.25)
    driver.request(TARGET, "read/8000", id="second")
    responses = {message.body["id"]: message.body for message in driver.responses()}
    assert responses["first"]["status"] == Status.OK
    assert (responses["second"]["status"], responses["second"]["origin"]) == (Status.TIMEOUT, 32)


@pytest.mark.rule("request-20", "id-28")
@each_row("spelling", [str.lower, str.upper])
def test_the_requested_extender_is_used_if_it_receives_the_target(spelling: Any) -> None:
    driver = create_driver(4, code="000F")
    assert get_route(driver.request_and_wait(TARGET, "read/8000")) == via(1, 2, 3, 4)
    response = driver.request_and_wait(TARGET, "read/8000", extenderId=spelling(device_mac(3)))
    assert (response["status"], get_route(response)) == (0, via(1, 2, 3))


def test_the_gateway_may_be_requested_as_extender() -> None:
    response = create_driver(1, code="000F").request_and_wait(TARGET, "read/8000", extenderId=GATEWAY.upper())
    assert (response["status"], get_route(response)) == (0, VIA_GATEWAY)


@each_row("extender", [GATEWAY, device_mac(98), TARGET, device_mac(1)])
def test_a_requested_extender_that_does_not_receive_the_target_is_unreachable(extender: Mac) -> None:
    driver = create_driver(9, code="000F")
    response = driver.request_and_wait(TARGET, "read/8000", extenderId=extender)
    assert (response["status"], response["origin"], get_route(response)) == (Status.UNREACHABLE, 32, {})


def test_the_requested_extender_responds_for_a_silent_target() -> None:
    response = create_driver(4, code="000F", faults=SILENT).request_and_wait(
        TARGET, "read/8000", extenderId=device_mac(3)
    )
    assert (response["status"], response["origin"], get_route(response)) == (9, 16, via(1, 2, 3))


@each_row("extender", [device_mac(1), device_mac(98), GATEWAY])
def test_a_connected_target_needs_no_extender(extender: Mac) -> None:
    response = create_driver(2).request_and_wait(TARGET, "read/8000", extenderId=extender)
    assert (response["status"], response["origin"]) == (Status.OK, 0)
    assert get_route(response) == {"route": format_route(1, 2, 100)}


@pytest.mark.rule("version-15")
def test_a_requested_extender_is_ignored_before_its_version() -> None:
    chain = extender_chain(4)
    driver = RequestDriver(*chain, device_at_end(chain, code="000F"), version=Version(2, 0, 1))
    for extender in ("nonsense", device_mac(3)):
        assert get_route(driver.request_and_wait(TARGET, "read/8000", extenderId=extender)) == via(1, 2, 3, 4)
    driver = RequestDriver(*chain, device_at_end(chain, code="000F"), version=Version(2, 1, 0))
    assert (
        driver.request_and_wait(TARGET, "read/8000", extenderId="nonsense")["status"]
        == Status.INVALID_REQUEST
    )
    assert get_route(driver.request_and_wait(TARGET, "read/8000", extenderId=device_mac(3))) == via(1, 2, 3)


def check_times(driver: RequestDriver, sent_at: float, message: Message) -> None:
    """Check the time and the response time of a response, both in wall-clock time."""
    response = decode_response(Operation.READ, message.payload)
    speed = driver.speed
    # Both ends of the interval are rounded to milliseconds.
    assert response.response_time == pytest.approx((message.moment - sent_at) * 1000.0 / speed, abs=1.0)
    assert to_millis(response.time) == int(ORIGIN + message.moment * 1000.0 / speed)


@pytest.mark.rule("gateway-42", "response-3")
@each_row("speed", [0.5, 1.0, 10.0, 3000.0])
@each_row("settings", [{}, {"code": "000F"}, {"faults": SILENT}])
def test_the_response_time_is_the_time_in_the_mesh(speed: float, settings: dict[str, Any]) -> None:
    driver = create_driver(3, speed=speed, **settings)
    driver.advance(7.3)
    for device in (TARGET, GATEWAY, device_mac(98)):
        sent_at = driver.now
        check_times(driver, sent_at, driver.request_message(device, "read/8000"))
        driver.advance(0.1)


@pytest.mark.rule("gateway-27")
def test_every_hop_adds_latency() -> None:
    times = [
        create_driver(extenders).request_and_wait(TARGET, "read/8000")["responseTime"]
        for extenders in range(9)
    ]
    for extenders, millis in enumerate(times):
        assert millis >= 2000.0 * (extenders + 1) * (AIRTIME_SECONDS + HOP_LATENCY_SECONDS)
    assert times[8] > times[3] > times[0]


@pytest.mark.rule("gateway-28")
@each_row("speed", [1.0, 20.0])
@each_row("code", ["0018", "000F"])
def test_the_gateway_waits_ten_seconds(speed: float, code: str) -> None:
    driver = create_driver(2, speed=speed, faults=SILENT, code=code)
    driver.advance(3.0)
    message = driver.request_message(TARGET, "read/8000")
    assert message.moment == pytest.approx(3.0 + TIMEOUT_SECONDS)
    assert message.body["responseTime"] == TIMEOUT_SECONDS * 1000 / speed


def test_a_late_response_is_not_sent_after_a_timeout() -> None:
    driver = create_driver(0, code="000F")
    driver.request_and_wait(TARGET, "write/9804", value="280001")  # advertise only every ten seconds
    for number in range(20):
        driver.request(TARGET, "read/8000", id=str(number))
    responses = [message.body for message in driver.responses(300.0) if "id" in message.body]
    assert sorted(body["id"] for body in responses) == sorted(map(str, range(20)))
    assert {(body["status"], body["origin"]) for body in responses} == {(0, 1), (9, 16)}


def test_a_write_that_timed_out_is_not_executed_later() -> None:
    driver = create_driver(0, code="000F")
    driver.request_and_wait(TARGET, "write/9804", value="280001")
    for number in range(20):
        driver.request(TARGET, "write/9808", value=f"{number:04x}", id=f"{number:04x}")
    responses = [message.body for message in driver.responses(300.0) if "id" in message.body]
    completed_ids = [body["id"] for body in responses if body["status"] == Status.OK]
    reported_values = [
        message.body["value"] for message in driver.messages if message.kind == "property/9808"
    ]
    assert 0 < len(completed_ids) < 20
    assert set(reported_values) - {"003c"} == set(completed_ids)


def test_a_restarted_gateway_responds_to_later_requests() -> None:
    driver = create_driver(2)
    assert driver.request_and_wait(GATEWAY, "write/8300")["status"] == Status.OK
    driver.advance(0.2)
    assert driver.gateway.is_restarting
    driver.request(TARGET, "read/8000", id="lost")
    driver.advance(8.5)
    assert driver.request_and_wait(TARGET, "read/8000", id="kept")["status"] == Status.OK
    assert "lost" not in {message.body.get("id") for message in driver.responses()}


def test_a_restarted_gateway_discards_earlier_requests() -> None:
    driver = create_driver(2, faults=SILENT)
    driver.request(GATEWAY, "write/8300", id="restart")
    driver.request(TARGET, "read/8000", id="first")
    driver.advance(0.05)
    driver.request(TARGET, "read/8000", id="second")
    assert {message.body["id"] for message in driver.responses(60.0)} == {"restart"}


def test_routes_never_exceed_the_maximum_depth() -> None:
    chain = extender_chain(11)
    driver = RequestDriver(
        *chain, replace(place_device(60, chain[-1].position.x + 2.0), parent=chain[-1].mac)
    )
    assert driver.request_and_wait(device_mac(11), "read/8000")["route"].count("-") == 10
    assert driver.request_and_wait(device_mac(60), "read/8000")["route"].count("-") < 11


@pytest.mark.rule("gateway-41")
def test_the_same_requests_get_the_same_responses() -> None:
    def run() -> list[Message]:
        driver = create_driver(5, code="000F")
        for number in range(30):
            driver.request(TARGET, "read/8000", id=str(number))
            driver.request(
                device_mac(1 + number % 5), "read-decoded/uptime", id=str(number), priority=number % 5
            )
            driver.advance(0.1)
        driver.advance(60.0)
        return driver.messages

    assert run() == run()
