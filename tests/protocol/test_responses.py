"""Responses: common fields, fields of each operation, and fields that older gateways omit."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedInput, MalformedPayload, MalformedTopic
from meshfleet.protocol import responses
from meshfleet.protocol.codes import Operation, Origin, Status
from meshfleet.protocol.hex import Hex
from meshfleet.protocol.ids import Mac, RequestId, Version
from meshfleet.protocol.responses import ApiVersionResponse, ReadDecodedResponse, ReadResponse, Response
from tests.protocol.strategies import exts, json_values, texts, wholes
from tests.row_tables import each_row

AT = datetime(2020, 11, 4, 10, 7, 20, 585_000, tzinfo=UTC)
COMMON = (
    b'{"time":"2020-11-04T10:07:20.585Z","status":0,"responseTime":12.5,"origin":1,"id":"a-1",'
    b'"errorMessage":"none","route":"r","extenderId":"C4BD6A0A0B0C","extenderRoute":"x"'
)
FIELDS: dict[str, Any] = {
    "time": AT,
    "status": 0,
    "response_time": 12.5,
    "origin": Origin.UNCONNECTED,
    "id": RequestId("a-1"),
    "error_message": "none",
    "route": "r",
    "extender_id": Mac("c4bd6a0a0b0c"),
    "extender_route": "x",
}
EXAMPLES: dict[Operation, tuple[bytes, Response]] = {
    Operation.APIVERSION: (
        COMMON + b',"version":"2.4.0"}',
        ApiVersionResponse(version=Version(2, 4, 0), **FIELDS),
    ),
    Operation.READ: (COMMON + b',"value":"00ff"}', ReadResponse(value=Hex("00ff"), **FIELDS)),
    Operation.READ_DECODED: (
        COMMON + b',"value":[1,"x"],"ext":{"y":null}}',
        ReadDecodedResponse(value=[1, "x"], ext={"y": None}, **FIELDS),
    ),
    Operation.WRITE: (COMMON + b"}", Response(**FIELDS)),
    Operation.WRITE_DECODED: (COMMON + b"}", Response(**FIELDS)),
}
REQUIRED_FIELDS = {Operation.APIVERSION: "version", Operation.READ: "value", Operation.READ_DECODED: "value"}


def _example_fields(operation: Operation) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(EXAMPLES[operation][0])
    return fields


def _decode(operation: Operation, fields: dict[str, Any]) -> Response:
    return responses.decode_response(operation, json.dumps(fields).encode())


@pytest.mark.rule("response-1", "response-2", "response-3", "response-4", "response-6", "response-14")
@pytest.mark.rule("response-15", "response-16", "response-17", "response-18", "version-9")
@each_row("operation", EXAMPLES)
def test_a_response_with_every_field_is_decoded_and_encoded_exactly(operation: Operation) -> None:
    payload, response = EXAMPLES[operation]
    assert responses.decode_response(operation, payload) == response
    assert type(responses.decode_response(operation, payload)) is type(response)
    assert responses.encode_response(operation, response) == payload


@pytest.mark.rule("response-1", "response-2")
@each_row("field", ["time", "status"])
@each_row("operation", EXAMPLES)
def test_a_response_without_time_or_status_is_rejected(operation: Operation, field: str) -> None:
    fields = _example_fields(operation)
    del fields[field]
    with pytest.raises(MalformedPayload) as rejected:
        _decode(operation, fields)
    assert (rejected.value.field, rejected.value.reason) == (field, "is missing")


@each_row("operation", EXAMPLES)
def test_all_other_common_fields_may_be_absent(operation: Operation) -> None:
    required = {"time", "status", REQUIRED_FIELDS.get(operation)}
    fields = {name: value for name, value in _example_fields(operation).items() if name in required}
    assert json.loads(responses.encode_response(operation, _decode(operation, fields))) == fields


@pytest.mark.rule("response-14", "response-15", "response-16")
@each_row(("operation", "field"), REQUIRED_FIELDS.items())
def test_a_successful_response_without_the_requested_value_is_rejected(
    operation: Operation, field: str
) -> None:
    fields = _example_fields(operation)
    del fields[field]
    for success in (0, 0.0):
        with pytest.raises(MalformedPayload) as rejected:
            _decode(operation, fields | {"status": success})
        assert (rejected.value.field, rejected.value.reason) == (field, "is missing")


@pytest.mark.rule("response-19")
@each_row("status", [1, 9, 11, 200, -1])
@each_row(("operation", "field"), REQUIRED_FIELDS.items())
def test_a_failed_response_without_the_requested_value_is_decoded(
    operation: Operation, field: str, status: int
) -> None:
    fields = _example_fields(operation) | {"status": status}
    del fields[field]
    assert _decode(operation, fields).status == status


NOT_TEXT: list[Any] = [None, True, 1, 1.5, [], {}]
WRONG: dict[str, list[Any]] = {
    "time": [*NOT_TEXT, "", "now", "2020-11-04"],
    "status": [None, True, "0", 0.5, [], {}, 2**53 + 2, 10**400],
    "responseTime": [None, True, "1", -1, -0.5, [], {}],
    "origin": [None, False, "0", 0.5, [], {}, -1, 2, 15, 17, 31, 33, 64, 10**400],
    "id": NOT_TEXT,
    "errorMessage": NOT_TEXT,
    "route": NOT_TEXT,
    "extenderId": NOT_TEXT,
    "extenderRoute": NOT_TEXT,
    "version": [*NOT_TEXT, "", "2", "2.x.0", "two"],
    "value": [*NOT_TEXT, "0", "0x00", "zz"],
    "ext": [None, True, "x", 1, 1.5, []],
}


@pytest.mark.rule("response-1", "response-2", "response-3", "response-4", "response-6", "response-14")
@pytest.mark.rule("response-15", "response-17")
@each_row(
    ("operation", "field", "wrong"),
    [
        pytest.param(operation, field, wrong, id=f"{operation}-{field}-{str(wrong)[:20]}")
        for operation in EXAMPLES
        for field in _example_fields(operation)
        for wrong in WRONG[field]
        if (operation, field) != (Operation.READ_DECODED, "value")
    ],
)
def test_an_error_names_the_invalid_field(operation: Operation, field: str, wrong: Any) -> None:
    with pytest.raises(MalformedInput) as rejected:
        _decode(operation, _example_fields(operation) | {field: wrong})
    assert rejected.value.field == field


@pytest.mark.rule("response-4")
@each_row(
    ("number", "origin"),
    [
        (0, Origin.CONNECTED),
        (1, Origin.UNCONNECTED),
        (16, Origin.EXTENDER),
        (32, Origin.GATEWAY),
        (0.0, Origin.CONNECTED),
        (32.0, Origin.GATEWAY),
    ],
)
@each_row("operation", EXAMPLES)
def test_there_are_four_origins(operation: Operation, number: float, origin: Origin) -> None:
    assert _decode(operation, _example_fields(operation) | {"origin": number}).origin is origin
    assert len(Origin) == 4


@pytest.mark.rule("response-19", "response-20")
@each_row(
    ("code", "status"),
    [
        (0, Status.OK),
        (1, Status.FAILED),
        (2, Status.INVALID_REQUEST),
        (3, Status.UNKNOWN_OPERATION),
        (4, Status.UNKNOWN_IDENTIFIER),
        (5, Status.NOT_SUPPORTED),
        (6, Status.INVALID_VALUE),
        (7, Status.ACCESS_NOT_ALLOWED),
        (8, Status.BUSY),
        (9, Status.TIMEOUT),
        (10, Status.UNREACHABLE),
        (11, Status.ACCESS_DENIED),
    ],
)
def test_a_documented_status_has_its_name(code: int, status: Status) -> None:
    assert _decode(Operation.WRITE, _example_fields(Operation.WRITE) | {"status": code}).status == status


@pytest.mark.rule("response-21")
@given(st.sampled_from(sorted(EXAMPLES)), wholes)
def test_any_other_status_is_unchanged(operation: Operation, status: int) -> None:
    response = _decode(operation, _example_fields(operation) | {"status": status})
    assert response.status == status
    assert json.loads(responses.encode_response(operation, response))["status"] == status


@pytest.mark.rule("response-3")
@each_row("number", [0, 7, 12.5, 60_000.0])
def test_a_response_time_is_a_number_of_milliseconds(number: float) -> None:
    fields = _example_fields(Operation.WRITE) | {"responseTime": number}
    assert _decode(Operation.WRITE, fields).response_time == number


@pytest.mark.rule("response-6", "response-13")
@given(texts, texts, texts)
def test_route_and_message_may_be_any_text(route: str, extender_route: str, message: str) -> None:
    fields = {"route": route, "extenderRoute": extender_route, "errorMessage": message}
    response = _decode(Operation.WRITE, _example_fields(Operation.WRITE) | fields)
    assert (response.route, response.extender_route, response.error_message) == (
        route,
        extender_route,
        message,
    )


@pytest.mark.rule("response-16", "response-17")
@given(json_values, exts)
def test_a_decoded_value_is_any_json_value_with_any_extension(value: Any, ext: dict[str, Any]) -> None:
    response = _decode(
        Operation.READ_DECODED, _example_fields(Operation.READ_DECODED) | {"value": value, "ext": ext}
    )
    assert response == ReadDecodedResponse(value=value, ext=ext, **FIELDS)


@pytest.mark.rule("response-17")
def test_a_decoded_value_without_extensions_has_no_ext() -> None:
    response = msgspec.structs.replace(EXAMPLES[Operation.READ_DECODED][1], ext=msgspec.UNSET)
    assert "ext" not in json.loads(responses.encode_response(Operation.READ_DECODED, response))


@pytest.mark.rule("id-26")
def test_a_raw_value_is_encoded_in_lower_case() -> None:
    response = ReadResponse(time=AT, status=0, value=Hex("C0FFee"))
    assert json.loads(responses.encode_response(Operation.READ, response))["value"] == "c0ffee"


@pytest.mark.rule("response-18", "request-25")
@each_row("operation", [Operation.WRITE, Operation.WRITE_DECODED])
def test_the_response_to_a_write_has_no_value(operation: Operation) -> None:
    response = _decode(operation, _example_fields(operation) | {"value": "00", "ext": 0, "version": 0})
    assert response == Response(**FIELDS)


SINCE_2_0_0 = {"responseTime", "origin", "route", "extenderId", "extenderRoute"}
SINCE_2_0_1 = {"responseTime", "origin", "route"}


@pytest.mark.rule("response-3", "response-4", "version-4", "version-5")
@each_row(
    ("version", "missing_fields", "missing_apiversion_fields"),
    [
        ("1.2.0", SINCE_2_0_0, SINCE_2_0_0),
        ("2.0.0", set(), SINCE_2_0_1),
        ("2.0.1", set(), set()),
        ("2.4.0", set(), set()),
    ],
)
@each_row("operation", EXAMPLES)
def test_an_older_gateway_omits_newer_fields(
    operation: Operation, version: str, missing_fields: set[str], missing_apiversion_fields: set[str]
) -> None:
    payload, response = EXAMPLES[operation]
    missing = missing_apiversion_fields if operation is Operation.APIVERSION else missing_fields
    written = json.loads(responses.encode_response(operation, response, version=Version.parse(version)))
    assert written == {name: value for name, value in json.loads(payload).items() if name not in missing}


@each_row("operation", [Operation.ACK, Operation.ACK_DECODED])
def test_there_is_no_response_to_an_ack(operation: Operation) -> None:
    with pytest.raises(MalformedTopic):
        responses.decode_response(operation, COMMON + b"}")


@each_row("payload", [b"", b"[]", b"null", b"{", COMMON + b',"x":"\xff"}'])
@each_row("operation", EXAMPLES)
def test_a_payload_that_is_not_a_json_object_is_rejected(operation: Operation, payload: bytes) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        responses.decode_response(operation, payload)
    assert rejected.value.field == "payload"
