"""Requests: topics, common parameters, priorities and invalid requests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.emulator.conformance.payload_shapes import (
    FROM_GATEWAY,
    ON_BEHALF_OF_DEVICE,
    ExpectedRoute,
    check_response,
    is_hex,
)
from tests.emulator.conformance.site import BAND, CLIP, DOOR, EXTENDER, TRACKER, UNKNOWN_DEVICE, WRITTEN
from tests.emulator.conformance.variants import differs_by_version
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.emulator.conformance.gateway_process import GatewayProcess

CONNECTED_TO_GATEWAY = ExpectedRoute(0, route=(TRACKER,))

OPERATIONS = {
    "apiversion": None,
    "read/8000": None,
    "read-decoded/model-number": None,
    "write/9802": "04",
    "write-decoded/tx-power": 4,
}
"""Every operation that has a response, with a value to write."""

IDS = ["1", "", " ", "Zürich/東京/🌡", 'a "quoted" \\ id', "\u0000\n", "x" * 1000, "null"]


def get_parameters(suffix: str) -> dict[str, Any]:
    """Return the parameters that an operation needs."""
    return {} if OPERATIONS[suffix] is None else {"value": OPERATIONS[suffix]}


@differs_by_version()
@pytest.mark.rule("topic-2", "topic-3", "topic-4", "topic-5", "request-1", "request-24", "response-18")
@each_row("suffix", OPERATIONS)
def test_every_operation_on_the_gateway_has_a_response_on_its_topic(
    gateway: GatewayProcess, suffix: str
) -> None:
    response = gateway.request(gateway.mac, suffix, **get_parameters(suffix))
    since = "2.0.1" if suffix == "apiversion" else "2.0.0"
    rest = check_response(gateway, response, FROM_GATEWAY, since=since)
    data: dict[str, Any] = {"version": gateway.variant.version} if suffix == "apiversion" else {}
    data |= {"value": "2011"} if suffix == "read/8000" else {}
    data |= {"value": 0x2011} if suffix == "read-decoded/model-number" else {}
    assert rest == data


@pytest.mark.rule("topic-2", "topic-3", "topic-4", "request-24", "response-18", "gateway-14")
@each_row("suffix", list(OPERATIONS)[1:])
def test_every_operation_on_a_device_has_a_response_on_its_topic(
    gateway: GatewayProcess, suffix: str
) -> None:
    response = gateway.request(TRACKER, suffix, **get_parameters(suffix))
    rest = check_response(gateway, response, CONNECTED_TO_GATEWAY)
    assert rest == ({"value": {"read/8000": "0005"}.get(suffix, 5)} if suffix.startswith("read") else {})


@pytest.mark.rule("request-3", "response-5", "id-13")
@each_row("request_id", IDS)
@each_row("suffix", ["apiversion", "read/8000"])
def test_an_id_is_returned_unchanged(gateway: GatewayProcess, suffix: str, request_id: str) -> None:
    target = gateway.mac if suffix == "apiversion" else TRACKER
    payload = json.dumps({"id": request_id, **get_parameters(suffix)}, ensure_ascii=False).encode()
    response = gateway.exchange(target, suffix, payload)
    assert response["id"] == request_id
    assert response["status"] == 0


@pytest.mark.rule("request-3", "response-5")
@each_row("suffix", OPERATIONS)
def test_a_request_without_id_has_a_response_without_id(gateway: GatewayProcess, suffix: str) -> None:
    response = gateway.exchange(gateway.mac, suffix, json.dumps(get_parameters(suffix)).encode())
    assert response["status"] == 0
    assert "id" not in response


@pytest.mark.rule("response-5", "response-22")
@each_row("request_id", [7, None, True, ["a"], {"a": "b"}])
def test_an_id_that_is_not_a_string_is_rejected_and_not_returned(
    gateway: GatewayProcess, request_id: object
) -> None:
    response = gateway.exchange(TRACKER, "read/8000", json.dumps({"id": request_id}).encode())
    assert response["status"] == 2
    assert "id" not in response


@pytest.mark.rule("request-5", "request-7")
@each_row("priority", [0, 1, 2, 3, 4, 2.0])
@each_row("suffix", OPERATIONS)
def test_every_valid_priority_is_accepted(gateway: GatewayProcess, suffix: str, priority: float) -> None:
    target = gateway.mac if suffix == "apiversion" else TRACKER
    assert gateway.request(target, suffix, priority=priority, **get_parameters(suffix))["status"] == 0


@pytest.mark.rule("request-5", "response-22")
@each_row("priority", [5, -1, "2", 1.5])
@each_row("suffix", OPERATIONS)
def test_any_other_priority_is_rejected(gateway: GatewayProcess, suffix: str, priority: object) -> None:
    target, expected_route = (
        (gateway.mac, FROM_GATEWAY) if suffix == "apiversion" else (TRACKER, ON_BEHALF_OF_DEVICE)
    )
    response = gateway.request(target, suffix, priority=priority, **get_parameters(suffix))
    since = "2.0.1" if suffix == "apiversion" else "2.0.0"
    assert check_response(gateway, response, expected_route, status=2, since=since) == {}


@pytest.mark.rule("request-5", "response-22")
@each_row("priority", [None, True, [], {}, 1e300])
def test_a_priority_that_is_not_a_small_integer_is_rejected(
    gateway: GatewayProcess, priority: object
) -> None:
    assert gateway.request(TRACKER, "read/8000", priority=priority)["status"] == 2


@pytest.mark.rule("request-2")
@each_row("suffix", ["apiversion", "read/8000", "read-decoded/model-number"])
def test_an_empty_payload_is_a_request_without_parameters(gateway: GatewayProcess, suffix: str) -> None:
    assert gateway.exchange(gateway.mac, suffix, b"")["status"] == 0


@pytest.mark.rule("response-22", "request-1")
@each_row(
    "payload",
    [b"{", b"nonsense", b"[]", b'"text"', b"null", b"7", b'{"id": "a"', b'{"id": "\xff"}', b"[" * 200],
)
@each_row("suffix", ["apiversion", "write/9802"])
def test_a_payload_that_is_not_a_json_object_in_utf_8_is_rejected(
    gateway: GatewayProcess, suffix: str, payload: bytes
) -> None:
    response = gateway.exchange(gateway.mac, suffix, payload)
    since = "2.0.1" if suffix == "apiversion" else "2.0.0"
    assert check_response(gateway, response, FROM_GATEWAY, status=2, since=since) == {}


@pytest.mark.rule("response-22")
def test_a_huge_payload_is_rejected(gateway: GatewayProcess) -> None:
    payload = json.dumps({"value": "00" * 100_000}).encode()
    assert gateway.exchange(WRITTEN, "write/9802", payload)["status"] == 2


def test_unknown_parameters_are_ignored(gateway: GatewayProcess) -> None:
    assert gateway.request(TRACKER, "read/8000", colour="blue", value=7, ext=None)["status"] == 0


@pytest.mark.rule("request-9", "response-25")
@each_row("target", [TRACKER, CLIP, EXTENDER, UNKNOWN_DEVICE])
def test_only_gateways_respond_with_an_api_version(gateway: GatewayProcess, target: str) -> None:
    response = gateway.request(target, "apiversion")
    assert check_response(gateway, response, ON_BEHALF_OF_DEVICE, status=5, since="2.0.1") == {}


@pytest.mark.rule("response-15", "request-10", "gateway-26")
@each_row(("identifier", "value"), [("8000", "0005"), ("8001", "030104"), ("8110", "02"), ("8003", TRACKER)])
def test_read_returns_a_value_in_hex(gateway: GatewayProcess, identifier: str, value: str) -> None:
    response = gateway.request(TRACKER, f"read/{identifier}")
    assert check_response(gateway, response, CONNECTED_TO_GATEWAY) == {"value": value}


@pytest.mark.rule("response-16", "request-11", "gateway-26")
@each_row(
    ("name", "value"),
    [
        ("model-number", 5),
        ("firmware-version", "3.1.4"),
        ("device-mode", "connected"),
        ("mac-address", TRACKER),
        ("normal-mode-advertisement-interval", {"interval": 200, "denominator": 10}),
    ],
)
def test_read_decoded_returns_a_value_as_json(gateway: GatewayProcess, name: str, value: object) -> None:
    response = gateway.request(TRACKER, f"read-decoded/{name}")
    assert check_response(gateway, response, CONNECTED_TO_GATEWAY) == {"value": value}


@pytest.mark.rule("response-17", "value-22", "value-24")
@each_row(
    ("device", "name", "fields"),
    [(TRACKER, "motion", {"transitionCounter", "isTransition"}), (DOOR, "temperature", {"rest"})],
)
def test_read_decoded_returns_extensions_in_ext(
    gateway: GatewayProcess, device: str, name: str, fields: set[str]
) -> None:
    rest = check_response(
        gateway, gateway.request(device, f"read-decoded/{name}"), ExpectedRoute(0, route=(device,))
    )
    assert rest.keys() == {"value", "ext"}
    assert rest["ext"].keys() == fields


@pytest.mark.rule("response-15", "response-17")
def test_a_raw_read_has_no_ext(gateway: GatewayProcess) -> None:
    rest = check_response(gateway, gateway.request(TRACKER, "read/8810"), CONNECTED_TO_GATEWAY)
    assert rest.keys() == {"value"}
    assert is_hex(rest["value"])
    assert len(rest["value"]) == 12


@pytest.mark.rule("response-24")
@each_row("suffix", ["reboot", "reads/8000", "READ/8000", "read-/8000", "request/read/8000"])
def test_an_unknown_operation_has_status_3(gateway: GatewayProcess, suffix: str) -> None:
    assert check_response(gateway, gateway.request(TRACKER, suffix), ON_BEHALF_OF_DEVICE, status=3) == {}


@pytest.mark.rule("topic-17", "topic-18", "topic-19")
@each_row("suffix", ["apiversion/8000", "read", "write", "read-decoded", "write-decoded"])
def test_a_missing_or_superfluous_identifier_fails(gateway: GatewayProcess, suffix: str) -> None:
    assert gateway.request(gateway.mac, suffix)["status"] in {2, 3, 4}


@pytest.mark.rule("response-26")
@each_row(
    "suffix", ["read/8831", "read/05", "write/8831", "read-decoded/no-such-name", "write-decoded/alarm"]
)
def test_an_identifier_that_the_device_lacks_has_status_4(gateway: GatewayProcess, suffix: str) -> None:
    assert gateway.request(TRACKER, suffix, value=True if "decoded" in suffix else "00")["status"] == 4


@pytest.mark.rule("response-28")
@each_row("suffix", ["read/8300", "write/8000", "read-decoded/soft-reset"])
def test_an_access_that_is_not_allowed_has_status_7(gateway: GatewayProcess, suffix: str) -> None:
    response = gateway.request(TRACKER, suffix, **({"value": "0005"} if suffix == "write/8000" else {}))
    assert check_response(gateway, response, CONNECTED_TO_GATEWAY, status=7) == {}


@pytest.mark.rule("response-27")
def test_a_decoded_read_without_a_layout_has_status_5(gateway: GatewayProcess) -> None:
    assert gateway.request(DOOR, "read-decoded/hall-effect-counter")["status"] == 5
    assert gateway.request(DOOR, "read/8831")["status"] == 0


@pytest.mark.rule("request-10", "topic-18")
@each_row("identifier", ["880G", "8", "80", "xyz", "AA00", "8000 "])
def test_a_malformed_identifier_has_status_4(gateway: GatewayProcess, identifier: str) -> None:
    response = gateway.request(BAND, f"read/{identifier}")
    assert response["status"] == 4
    assert isinstance(response["errorMessage"], str)
