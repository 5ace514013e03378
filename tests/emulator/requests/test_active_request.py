"""Who answers, by which way and after how long: responses tell the truth of the simulated path."""

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
WAY = {"route", "extenderId", "extenderRoute"}
PATIENCE = 10.0
SILENT = Faults(silent=1.0)


def far(extenders: int, *, speed: float = 1.0, faults: Faults = Faults(), **given: Any) -> RequestDriver:  # noqa: B008
    """One target at the end of a row of extenders."""
    row = extender_chain(extenders)
    return RequestDriver(*row, device_at_end(row, **given), speed=speed, faults=faults)


def way(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in WAY & answer.keys()}


def through(*numbers: int) -> dict[str, Any]:
    return {"extenderId": device_mac(numbers[-1]).upper(), "extenderRoute": format_route(*numbers)}


THROUGH_GATEWAY = {"extenderId": GATEWAY.upper(), "extenderRoute": GATEWAY}


@pytest.mark.rule("response-8", "response-12")
@each_row("extenders", [0, 1, 3, 10])
@each_row("what", ["read/8000", "read/8112", "write/8300", "write/8000", "read-decoded/uptime"])
def test_a_connected_target_answers_with_its_route(extenders: int, what: str) -> None:
    answer = far(extenders).request_and_wait(TARGET, what)
    assert answer["origin"] == 0
    assert way(answer) == {"route": format_route(*range(1, extenders + 1), 100)}


@each_row("extenders", [4, 8, 10])
@each_row(("what", "value"), [("8300", None), ("8301", None), ("8110", "04"), ("8110", "01")])
def test_the_route_is_the_one_that_was_taken_also_when_the_target_is_gone_since(
    extenders: int, what: str, value: str | None
) -> None:
    answer = far(extenders, code="0005").request_and_wait(TARGET, f"write/{what}", value=value)
    assert (answer["status"], answer["origin"]) == (Status.OK, 0)
    assert way(answer) == {"route": format_route(*range(1, extenders + 1), 100)}


@pytest.mark.rule("response-9")
@each_row(
    "what", ["apiversion", "read/8000", "read/9800", "write/8000", "write/9802", "nonsense", "read-decoded/x"]
)
def test_a_gateway_answers_for_itself_without_a_route(what: str) -> None:
    answer = far(1).request_and_wait(GATEWAY, what)
    assert (answer["origin"], way(answer)) == (0, {})


@pytest.mark.rule("response-10", "id-27", "gateway-20")
@each_row("extenders", [3, 6])
@each_row("what", ["read/8000", "read/8803", "write/8300", "write/8000"])
def test_an_unconnected_target_answers_through_an_extender(extenders: int, what: str) -> None:
    answer = far(extenders, code="000F").request_and_wait(TARGET, what)
    assert answer["origin"] == 1
    assert way(answer) == through(*range(1, extenders + 1))


@pytest.mark.rule("response-11")
def test_the_extender_may_be_the_gateway_itself() -> None:
    answer = far(0, code="000F").request_and_wait(TARGET, "read/8000")
    assert (answer["origin"], way(answer)) == (1, THROUGH_GATEWAY)


@pytest.mark.rule("response-30", "gateway-40")
@each_row("extenders", [0, 4])
def test_the_extender_answers_for_a_silent_unconnected_target(extenders: int) -> None:
    answer = far(extenders, code="000F", faults=SILENT).request_and_wait(TARGET, "read/8000")
    assert (answer["status"], answer["origin"]) == (Status.TIMEOUT, 16)
    assert way(answer) == (through(*range(1, extenders + 1)) if extenders else THROUGH_GATEWAY)


@pytest.mark.rule("response-29", "gateway-40")
@each_row("extenders", [0, 4])
def test_the_gateway_answers_for_a_silent_connected_target(extenders: int) -> None:
    answer = far(extenders, faults=SILENT).request_and_wait(TARGET, "read/8000")
    assert (answer["status"], answer["origin"], way(answer)) == (Status.TIMEOUT, 32, {})


@pytest.mark.rule("gateway-40")
def test_a_silent_device_goes_on_reporting() -> None:
    told = far(1, faults=SILENT).advance(120.0)
    assert {message.kind for message in told if TARGET in message.topic} >= {"heartbeat", "rssi"}


@pytest.mark.rule("response-31")
@each_row("what", ["read/8000", "write/8300", "nonsense", "apiversion", "read-decoded/x"])
def test_the_gateway_answers_for_an_unknown_target(what: str) -> None:
    answer = far(1).request_and_wait(device_mac(98), what)
    assert (answer["origin"], way(answer)) == (32, {})


