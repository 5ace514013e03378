"""Requests: topics, common properties, priorities, and what is no valid request."""

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

ON_THE_GATEWAY = ExpectedRoute(0, route=(TRACKER,))

OPERATIONS = {
    "apiversion": None,
    "read/8000": None,
    "read-decoded/model-number": None,
    "write/9802": "04",
    "write-decoded/tx-power": 4,
}
"""Every operation that is answered, with a value to write."""

IDS = ["1", "", " ", "Zürich/東京/🌡", 'a "quoted" \\ id', "\u0000\n", "x" * 1000, "null"]


def parameters(suffix: str) -> dict[str, Any]:
    """What an operation needs."""
    return {} if OPERATIONS[suffix] is None else {"value": OPERATIONS[suffix]}


@differs_by_version()
@pytest.mark.rule("topic-2", "topic-3", "topic-4", "topic-5", "request-1", "request-24", "response-18")
@each_row("suffix", OPERATIONS)
def test_every_operation_on_the_gateway_itself_is_answered_on_the_topic_that_belongs_to_it(
    gateway: GatewayProcess, suffix: str
) -> None:
    response = gateway.request(gateway.mac, suffix, **parameters(suffix))
    since = "2.0.1" if suffix == "apiversion" else "2.0.0"
    rest = check_response(gateway, response, FROM_GATEWAY, since=since)
    data: dict[str, Any] = {"version": gateway.variant.version} if suffix == "apiversion" else {}
    data |= {"value": "2011"} if suffix == "read/8000" else {}
    data |= {"value": 0x2011} if suffix == "read-decoded/model-number" else {}
    assert rest == data


@pytest.mark.rule("topic-2", "topic-3", "topic-4", "request-24", "response-18", "gateway-14")
@each_row("suffix", list(OPERATIONS)[1:])
def test_every_operation_on_a_device_is_answered_on_the_topic_that_belongs_to_it(
    gateway: GatewayProcess, suffix: str
) -> None:
    response = gateway.request(TRACKER, suffix, **parameters(suffix))
    rest = check_response(gateway, response, ON_THE_GATEWAY)
    assert rest == ({"value": {"read/8000": "0005"}.get(suffix, 5)} if suffix.startswith("read") else {})


@pytest.mark.rule("request-3", "response-5", "id-13")
@each_row("given", IDS)
@each_row("suffix", ["apiversion", "read/8000"])
def test_an_id_comes_back_as_it_is(gateway: GatewayProcess, suffix: str, given: str) -> None:
    target = gateway.mac if suffix == "apiversion" else TRACKER
    payload = json.dumps({"id": given, **parameters(suffix)}, ensure_ascii=False).encode()
    response = gateway.exchange(target, suffix, payload)
    assert response["id"] == given
    assert response["status"] == 0


@pytest.mark.rule("request-3", "response-5")
@each_row("suffix", OPERATIONS)
def test_without_an_id_there_is_none_in_the_response(gateway: GatewayProcess, suffix: str) -> None:
    response = gateway.exchange(gateway.mac, suffix, json.dumps(parameters(suffix)).encode())
    assert response["status"] == 0
    assert "id" not in response


@pytest.mark.rule("response-5", "response-22")
@each_row("given", [7, None, True, ["a"], {"a": "b"}])
def test_an_id_that_is_no_text_is_refused_and_not_repeated(gateway: GatewayProcess, given: object) -> None:
    response = gateway.exchange(TRACKER, "read/8000", json.dumps({"id": given}).encode())
    assert response["status"] == 2
    assert "id" not in response


@pytest.mark.rule("request-5", "request-7")
@each_row("priority", [0, 1, 2, 3, 4, 2.0])
@each_row("suffix", OPERATIONS)
def test_every_priority_is_taken(gateway: GatewayProcess, suffix: str, priority: float) -> None:
    target = gateway.mac if suffix == "apiversion" else TRACKER
    assert gateway.request(target, suffix, priority=priority, **parameters(suffix))["status"] == 0


@pytest.mark.rule("request-5", "response-22")
@each_row("priority", [5, -1, "2", 1.5])
@each_row("suffix", OPERATIONS)
def test_any_other_priority_is_refused(gateway: GatewayProcess, suffix: str, priority: object) -> None:
    target, way = (gateway.mac, FROM_GATEWAY) if suffix == "apiversion" else (TRACKER, ON_BEHALF_OF_DEVICE)
    response = gateway.request(target, suffix, priority=priority, **parameters(suffix))
    since = "2.0.1" if suffix == "apiversion" else "2.0.0"
    assert check_response(gateway, response, way, status=2, since=since) == {}


