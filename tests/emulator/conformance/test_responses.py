"""Responses: origin, route, and mandatory and optional fields."""

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
"""Placeholder for the MAC of the gateway, which is known only when it runs."""


def send_request(gateway: GatewayProcess, device: str, suffix: str) -> dict[str, Any]:
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
def test_a_connected_device_responds_itself_with_its_route(
    gateway: GatewayProcess, device: str, route: tuple[str, ...], suffix: str
) -> None:
    rest = check_response(gateway, send_request(gateway, device, suffix), ExpectedRoute(0, route=route))
    assert rest.keys() == ({"value"} if suffix in READS else set())


@differs_by_version()
@pytest.mark.rule("response-9")
@each_row("suffix", [*READS, *WRITES])
def test_a_gateway_responds_for_itself_without_a_route(gateway: GatewayProcess, suffix: str) -> None:
    check_response(gateway, send_request(gateway, gateway.mac, suffix), FROM_GATEWAY)


@differs_by_version()
@pytest.mark.rule("response-10", "response-11", "response-12", "id-26", "id-27", "gateway-20")
@each_row("suffix", [*READS, *WRITES])
@each_row(
    ("device", "route"),
    [(CLIP, (GATEWAY,)), (BAND, (EXTENDER,)), (OUTER_BAND, (EXTENDER, OUTER_EXTENDER))],
)
def test_an_unconnected_device_responds_with_its_extender(
    gateway: GatewayProcess, device: str, route: tuple[str, ...], suffix: str
) -> None:
    hops = tuple(gateway.mac if hop == GATEWAY else hop for hop in route)
    rest = check_response(
        gateway, send_request(gateway, device, suffix), ExpectedRoute(1, extender_route=hops)
    )
    assert rest.keys() == ({"value"} if suffix in READS else set())


@pytest.mark.rule("response-10", "response-30", "gateway-28")
@each_row("suffix", [*READS, *WRITES])
def test_the_extender_responds_for_an_unconnected_device_that_does_not(
    gateway: GatewayProcess, suffix: str
) -> None:
    response = send_request(gateway, STORED, suffix)
    hops = (gateway.mac,)
    if gateway.has_version("2.0.0") and response["extenderId"] == EXTENDER.upper():
        hops = (EXTENDER,)  # gateway and extender both receive it well
    assert check_response(gateway, response, ExpectedRoute(16, extender_route=hops), status=9) == {}


@pytest.mark.rule("response-29", "gateway-28", "gateway-40")
@each_row("suffix", [*READS, *WRITES])
def test_the_gateway_responds_for_a_connected_device_that_does_not(
    silent_gateway: GatewayProcess, suffix: str
) -> None:
    assert (
        check_response(
            silent_gateway, send_request(silent_gateway, TRACKER, suffix), ON_BEHALF_OF_DEVICE, status=9
        )
        == {}
    )


@pytest.mark.rule("response-30", "response-11", "gateway-40")
@each_row("suffix", [*READS, *WRITES])
def test_the_gateway_as_extender_responds_for_an_unconnected_device_that_does_not(
    silent_gateway: GatewayProcess, suffix: str
) -> None:
    expected_route = ExpectedRoute(16, extender_route=(silent_gateway.mac,))
    assert (
        check_response(silent_gateway, send_request(silent_gateway, CLIP, suffix), expected_route, status=9)
        == {}
    )


@pytest.mark.rule("gateway-40")
@each_row("device", [TRACKER, CLIP])
def test_devices_that_do_not_respond_continue_to_report(silent_gateway: GatewayProcess, device: str) -> None:
    silent_gateway.request(device, "read/8000")
    silent_gateway.report(device, "heartbeat", after=silent_gateway.recorder.mark)


@differs_by_version()
@pytest.mark.rule("response-31")
@each_row("suffix", [*READS, *WRITES])
def test_the_gateway_responds_for_an_unknown_device(gateway: GatewayProcess, suffix: str) -> None:
    assert (
        check_response(gateway, send_request(gateway, UNKNOWN_DEVICE, suffix), ON_BEHALF_OF_DEVICE, status=10)
        == {}
    )


@pytest.mark.rule("response-20")
def test_the_gateway_responds_for_a_device_without_a_route(gateway: GatewayProcess) -> None:
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
def test_failures_have_a_status_and_an_error_message(
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
def test_the_time_of_a_response_is_its_creation(gateway: GatewayProcess) -> None:
    times = (gateway.request(TRACKER, "read/8000")["time"] for _ in range(2))
    first, second = map(datetime.fromisoformat, times)
    assert gateway.started < first <= second <= datetime.now(UTC)