def test_the_extender_answers_for_a_target_in_storage() -> None:
    answer = far(4, mode=DeviceMode.STORAGE).request_and_wait(TARGET, "read/8000")
    assert (answer["status"], answer["origin"], way(answer)) == (9, 16, through(1, 2, 3, 4))


def test_the_extender_answers_for_a_target_in_dfu_mode() -> None:
    asked = far(4)
    asked.request_and_wait(TARGET, "write/8110", value="01")
    asked.wait(lambda message: message.kind == "dfu")
    answer = asked.request_and_wait(TARGET, "read/8000")
    assert (answer["status"], answer["origin"], way(answer)) == (9, 16, through(1, 2, 3, 4))


def test_the_extender_answers_for_an_unconnected_target_that_restarts() -> None:
    asked = far(4, code="000F")
    asked.request_and_wait(TARGET, "write/8300")
    asked.advance(0.2)
    sleepless = asked.request_message(TARGET, "read/8000")
    assert (sleepless.body["status"], sleepless.body["origin"]) == (9, 16)
    asked.advance(2.0)
    assert asked.request_and_wait(TARGET, "read/8000")["status"] == Status.OK


def test_a_packet_to_a_target_that_leaves_meanwhile_is_never_answered_by_it() -> None:
    asked = far(8)
    asked.request(TARGET, "write/8300", id="first")
    asked.advance(0.25)
    asked.request(TARGET, "read/8000", id="second")
    found = {message.body["id"]: message.body for message in asked.responses()}
    assert found["first"]["status"] == Status.OK
    assert (found["second"]["status"], found["second"]["origin"]) == (Status.TIMEOUT, 32)


@pytest.mark.rule("request-20", "id-28")
@each_row("spelling", [str.lower, str.upper])
def test_the_wished_extender_is_used_when_it_hears_the_target(spelling: Any) -> None:
    asked = far(4, code="000F")
    assert way(asked.request_and_wait(TARGET, "read/8000")) == through(1, 2, 3, 4)
    answer = asked.request_and_wait(TARGET, "read/8000", extenderId=spelling(device_mac(3)))
    assert (answer["status"], way(answer)) == (0, through(1, 2, 3))


def test_the_gateway_may_be_wished_for() -> None:
    answer = far(1, code="000F").request_and_wait(TARGET, "read/8000", extenderId=GATEWAY.upper())
    assert (answer["status"], way(answer)) == (0, THROUGH_GATEWAY)


@each_row("wished", [GATEWAY, device_mac(98), TARGET, device_mac(1)])
def test_a_wished_extender_that_does_not_hear_the_target_is_no_way(wished: Mac) -> None:
    asked = far(9, code="000F")
    answer = asked.request_and_wait(TARGET, "read/8000", extenderId=wished)
    assert (answer["status"], answer["origin"], way(answer)) == (Status.UNREACHABLE, 32, {})


def test_the_wished_extender_answers_for_a_silent_target() -> None:
    answer = far(4, code="000F", faults=SILENT).request_and_wait(
        TARGET, "read/8000", extenderId=device_mac(3)
    )
    assert (answer["status"], answer["origin"], way(answer)) == (9, 16, through(1, 2, 3))


@each_row("wished", [device_mac(1), device_mac(98), GATEWAY])
def test_a_connected_target_needs_no_extender(wished: Mac) -> None:
    answer = far(2).request_and_wait(TARGET, "read/8000", extenderId=wished)
    assert (answer["status"], answer["origin"]) == (Status.OK, 0)
    assert way(answer) == {"route": format_route(1, 2, 100)}


@pytest.mark.rule("version-15")
def test_the_wish_for_an_extender_is_not_looked_at_before_its_version() -> None:
    row = extender_chain(4)
    asked = RequestDriver(*row, device_at_end(row, code="000F"), version=Version(2, 0, 1))
    for wish in ("nonsense", device_mac(3)):
        assert way(asked.request_and_wait(TARGET, "read/8000", extenderId=wish)) == through(1, 2, 3, 4)
    asked = RequestDriver(*row, device_at_end(row, code="000F"), version=Version(2, 1, 0))
    assert (
        asked.request_and_wait(TARGET, "read/8000", extenderId="nonsense")["status"] == Status.INVALID_REQUEST
    )
    assert way(asked.request_and_wait(TARGET, "read/8000", extenderId=device_mac(3))) == through(1, 2, 3)


def took(asked: RequestDriver, since: float, message: Message) -> None:
    """A response tells when it was made and how long that took, both on the wall."""
    response = decode_response(Operation.READ, message.payload)
    speed = asked.speed
    # Both ends of it are whole milliseconds.
    assert response.response_time == pytest.approx((message.moment - since) * 1000.0 / speed, abs=1.0)
    assert to_millis(response.time) == int(ORIGIN + message.moment * 1000.0 / speed)


