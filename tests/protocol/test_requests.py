"""Requests: every operation with every parameter, decoded by gateways of each version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from rich.pretty import pretty_repr

from meshfleet.errors.protocol import (
    MalformedHex,
    MalformedInput,
    MalformedMac,
    MalformedPayload,
    UnencodableValue,
)
from meshfleet.protocol import requests
from meshfleet.protocol.codes import AccessType, Operation, Priority
from meshfleet.protocol.hex import Hex, Secret
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Mac, RequestId, Version
from meshfleet.protocol.requests import ApiVersionRequest, ReadRequest, WriteDecodedRequest, WriteRequest
from tests.protocol.strategies import exts, json_values, texts
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.protocol.requests import Request

EXTENDER = Mac("c4bd6a0a0b0c")
KEY = "00112233445566778899aabbccddeeff"
PUBLIC_KEY = "04" + "5e" * 64
ACCESS_JSON = (
    b'"extenderId":"C4BD6A0A0B0C","accessType":"unprovisioned",'
    b'"publicKey":"' + PUBLIC_KEY.encode() + b'","key":"' + KEY.encode() + b'"'
)
ACCESS_FIELDS: dict[str, Any] = {
    "id": RequestId("a-1"),
    "priority": Priority.HIGHEST,
    "extender_id": EXTENDER,
    "access_type": AccessType.UNPROVISIONED,
    "public_key": Secret(bytes.fromhex(PUBLIC_KEY)),
    "key": Secret(bytes.fromhex(KEY)),
}

EXAMPLES: dict[Operation, tuple[bytes, Request]] = {
    Operation.APIVERSION: (
        b'{"id":"a-1","priority":4}',
        ApiVersionRequest(id=RequestId("a-1"), priority=Priority.HIGHEST),
    ),
    Operation.READ: (b'{"id":"a-1","priority":4,%b}' % ACCESS_JSON, ReadRequest(**ACCESS_FIELDS)),
    Operation.READ_DECODED: (b'{"id":"a-1","priority":4,%b}' % ACCESS_JSON, ReadRequest(**ACCESS_FIELDS)),
    Operation.WRITE: (
        b'{"value":"00ff","id":"a-1","priority":4,%b}' % ACCESS_JSON,
        WriteRequest(value=Hex("00ff"), **ACCESS_FIELDS),
    ),
    Operation.WRITE_DECODED: (
        b'{"value":[1,"x"],"ext":{"y":null},"id":"a-1","priority":4,%b}' % ACCESS_JSON,
        WriteDecodedRequest(value=[1, "x"], ext={"y": None}, **ACCESS_FIELDS),
    ),
}
DEFAULTS: dict[Operation, Request] = {
    Operation.APIVERSION: ApiVersionRequest(id=UNSET, priority=Priority.MEDIUM),
    Operation.READ: ReadRequest(id=UNSET, priority=Priority.MEDIUM, extender_id=UNSET, key=UNSET),
    Operation.READ_DECODED: ReadRequest(access_type=UNSET, public_key=UNSET),
    Operation.WRITE: WriteRequest(value=None),
    Operation.WRITE_DECODED: WriteDecodedRequest(value=None, ext=UNSET),
}
REQUIRED_FIELDS: dict[Operation, dict[str, Any]] = {
    operation: {} if operation.is_answered else {"time": "2020-11-04T10:07:20.585Z", "type": 0}
    for operation in Operation
}
DEVICE_OPERATIONS = [Operation.READ, Operation.READ_DECODED, Operation.WRITE, Operation.WRITE_DECODED]


def _decode(operation: Operation, **fields: Any) -> Any:
    return requests.decode_request(operation, json.dumps(REQUIRED_FIELDS[operation] | fields).encode())


def _format_chain(error: BaseException | None) -> str:
    """Return the texts of an error and its causes."""
    if error is None:
        return ""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return f"{error} {error!r} {_format_chain(cause)}"


@pytest.mark.rule("request-1", "request-3", "request-5", "request-8", "request-10", "request-11")
@pytest.mark.rule("request-12", "request-13", "request-20", "request-21", "request-22", "request-23")
@each_row("operation", EXAMPLES)
def test_a_request_with_every_parameter_is_decoded_and_encoded_exactly(operation: Operation) -> None:
    payload, request = EXAMPLES[operation]
    assert requests.decode_request(operation, payload) == request
    assert requests.encode_request(request) == payload


@pytest.mark.rule("request-2", "request-6", "request-8", "request-10", "request-11", "request-12")
@pytest.mark.rule("request-13", "request-15", "request-16")
@each_row("payload", [b"", b"{}", b' {"somethingNew":1}'])
@each_row("operation", DEFAULTS)
def test_a_request_without_parameters_has_the_defaults(operation: Operation, payload: bytes) -> None:
    assert requests.decode_request(operation, payload) == DEFAULTS[operation]
    assert requests.encode_request(DEFAULTS[operation]) == b"{}"


@pytest.mark.rule("request-1")
@each_row("payload", [b" ", b"null", b"[]", b'"x"', b"{", b'{"id":"\xff"}', b"{}{}", b"\x00"])
@each_row("operation", Operation)
def test_a_payload_that_is_not_a_json_object_is_rejected(operation: Operation, payload: bytes) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        requests.decode_request(operation, payload)
    assert rejected.value.field == "payload"


@pytest.mark.rule("request-8")
@each_row("field", ["extenderId", "accessType", "publicKey", "key", "value", "ext"])
def test_apiversion_uses_only_the_common_parameters(field: str) -> None:
    assert _decode(Operation.APIVERSION, **{field: 0}) == ApiVersionRequest()


@pytest.mark.rule("request-3")
@given(st.sampled_from(Operation), texts)
def test_an_id_is_any_text_and_is_unchanged(operation: Operation, text: str) -> None:
    request = _decode(operation, id=text)
    assert request.id == text
    assert json.loads(requests.encode_request(request))["id"] == text


@pytest.mark.rule("request-5")
@each_row("number", [0, 1, 2, 3, 4, 0.0, 2.0, 4.0])
@each_row("operation", Operation)
def test_every_operation_accepts_a_priority_from_0_to_4(operation: Operation, number: float) -> None:
    assert _decode(operation, priority=number).priority is Priority(int(number))


@pytest.mark.rule("request-6")
@each_row("operation", Operation)
def test_a_request_without_priority_has_priority_2(operation: Operation) -> None:
    assert _decode(operation).priority == 2


NOT_TEXT: list[Any] = [None, True, 1, 1.5, [], {}]
WRONG: dict[str, list[Any]] = {
    "id": NOT_TEXT,
    "priority": [None, True, "2", -1, 5, 2.5, [], {}, 10**400],
    "extenderId": [*NOT_TEXT, "", "c4bd6a0a0b0", "c4bd6a0a0b0g", "c4-bd-6a-0a-0b-0c"],
    "accessType": [*NOT_TEXT, "", "Legacy", "provisioned"],
    "publicKey": [*NOT_TEXT, "5", "5e5", "xx"],
    "key": [*NOT_TEXT, "5", "5e5", "xx"],
}


@pytest.mark.rule("request-3", "request-5", "request-20", "request-21", "request-22", "request-23")
@each_row(("field", "wrong"), [(field, wrong) for field in WRONG for wrong in WRONG[field]])
@each_row("operation", DEVICE_OPERATIONS)
def test_an_error_names_the_wrong_parameter(operation: Operation, field: str, wrong: Any) -> None:
    with pytest.raises(MalformedInput) as rejected:
        _decode(operation, **{field: wrong})
    assert rejected.value.field == field


NOT_HEX: list[Any] = [True, 0, 1.5, [], {}, "0", "abc", "0x00", "zz"]
NOT_AN_OBJECT: list[Any] = [None, True, 0, 1.5, [], "", "x"]


@pytest.mark.rule("request-12", "request-13")
@each_row(
    ("operation", "field", "wrong"),
    [
        *((Operation.WRITE, "value", wrong) for wrong in NOT_HEX),
        *((Operation.WRITE_DECODED, "ext", wrong) for wrong in NOT_AN_OBJECT),
    ],
)
def test_an_error_names_a_wrong_value_or_ext(operation: Operation, field: str, wrong: Any) -> None:
    with pytest.raises(MalformedInput) as rejected:
        _decode(operation, **{field: wrong})
    assert rejected.value.field == field


@pytest.mark.rule("request-14")
@each_row("value", ["c0ffee", "C0FFEE", "c0FFee"])
def test_a_value_to_write_is_accepted_in_any_case(value: str) -> None:
    assert bytes.fromhex(_decode(Operation.WRITE, value=value).value) == b"\xc0\xff\xee"


@pytest.mark.rule("id-26")
def test_a_value_is_encoded_in_lower_case() -> None:
    assert requests.encode_request(WriteRequest(value=Hex("C0FFee"))) == b'{"value":"c0ffee"}'


@pytest.mark.rule("request-15", "request-16", "request-17")
@each_row(
    ("operation", "fields", "expected"),
    [
        (Operation.WRITE, {}, None),
        (Operation.WRITE, {"value": None}, None),
        (Operation.WRITE, {"value": ""}, None),
        (Operation.WRITE, {"value": "00"}, "00"),
        (Operation.WRITE_DECODED, {}, None),
        (Operation.WRITE_DECODED, {"value": None}, None),
        (Operation.WRITE_DECODED, {"value": ""}, ""),
        (Operation.WRITE_DECODED, {"value": 0}, 0),
        (Operation.WRITE_DECODED, {"value": []}, []),
    ],
)
def test_null_is_written_only_for_a_missing_value(
    operation: Operation, fields: dict[str, Any], expected: Any
) -> None:
    request = _decode(operation, **fields)
    assert request.value == expected
    assert requests.decode_request(operation, requests.encode_request(request)) == request


@pytest.mark.rule("request-13")
@given(json_values, exts)
def test_write_decoded_accepts_any_json_value_and_any_extension(value: Any, ext: dict[str, Any]) -> None:
    assert _decode(Operation.WRITE_DECODED, value=value, ext=ext) == WriteDecodedRequest(value=value, ext=ext)


@pytest.mark.rule("request-19")
def test_ext_is_encoded_only_for_an_identifier_with_extensions() -> None:
    request = _decode(Operation.WRITE_DECODED, value=16, ext={"transitionCounter": 3, "isTransition": True})
    assert BUILTIN_CATALOGUE.encode("motion", request.value, request.ext).hex() == "100000000301"
    with pytest.raises(UnencodableValue) as refused:
        BUILTIN_CATALOGUE.encode("temperature", request.value, request.ext)
    assert refused.value.field.startswith("ext")


@pytest.mark.rule("request-20", "id-27")
@each_row("text", ["c4bd6a0a0b0c", "C4BD6A0A0B0C", "C4bd6a0A0b0c"])
@each_row("operation", DEVICE_OPERATIONS)
def test_an_extender_id_is_accepted_in_any_case_and_encoded_in_upper_case(
    operation: Operation, text: str
) -> None:
    request = _decode(operation, extenderId=text)
    assert request.extender_id == EXTENDER
    assert json.loads(requests.encode_request(request)) == {"extenderId": "C4BD6A0A0B0C"}


@pytest.mark.rule("request-21")
@each_row("access_type", ["unprovisioned", "legacy"])
@each_row("operation", DEVICE_OPERATIONS)
def test_there_are_two_access_types(operation: Operation, access_type: str) -> None:
    assert _decode(operation, accessType=access_type).access_type is AccessType(access_type)


@pytest.mark.rule("request-22", "request-23")
@each_row("field", ["publicKey", "key"])
@each_row("operation", DEVICE_OPERATIONS)
def test_a_key_is_accepted_in_any_case_and_shown_only_in_the_payload(
    operation: Operation, field: str
) -> None:
    request = _decode(operation, **{field: KEY.upper()})
    assert json.loads(requests.encode_request(request)) == {field: KEY}
    for shown in (repr(request), str(request), pretty_repr(request), f"{request}"):
        assert KEY not in shown.lower()


@each_row("field", ["publicKey", "key"])
@each_row("wrong", [KEY[:-1], KEY + "zz", [KEY], {KEY: KEY}, int(KEY[2:20])])
def test_an_error_about_a_key_does_not_contain_it(field: str, wrong: Any) -> None:
    with pytest.raises((MalformedHex, MalformedPayload)) as rejected:
        _decode(Operation.READ, **{field: wrong})
    assert KEY[2:20] not in _format_chain(rejected.value)


@each_row("suffix", [b',"id":"\xff"}', b',"id":"\\ud800"}', b',"id":1e999}', b',"id":1}', b"}x", b""])
def test_an_error_about_a_payload_does_not_contain_its_key(suffix: bytes) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        requests.decode_request(Operation.READ, b'{"key":"%b"%b' % (KEY.encode(), suffix))
    assert KEY not in _format_chain(rejected.value)


@each_row("field", ["accessType", "extenderId"])
def test_an_error_repeats_only_the_beginning_of_a_long_text(field: str) -> None:
    with pytest.raises((MalformedMac, MalformedPayload)) as rejected:
        _decode(Operation.READ, **{field: "x" * 5000})
    assert len(str(rejected.value)) < 200


@each_row(
    ("version", "operation", "ignored"),
    [
        ("1.2.0", Operation.READ, ["extenderId", "accessType", "publicKey", "key"]),
        ("1.2.0", Operation.WRITE_DECODED, ["ext", "extenderId", "accessType", "publicKey", "key"]),
        ("2.0.0", Operation.WRITE_DECODED, ["extenderId", "accessType", "publicKey", "key"]),
        ("2.0.1", Operation.WRITE, ["extenderId", "accessType", "publicKey", "key"]),
        ("2.1.0", Operation.READ_DECODED, ["accessType", "publicKey", "key"]),
    ],
)
def test_an_older_gateway_ignores_newer_parameters(
    version: str, operation: Operation, ignored: list[str]
) -> None:
    payload = json.dumps(dict.fromkeys(ignored, 0)).encode()
    assert requests.decode_request(operation, payload, version=Version.parse(version)) == DEFAULTS[operation]
    for field in ignored:
        with pytest.raises(MalformedInput):
            requests.decode_request(operation, json.dumps({field: 0}).encode())


@each_row("version", ["2.2.0", "2.4.0", "3.0.0"])
@each_row("operation", EXAMPLES)
def test_a_newer_gateway_decodes_every_parameter(version: str, operation: Operation) -> None:
    payload, request = EXAMPLES[operation]
    assert requests.decode_request(operation, payload, version=Version.parse(version)) == request
