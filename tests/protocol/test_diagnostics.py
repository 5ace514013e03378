"""Firmware requests of gateways on the diagnostics topics, and their responses."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedInput, MalformedPayload, MalformedTopic
from meshfleet.protocol import diagnostics
from meshfleet.protocol.diagnostics import FirmwareType, ImageLocation, ImageRequest
from meshfleet.protocol.hex import Hex
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from tests.protocol.strategies import macs, texts, versions
from tests.row_tables import each_row

GUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
IMAGE_REQUEST = (
    b'{"id":"0f8fad5b-d9cb-469f-a165-70867728950e",'
    b'"params":{"modelNumber":"000F","version":"2.4.0-beta.3","firmwareType":1}}'
)
DECODED_IMAGE_REQUEST = ImageRequest(
    model_number=ModelNumber("000F"),
    version=Version(2, 4, 0, 3),
    firmware_type=FirmwareType.NORDIC_PACKAGE,
)
RESPONSE = (
    b'{"id":"0f8fad5b-d9cb-469f-a165-70867728950e","success":true,'
    b'"result":{"uri":"https://fleet/fw?a=b","fileName":"mt.raucb","firmwareType":2}}'
)
DECODED_RESPONSE = ImageLocation(
    uri="https://fleet/fw?a=b", file_name="mt.raucb", firmware_type=FirmwareType.RAUC_BUNDLE
)
CHECKED_RESPONSE = RESPONSE[:-2] + b',"sha256":"' + b"0f" * 32 + b'","size":123456}}'
DECODED_CHECKED_RESPONSE = msgspec.structs.replace(DECODED_RESPONSE, sha256=Hex("0f" * 32), size=123456)
PARAMS: dict[str, Any] = json.loads(IMAGE_REQUEST)["params"]
RESULT: dict[str, Any] = json.loads(RESPONSE)["result"]


def _decode_image_request(**params: Any) -> ImageRequest:
    return diagnostics.decode_image_request(json.dumps({"id": GUID, "params": params}).encode())[1]


def _decode_image_response(**result: Any) -> ImageLocation | None:
    envelope = {"id": GUID, "success": True, "result": result}
    return diagnostics.decode_image_response(json.dumps(envelope).encode())[1]


@pytest.mark.rule("firmware-15", "topic-21", "topic-22")
@given(macs)
def test_each_gateway_has_its_own_request_topic(gateway: Mac) -> None:
    topic = diagnostics.format_image_request_topic(gateway)
    assert topic == f"meshtech/diagnostics/{gateway}/server-command/firmware"
    assert diagnostics.parse_image_request_topic(topic) == gateway
    assert topic.replace(gateway, "+") == diagnostics.IMAGE_REQUEST_FILTER


@pytest.mark.rule("firmware-18", "topic-21")
@given(macs)
def test_each_gateway_has_its_own_response_topic(gateway: Mac) -> None:
    topic = diagnostics.format_image_response_topic(gateway)
    assert topic == f"meshtech/diagnostics/{gateway}/server-response/firmware"


@pytest.mark.rule("firmware-15", "topic-9", "topic-22")
@each_row(
    "topic",
    [
        "",
        "meshtech/diagnostics/C4BD6A010203/server-command/firmware",
        "meshtech/diagnostics/c4bd6a01020/server-command/firmware",
        "meshtech/diagnostics/c4bd6a010203/server-response/firmware",
        "meshtech/diagnostics/c4bd6a010203/server-command/other",
        "meshtech/diagnostics/c4bd6a010203/server-command/firmware/",
        "meshtech/diagnostics/c4bd6a010203/server-command/firmware\n",
        "meshtech/diagnostics/+/server-command/firmware",
        "site/meshtech/diagnostics/c4bd6a010203/server-command/firmware",
    ],
)
def test_no_other_topic_is_a_request(topic: str) -> None:
    with pytest.raises(MalformedTopic):
        diagnostics.parse_image_request_topic(topic)


@pytest.mark.rule("firmware-15", "firmware-16")
def test_a_request_is_decoded_and_encoded_exactly() -> None:
    assert diagnostics.decode_image_request(IMAGE_REQUEST) == (GUID, DECODED_IMAGE_REQUEST)
    assert diagnostics.encode_image_request(GUID, DECODED_IMAGE_REQUEST) == IMAGE_REQUEST


@pytest.mark.rule("firmware-18", "firmware-19")
def test_a_response_is_decoded_and_encoded_exactly() -> None:
    assert diagnostics.decode_image_response(RESPONSE) == (GUID, DECODED_RESPONSE)
    assert diagnostics.encode_image_response(GUID, DECODED_RESPONSE) == RESPONSE


@pytest.mark.rule("firmware-35")
def test_a_response_may_contain_hash_and_size_of_the_image() -> None:
    assert diagnostics.decode_image_response(CHECKED_RESPONSE) == (GUID, DECODED_CHECKED_RESPONSE)
    assert diagnostics.encode_image_response(GUID, DECODED_CHECKED_RESPONSE) == CHECKED_RESPONSE


@pytest.mark.rule("firmware-35")
def test_a_response_may_contain_only_the_hash_or_the_size() -> None:
    for fields in ({}, {"sha256": "0f" * 32}, {"size": 0}):
        assert _decode_image_response(**RESULT | fields) == msgspec.structs.replace(
            DECODED_RESPONSE, **fields
        )


@pytest.mark.rule("firmware-35")
def test_a_hash_is_accepted_in_any_case_and_encoded_in_lower_case() -> None:
    answer = _decode_image_response(**RESULT | {"sha256": "0F" * 32, "size": 123456.0})
    assert answer is not None
    assert diagnostics.encode_image_response(GUID, answer) == CHECKED_RESPONSE


@pytest.mark.rule("firmware-35")
@each_row("field", ["md5", "expires"])
def test_a_field_that_the_gateway_does_not_know_is_ignored(field: str) -> None:
    assert _decode_image_response(**RESULT | {field: "x"}) == DECODED_RESPONSE


@pytest.mark.rule("firmware-15", "firmware-16", "firmware-18", "firmware-19")
@given(texts, texts, texts, versions, st.sampled_from(FirmwareType))
def test_requests_and_responses_survive_a_round_trip(
    request_id: str, uri: str, file_name: str, version: Version, firmware_type: FirmwareType
) -> None:
    request = ImageRequest(model_number=ModelNumber("2011"), version=version, firmware_type=firmware_type)
    encoded_request = diagnostics.encode_image_request(request_id, request)
    assert diagnostics.decode_image_request(encoded_request) == (request_id, request)
    answer = ImageLocation(uri=uri, file_name=file_name, firmware_type=firmware_type)
    encoded_answer = diagnostics.encode_image_response(request_id, answer)
    assert diagnostics.decode_image_response(encoded_answer) == (request_id, answer)


@pytest.mark.rule("firmware-18")
def test_the_response_without_an_image_is_not_successful() -> None:
    answer = diagnostics.encode_image_response(GUID, None)
    assert json.loads(answer).items() >= {"id": GUID, "success": False}.items()
    assert diagnostics.decode_image_response(answer) == (GUID, None)


@pytest.mark.rule("firmware-18")
@each_row("result", [b"null", b"{}", b'"no such image"'])
def test_the_result_of_an_unsuccessful_response_is_ignored(result: bytes) -> None:
    assert diagnostics.decode_image_response(b'{"id":"1","success":false,"result":%b}' % result) == (
        "1",
        None,
    )


@pytest.mark.rule("firmware-17")
@each_row(
    ("number", "firmware_type"),
    [
        (1, FirmwareType.NORDIC_PACKAGE),
        (2, FirmwareType.RAUC_BUNDLE),
        (1.0, FirmwareType.NORDIC_PACKAGE),
        (2.0, FirmwareType.RAUC_BUNDLE),
    ],
)
def test_there_are_two_types_of_firmware(number: float, firmware_type: FirmwareType) -> None:
    assert _decode_image_request(**PARAMS | {"firmwareType": number}).firmware_type is firmware_type
    answer = _decode_image_response(**RESULT | {"firmwareType": number})
    assert answer is not None
    assert answer.firmware_type is firmware_type


@pytest.mark.rule("firmware-16")
@each_row(("text", "model"), [("2011", "2011"), ("000f", "000F"), ("0040", "0040")])
def test_a_model_number_keeps_its_zeros_and_is_converted_to_upper_case(text: str, model: str) -> None:
    assert _decode_image_request(**PARAMS | {"modelNumber": text}).model_number == model


NOT_TEXT: list[Any] = [None, True, 1, 1.5, [], {}]
NOT_A_TYPE: list[Any] = [None, True, "1", 1.5, 0, 3, [], {}]
WRONG_PARAMS: dict[str, list[Any]] = {
    "modelNumber": [*NOT_TEXT, "", "11", "02011", "20g1", "0x11", "\ufb0011", "\u0662\u0660\u0661\u0661"],
    "version": [*NOT_TEXT, "", "2", "2.4.x", "2.4.0-beta", "2.4.0-beta.256", "v2.4.0"],
    "firmwareType": NOT_A_TYPE,
}
WRONG_CHECKS: dict[str, list[Any]] = {
    "sha256": [None, True, 1, [], "", "0f" * 31, "0f" * 33, "0f" * 31 + "0", "0g" * 32],
    "size": [None, True, "1", 1.5, -1, 2**53 + 2, []],
}
WRONG_RESULT: dict[str, list[Any]] = {"uri": NOT_TEXT, "fileName": NOT_TEXT, "firmwareType": NOT_A_TYPE}


@pytest.mark.rule("firmware-16", "firmware-17")
@each_row("field", WRONG_PARAMS)
def test_a_request_needs_all_its_parameters(field: str) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        _decode_image_request(**{name: value for name, value in PARAMS.items() if name != field})
    assert (rejected.value.field, rejected.value.reason) == (field, "is missing")


@pytest.mark.rule("firmware-16", "firmware-17")
@each_row(("field", "wrong"), [(field, wrong) for field in WRONG_PARAMS for wrong in WRONG_PARAMS[field]])
def test_an_error_names_the_wrong_parameter(field: str, wrong: Any) -> None:
    with pytest.raises(MalformedInput) as rejected:
        _decode_image_request(**PARAMS | {field: wrong})
    assert rejected.value.field == field


@pytest.mark.rule("firmware-19", "firmware-17")
@each_row("field", WRONG_RESULT)
def test_a_successful_response_needs_all_fields_of_its_result(field: str) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        _decode_image_response(**{name: value for name, value in RESULT.items() if name != field})
    assert (rejected.value.field, rejected.value.reason) == (field, "is missing")


@pytest.mark.rule("firmware-19", "firmware-17")
@each_row(("field", "wrong"), [(field, wrong) for field in WRONG_RESULT for wrong in WRONG_RESULT[field]])
def test_an_error_names_the_wrong_field_of_a_result(field: str, wrong: Any) -> None:
    with pytest.raises(MalformedInput) as rejected:
        _decode_image_response(**RESULT | {field: wrong})
    assert rejected.value.field == field


@pytest.mark.rule("firmware-36")
@each_row(("field", "wrong"), [(field, wrong) for field in WRONG_CHECKS for wrong in WRONG_CHECKS[field]])
def test_an_error_names_an_invalid_hash_or_size(field: str, wrong: Any) -> None:
    with pytest.raises(MalformedInput) as rejected:
        _decode_image_response(**RESULT | {field: wrong})
    assert rejected.value.field == field


@pytest.mark.rule("firmware-15")
@each_row("field", ["id", "params"])
@each_row("wrong", [None, True, 1, 1.5, []])
def test_a_request_has_a_string_as_id_and_an_object_as_params(field: str, wrong: Any) -> None:
    envelope = json.loads(IMAGE_REQUEST)
    for broken in ({**envelope, field: wrong}, {k: v for k, v in envelope.items() if k != field}):
        with pytest.raises(MalformedPayload) as rejected:
            diagnostics.decode_image_request(json.dumps(broken).encode())
        assert rejected.value.field == field


@pytest.mark.rule("firmware-18")
@each_row("field", ["id", "success", "result"])
@each_row("wrong", [None, 0, 1, 1.5, []])
def test_a_response_has_a_string_a_boolean_and_an_object(field: str, wrong: Any) -> None:
    envelope = json.loads(RESPONSE)
    for broken in ({**envelope, field: wrong}, {k: v for k, v in envelope.items() if k != field}):
        with pytest.raises(MalformedPayload) as rejected:
            diagnostics.decode_image_response(json.dumps(broken).encode())
        assert rejected.value.field == field


@each_row("payload", [b"", b"[]", b"null", b"{", b'{"id":"\xff"}', IMAGE_REQUEST.ljust(65537)])
def test_a_payload_that_is_not_a_json_object_is_rejected(payload: bytes) -> None:
    with pytest.raises(MalformedPayload):
        diagnostics.decode_image_request(payload)
    with pytest.raises(MalformedPayload):
        diagnostics.decode_image_response(payload)