@pytest.mark.rule("gateway-42", "response-3")
@each_row("speed", [0.5, 1.0, 10.0, 3000.0])
@each_row("given", [{}, {"code": "000F"}, {"faults": SILENT}])
def test_the_response_time_is_the_time_on_the_way(speed: float, given: dict[str, Any]) -> None:
    asked = far(3, speed=speed, **given)
    asked.advance(7.3)
    for device in (TARGET, GATEWAY, device_mac(98)):
        since = asked.now
        took(asked, since, asked.request_message(device, "read/8000"))
        asked.advance(0.1)


@pytest.mark.rule("gateway-27")
def test_every_hop_takes_its_time() -> None:
    times = [far(extenders).request_and_wait(TARGET, "read/8000")["responseTime"] for extenders in range(9)]
    for extenders, millis in enumerate(times):
        assert millis >= 2000.0 * (extenders + 1) * (AIRTIME_SECONDS + HOP_LATENCY_SECONDS)
    assert times[8] > times[3] > times[0]


@pytest.mark.rule("gateway-28")
@each_row("speed", [1.0, 20.0])
@each_row("code", ["0018", "000F"])
def test_the_gateway_waits_ten_seconds(speed: float, code: str) -> None:
    asked = far(2, speed=speed, faults=SILENT, code=code)
    asked.advance(3.0)
    message = asked.request_message(TARGET, "read/8000")
    assert message.moment == pytest.approx(3.0 + PATIENCE)
    assert message.body["responseTime"] == PATIENCE * 1000 / speed


def test_a_response_that_comes_too_late_is_no_second_one() -> None:
    asked = far(0, code="000F")
    asked.request_and_wait(TARGET, "write/9804", value="280001")  # it advertises every ten seconds
    for number in range(20):
        asked.request(TARGET, "read/8000", id=str(number))
    found = [message.body for message in asked.responses(300.0) if "id" in message.body]
    assert sorted(body["id"] for body in found) == sorted(map(str, range(20)))
    assert {(body["status"], body["origin"]) for body in found} == {(0, 1), (9, 16)}


def test_a_write_that_was_given_up_is_not_done_later() -> None:
    asked = far(0, code="000F")
    asked.request_and_wait(TARGET, "write/9804", value="280001")
    for number in range(20):
        asked.request(TARGET, "write/9808", value=f"{number:04x}", id=f"{number:04x}")
    found = [message.body for message in asked.responses(300.0) if "id" in message.body]
    done = [body["id"] for body in found if body["status"] == Status.OK]
    told = [m.body["value"] for m in asked.messages if m.kind == "property/9808"]
    assert 0 < len(done) < 20
    assert set(told) - {"003c"} == set(done)


def test_a_gateway_that_restarts_answers_what_comes_after() -> None:
    asked = far(2)
    assert asked.request_and_wait(GATEWAY, "write/8300")["status"] == Status.OK
    asked.advance(0.2)
    assert asked.gateway.is_down
    asked.request(TARGET, "read/8000", id="lost")
    asked.advance(8.5)
    assert asked.request_and_wait(TARGET, "read/8000", id="kept")["status"] == Status.OK
    assert "lost" not in {message.body.get("id") for message in asked.responses()}


def test_a_restarted_gateway_knows_nothing_of_earlier_requests() -> None:
    asked = far(2, faults=SILENT)
    asked.request(GATEWAY, "write/8300", id="restart")
    asked.request(TARGET, "read/8000", id="first")
    asked.advance(0.05)
    asked.request(TARGET, "read/8000", id="second")
    assert {message.body["id"] for message in asked.responses(60.0)} == {"restart"}


def test_devices_of_a_far_branch_are_as_deep_as_they_say() -> None:
    row = extender_chain(11)
    asked = RequestDriver(*row, replace(place_device(60, row[-1].position.x + 2.0), parent=row[-1].mac))
    assert asked.request_and_wait(device_mac(11), "read/8000")["route"].count("-") == 10
    assert asked.request_and_wait(device_mac(60), "read/8000")["route"].count("-") < 11


@pytest.mark.rule("gateway-41")
def test_the_same_questions_get_the_same_answers() -> None:
    def run() -> list[Message]:
        asked = far(5, code="000F")
        for number in range(30):
            asked.request(TARGET, "read/8000", id=str(number))
            asked.request(
                device_mac(1 + number % 5), "read-decoded/uptime", id=str(number), priority=number % 5
            )
            asked.advance(0.1)
        asked.advance(60.0)
        return asked.messages

    assert run() == run()