@pytest.mark.rule("request-5", "response-22")
@each_row("priority", [None, True, [], {}, 1e300])
def test_a_priority_that_is_no_number_of_the_table_is_refused(
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
def test_what_is_no_json_object_in_utf_8_is_refused(
    gateway: GatewayProcess, suffix: str, payload: bytes
) -> None:
    response = gateway.exchange(gateway.mac, suffix, payload)
    since = "2.0.1" if suffix == "apiversion" else "2.0.0"
    assert check_response(gateway, response, FROM_GATEWAY, status=2, since=since) == {}


@pytest.mark.rule("response-22")
def test_a_huge_payload_is_refused(gateway: GatewayProcess) -> None:
    payload = json.dumps({"value": "00" * 100_000}).encode()
    assert gateway.exchange(WRITTEN, "write/9802", payload)["status"] == 2


def test_parameters_that_nobody_knows_are_not_looked_at(gateway: GatewayProcess) -> None:
    assert gateway.request(TRACKER, "read/8000", colour="blue", value=7, ext=None)["status"] == 0


@pytest.mark.rule("request-9", "response-25")
@each_row("target", [TRACKER, CLIP, EXTENDER, UNKNOWN_DEVICE])
def test_the_api_version_is_told_by_gateways_alone(gateway: GatewayProcess, target: str) -> None:
    response = gateway.request(target, "apiversion")
    assert check_response(gateway, response, ON_BEHALF_OF_DEVICE, status=5, since="2.0.1") == {}


@pytest.mark.rule("response-15", "request-10", "gateway-26")
@each_row(("identifier", "value"), [("8000", "0005"), ("8001", "030104"), ("8110", "02"), ("8003", TRACKER)])
def test_read_gives_a_value_in_hex(gateway: GatewayProcess, identifier: str, value: str) -> None:
    response = gateway.request(TRACKER, f"read/{identifier}")
    assert check_response(gateway, response, ON_THE_GATEWAY) == {"value": value}


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
def test_read_decoded_gives_a_value_as_json(gateway: GatewayProcess, name: str, value: object) -> None:
    response = gateway.request(TRACKER, f"read-decoded/{name}")
    assert check_response(gateway, response, ON_THE_GATEWAY) == {"value": value}


@pytest.mark.rule("response-17", "value-22", "value-24")
@each_row(
    ("device", "name", "fields"),
    [(TRACKER, "motion", {"transitionCounter", "isTransition"}), (DOOR, "temperature", {"rest"})],
)
def test_read_decoded_gives_extensions_in_ext(
    gateway: GatewayProcess, device: str, name: str, fields: set[str]
) -> None:
    rest = check_response(
        gateway, gateway.request(device, f"read-decoded/{name}"), ExpectedRoute(0, route=(device,))
    )
    assert rest.keys() == {"value", "ext"}
    assert rest["ext"].keys() == fields


@pytest.mark.rule("response-15", "response-17")
def test_a_raw_read_has_no_ext(gateway: GatewayProcess) -> None:
    rest = check_response(gateway, gateway.request(TRACKER, "read/8810"), ON_THE_GATEWAY)
    assert rest.keys() == {"value"}
    assert is_hex(rest["value"])
    assert len(rest["value"]) == 12


@pytest.mark.rule("response-24")
@each_row("suffix", ["reboot", "reads/8000", "READ/8000", "read-/8000", "request/read/8000"])
def test_an_unknown_operation_is_answered_with_status_3(gateway: GatewayProcess, suffix: str) -> None:
    assert check_response(gateway, gateway.request(TRACKER, suffix), ON_BEHALF_OF_DEVICE, status=3) == {}


@pytest.mark.rule("topic-17", "topic-18", "topic-19")
@each_row("suffix", ["apiversion/8000", "read", "write", "read-decoded", "write-decoded"])
def test_an_identifier_too_many_or_too_few_is_a_failure(gateway: GatewayProcess, suffix: str) -> None:
    assert gateway.request(gateway.mac, suffix)["status"] in {2, 3, 4}


@pytest.mark.rule("response-26")
@each_row(
    "suffix", ["read/8831", "read/05", "write/8831", "read-decoded/no-such-name", "write-decoded/alarm"]
)
def test_an_identifier_that_the_device_lacks_is_answered_with_status_4(
    gateway: GatewayProcess, suffix: str
) -> None:
    assert gateway.request(TRACKER, suffix, value=True if "decoded" in suffix else "00")["status"] == 4


@pytest.mark.rule("response-28")
@each_row("suffix", ["read/8300", "write/8000", "read-decoded/soft-reset"])
def test_an_access_that_is_not_allowed_is_answered_with_status_7(
    gateway: GatewayProcess, suffix: str
) -> None:
    response = gateway.request(TRACKER, suffix, **({"value": "0005"} if suffix == "write/8000" else {}))
    assert check_response(gateway, response, ON_THE_GATEWAY, status=7) == {}


@pytest.mark.rule("response-27")
def test_what_has_no_decoded_form_is_answered_with_status_5(gateway: GatewayProcess) -> None:
    assert gateway.request(DOOR, "read-decoded/hall-effect-counter")["status"] == 5
    assert gateway.request(DOOR, "read/8831")["status"] == 0


@pytest.mark.rule("request-10", "topic-18")
@each_row("identifier", ["880G", "8", "80", "xyz", "AA00", "8000 "])
def test_a_malformed_identifier_is_answered_with_status_4(gateway: GatewayProcess, identifier: str) -> None:
    response = gateway.request(BAND, f"read/{identifier}")
    assert response["status"] == 4
    assert isinstance(response["errorMessage"], str)
