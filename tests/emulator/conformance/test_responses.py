"""Responses: who answers, by which way, and what is always or sometimes told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.emulator.conformance.payload_shapes import (
    FROM_GATEWAY,
    ON_BEHALF_OF_DEVICE,
    ExpectedRoute,
    check_response,
)
from tests.emulator.conformance.site import (
    BAND,
    CLIP,
    DOOR,
    EXTENDER,
    FAR,
    OUTER_BAND,
    OUTER_EXTENDER,
    OUTER_SENSOR,
    STORED,
    TRACKER,
    UNKNOWN_DEVICE,
)
from tests.emulator.conformance.variants import differs_by_version
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.emulator.conformance.gateway_process import GatewayProcess

READS = ["read/8000", "read-decoded/model-number"]
WRITES: dict[str, Any] = {"write/9802": "04", "write-decoded/tx-power": 4}
GATEWAY = "the gateway"
"""Stands for its MAC, which is known when it runs."""


def ask(gateway: GatewayProcess, device: str, suffix: str) -> dict[str, Any]:
    return gateway.request(device, suffix, **({"value": WRITES[suffix]} if suffix in WRITES else {}))


@differs_by_version()
@pytest.mark.rule("response-1", "response-2", "response-3", "response-4", "response-8", "response-12")
@pytest.mark.rule("response-19", "gateway-19")
@each_row("suffix", [*READS, *WRITES])
@each_row(
    ("device", "route"),
    [
        (TRACKER, (TRACKER,)),
        (EXTENDER, (EXTENDER,)),
        (OUTER_EXTENDER, (EXTENDER, OUTER_EXTENDER)),
        (OUTER_SENSOR, (EXTENDER, OUTER_EXTENDER, OUTER_SENSOR)),
    ],
)
def test_a_connected_device_answers_itself_and_its_route_is_told(
    gateway: GatewayProcess, device: str, route: tuple[str, ...], suffix: str
) -> None:
    rest = check_response(gateway, ask(gateway, device, suffix), ExpectedRoute(0, route=route))
    assert rest.keys() == ({"value"} if suffix in READS else set())


@differs_by_version()
@pytest.mark.rule("response-9")
@each_row("suffix", [*READS, *WRITES])
def test_a_gateway_answers_for_itself_without_a_route(gateway: GatewayProcess, suffix: str) -> None:
    check_response(gateway, ask(gateway, gateway.mac, suffix), FROM_GATEWAY)


@differs_by_version()
@pytest.mark.rule("response-10", "response-11", "response-12", "id-26", "id-27", "gateway-20")
@each_row("suffix", [*READS, *WRITES])
@each_row(
    ("device", "route"),
    [(CLIP, (GATEWAY,)), (BAND, (EXTENDER,)), (OUTER_BAND, (EXTENDER, OUTER_EXTENDER))],
)
def test_an_unconnected_device_answers_through_an_extender_that_is_told(
    gateway: GatewayProcess, device: str, route: tuple[str, ...], suffix: str
) -> None:
    hops = tuple(gateway.mac if hop == GATEWAY else hop for hop in route)
    rest = check_response(gateway, ask(gateway, device, suffix), ExpectedRoute(1, extender_route=hops))
    assert rest.keys() == ({"value"} if suffix in READS else set())


@pytest.mark.rule("response-10", "response-30", "gateway-28")
@each_row("suffix", [*READS, *WRITES])
def test_the_extender_answers_for_an_unconnected_device_that_does_not(
    gateway: GatewayProcess, suffix: str
) -> None:
    response = ask(gateway, STORED, suffix)
    hops = (gateway.mac,)
    if gateway.has_version("2.0.0") and response["extenderId"] == EXTENDER.upper():
        hops = (EXTENDER,)  # both hear it well
    assert check_response(gateway, response, ExpectedRoute(16, extender_route=hops), status=9) == {}


@pytest.mark.rule("response-29", "gateway-28", "gateway-40")
@each_row("suffix", [*READS, *WRITES])
def test_the_gateway_answers_for_a_connected_device_that_does_not(
    unheeded: GatewayProcess, suffix: str
) -> None:
    assert check_response(unheeded, ask(unheeded, TRACKER, suffix), ON_BEHALF_OF_DEVICE, status=9) == {}


@pytest.mark.rule("response-30", "response-11", "gateway-40")
@each_row("suffix", [*READS, *WRITES])
def test_the_gateway_as_extender_answers_for_an_unconnected_device_that_does_not(
    unheeded: GatewayProcess, suffix: str
) -> None:
    way = ExpectedRoute(16, extender_route=(unheeded.mac,))
    assert check_response(unheeded, ask(unheeded, CLIP, suffix), way, status=9) == {}


@pytest.mark.rule("gateway-40")
@each_row("device", [TRACKER, CLIP])
def test_devices_that_do_not_answer_go_on_reporting(unheeded: GatewayProcess, device: str) -> None:
    unheeded.request(device, "read/8000")
    unheeded.report(device, "heartbeat", after=unheeded.recorder.mark)


@differs_by_version()
@pytest.mark.rule("response-31")
@each_row("suffix", [*READS, *WRITES])
def test_the_gateway_answers_for_a_device_that_it_does_not_know(gateway: GatewayProcess, suffix: str) -> None:
    assert check_response(gateway, ask(gateway, UNKNOWN_DEVICE, suffix), ON_BEHALF_OF_DEVICE, status=10) == {}


@pytest.mark.rule("response-20")
def test_the_gateway_answers_for_a_device_that_nobody_reaches(gateway: GatewayProcess) -> None:
    gateway.report(FAR, "rssi", where=lambda report: report.get("unreachable") is True)
    assert check_response(gateway, gateway.request(FAR, "read/8000"), ON_BEHALF_OF_DEVICE, status=10) == {}


@pytest.mark.rule("response-6", "response-20")
@each_row(
    ("device", "suffix", "parameters", "status"),
    [
        (TRACKER, "read/8000", {"priority": 9}, 2),
        (TRACKER, "no-such-operation", {}, 3),
        (TRACKER, "read/8831", {}, 4),
        (DOOR, "read-decoded/hall-effect-counter", {}, 5),
        (TRACKER, "write/9802", {"value": "0404"}, 6),
        (TRACKER, "write/8000", {"value": "0001"}, 7),
        (STORED, "read/8000", {}, 9),
        (UNKNOWN_DEVICE, "read/8000", {}, 10),
    ],
)
def test_failures_have_a_status_and_help_for_people(
    gateway: GatewayProcess, device: str, suffix: str, parameters: dict[str, Any], status: int
) -> None:
    response = gateway.request(device, suffix, **parameters)
    assert response["status"] == status
    assert isinstance(response["errorMessage"], str)
    assert response["errorMessage"]


@pytest.mark.rule("response-6", "response-19")
def test_a_success_has_no_error_message(gateway: GatewayProcess) -> None:
    response = gateway.request(TRACKER, "read/8000")
    assert response["status"] == 0
    assert "errorMessage" not in response


@pytest.mark.rule("response-1")
def test_the_time_of_a_response_is_when_it_was_made(gateway: GatewayProcess) -> None:
    asked = (gateway.request(TRACKER, "read/8000")["time"] for _ in range(2))
    first, second = map(datetime.fromisoformat, asked)
    assert gateway.started < first <= second <= datetime.now(UTC)
