"""A gateway asks where its firmware image is, and is told."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedPayload, MalformedTopic, WireError
from meshfleet.protocol import diagnostics
from meshfleet.protocol.diagnostics import FirmwareAnswer, FirmwareQuestion, FirmwareType
from meshfleet.protocol.hex import Hex
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from tests.protocol.strategies import macs, texts, versions
from tests.row_tables import each_row

GUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
QUESTION = (
    b'{"id":"0f8fad5b-d9cb-469f-a165-70867728950e",'
    b'"params":{"modelNumber":"000F","version":"2.4.0-beta.3","firmwareType":1}}'
)
ASKED = FirmwareQuestion(
    model_number=ModelNumber("000F"),
    version=Version(2, 4, 0, 3),
    firmware_type=FirmwareType.NORDIC_PACKAGE,
)
ANSWER = (
    b'{"id":"0f8fad5b-d9cb-469f-a165-70867728950e","success":true,'
    b'"result":{"uri":"https://fleet/fw?a=b","fileName":"mt.raucb","firmwareType":2}}'
)
ANSWERED = FirmwareAnswer(
    uri="https://fleet/fw?a=b", file_name="mt.raucb", firmware_type=FirmwareType.RAUC_BUNDLE
)
CHECKED_ANSWER = ANSWER[:-2] + b',"sha256":"' + b"0f" * 32 + b'","size":123456}}'
CHECKED = msgspec.structs.replace(ANSWERED, sha256=Hex("0f" * 32), size=123456)
PARAMS: dict[str, Any] = json.loads(QUESTION)["params"]
RESULT: dict[str, Any] = json.loads(ANSWER)["result"]


def _ask(**params: Any) -> FirmwareQuestion:
    return diagnostics.decode_question(json.dumps({"id": GUID, "params": params}).encode())[1]


def _answer(**result: Any) -> FirmwareAnswer | None:
    envelope = {"id": GUID, "success": True, "result": result}
    return diagnostics.decode_answer(json.dumps(envelope).encode())[1]


@pytest.mark.rule("firmware-15", "topic-21", "topic-22")
@given(macs)
def test_a_gateway_asks_on_a_topic_of_its_own(gateway: Mac) -> None:
    topic = diagnostics.format_question_topic(gateway)
    assert topic == f"meshtech/diagnostics/{gateway}/server-command/firmware"
    assert diagnostics.parse_question_topic(topic) == gateway
    assert topic.replace(gateway, "+") == diagnostics.QUESTION_FILTER


@pytest.mark.rule("firmware-18", "topic-21")
@given(macs)
def test_a_gateway_waits_for_the_answer_on_a_topic_of_its_own(gateway: Mac) -> None:
    topic = diagnostics.format_answer_topic(gateway)
    assert topic == f"meshtech/diagnostics/{gateway}/server-response/firmware"
    assert diagnostics.parse_answer_topic(topic) == gateway


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
def test_no_other_topic_is_a_question(topic: str) -> None:
    with pytest.raises(MalformedTopic):
        diagnostics.parse_question_topic(topic)


@pytest.mark.rule("firmware-18", "topic-9")
@each_row(
    "topic",
    [
        "",
        "meshtech/diagnostics/C4BD6A010203/server-response/firmware",
        "meshtech/diagnostics/c4bd6a010203/server-command/firmware",
        "meshtech/diagnostics/c4bd6a010203/server-response/other",
        "meshtech/diagnostics/c4bd6a010203/server-response/firmware\n",
        "meshtech/diagnostics/+/server-response/firmware",
        "site/meshtech/diagnostics/c4bd6a010203/server-response/firmware",
    ],
)
def test_no_other_topic_is_an_answer(topic: str) -> None:
    with pytest.raises(MalformedTopic):
        diagnostics.parse_answer_topic(topic)


@pytest.mark.rule("firmware-15", "firmware-16")
def test_a_question_is_read_and_written_to_the_letter() -> None:
    assert diagnostics.decode_question(QUESTION) == (GUID, ASKED)
    assert diagnostics.encode_question(GUID, ASKED) == QUESTION


@pytest.mark.rule("firmware-18", "firmware-19")
def test_an_answer_is_read_and_written_to_the_letter() -> None:
    assert diagnostics.decode_answer(ANSWER) == (GUID, ANSWERED)
    assert diagnostics.encode_answer(GUID, ANSWERED) == ANSWER


@pytest.mark.rule("firmware-35")
def test_an_answer_may_tell_hash_and_size_of_the_image() -> None:
    assert diagnostics.decode_answer(CHECKED_ANSWER) == (GUID, CHECKED)
    assert diagnostics.encode_answer(GUID, CHECKED) == CHECKED_ANSWER


@pytest.mark.rule("firmware-35")
def test_an_answer_may_tell_only_one_of_them_or_neither() -> None:
    for told in ({}, {"sha256": "0f" * 32}, {"size": 0}):
        assert _answer(**RESULT | told) == msgspec.structs.replace(ANSWERED, **told)


@pytest.mark.rule("firmware-35")
def test_a_hash_is_read_in_either_case_and_written_in_lower() -> None:
    answer = _answer(**RESULT | {"sha256": "0F" * 32, "size": 123456.0})
    assert answer is not None
    assert diagnostics.encode_answer(GUID, answer) == CHECKED_ANSWER


@pytest.mark.rule("firmware-35")
@each_row("field", ["md5", "expires"])
def test_a_field_that_the_gateway_does_not_know_is_ignored(field: str) -> None:
    assert _answer(**RESULT | {field: "x"}) == ANSWERED


@pytest.mark.rule("firmware-15", "firmware-16", "firmware-18", "firmware-19")
@given(texts, texts, texts, versions, st.sampled_from(FirmwareType))
def test_questions_and_answers_survive_the_wire(
    question_id: str, uri: str, file_name: str, version: Version, firmware_type: FirmwareType
) -> None:
    question = FirmwareQuestion(
        model_number=ModelNumber("2011"), version=version, firmware_type=firmware_type
    )
    asked = diagnostics.encode_question(question_id, question)
    assert diagnostics.decode_question(asked) == (question_id, question)
    answer = FirmwareAnswer(uri=uri, file_name=file_name, firmware_type=firmware_type)
    answered = diagnostics.encode_answer(question_id, answer)
    assert diagnostics.decode_answer(answered) == (question_id, answer)


@pytest.mark.rule("firmware-18")
def test_without_an_image_the_answer_is_no_success() -> None:
    answer = diagnostics.encode_answer(GUID, None)
    assert json.loads(answer).items() >= {"id": GUID, "success": False}.items()
    assert diagnostics.decode_answer(answer) == (GUID, None)


@pytest.mark.rule("firmware-18")
@each_row("result", [b"null", b"{}", b'"no such image"'])
def test_the_result_of_no_success_is_not_looked_at(result: bytes) -> None:
    assert diagnostics.decode_answer(b'{"id":"1","success":false,"result":%b}' % result) == ("1", None)


@pytest.mark.rule("firmware-17")
@each_row(
    ("number", "packed"),
    [
        (1, FirmwareType.NORDIC_PACKAGE),
        (2, FirmwareType.RAUC_BUNDLE),
        (1.0, FirmwareType.NORDIC_PACKAGE),
        (2.0, FirmwareType.RAUC_BUNDLE),
    ],
)
def test_there_are_two_types_of_firmware(number: float, packed: FirmwareType) -> None:
    assert _ask(**PARAMS | {"firmwareType": number}).firmware_type is packed
    answer = _answer(**RESULT | {"firmwareType": number})
    assert answer is not None
    assert answer.firmware_type is packed


@pytest.mark.rule("firmware-16")
@each_row(("text", "model"), [("2011", "2011"), ("000f", "000F"), ("0040", "0040")])
def test_a_model_number_keeps_its_zeros_and_is_kept_in_upper_case(text: str, model: str) -> None:
    assert _ask(**PARAMS | {"modelNumber": text}).model_number == model


NO_TEXT: list[Any] = [None, True, 1, 1.5, [], {}]
NO_TYPE: list[Any] = [None, True, "1", 1.5, 0, 3, [], {}]
WRONG_PARAMS: dict[str, list[Any]] = {
    "modelNumber": [*NO_TEXT, "", "11", "02011", "20g1", "0x11", "\ufb0011", "\u0662\u0660\u0661\u0661"],
    "version": [*NO_TEXT, "", "2", "2.4.x", "2.4.0-beta", "2.4.0-beta.256", "v2.4.0"],
    "firmwareType": NO_TYPE,
}
WRONG_CHECKS: dict[str, list[Any]] = {
    "sha256": [None, True, 1, [], "", "0f" * 31, "0f" * 33, "0f" * 31 + "0", "0g" * 32],
    "size": [None, True, "1", 1.5, -1, 2**53 + 2, []],
}
WRONG_RESULT: dict[str, list[Any]] = {"uri": NO_TEXT, "fileName": NO_TEXT, "firmwareType": NO_TYPE}


@pytest.mark.rule("firmware-16", "firmware-17")
@each_row("field", WRONG_PARAMS)
def test_a_question_needs_all_its_parameters(field: str) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        _ask(**{name: value for name, value in PARAMS.items() if name != field})
    assert (rejected.value.field, rejected.value.reason) == (field, "is missing")


@pytest.mark.rule("firmware-16", "firmware-17")
@each_row(("field", "wrong"), [(field, wrong) for field in WRONG_PARAMS for wrong in WRONG_PARAMS[field]])
def test_a_wrong_parameter_is_rejected_by_its_name(field: str, wrong: Any) -> None:
    with pytest.raises(WireError) as rejected:
        _ask(**PARAMS | {field: wrong})
    assert rejected.value.field == field


@pytest.mark.rule("firmware-19", "firmware-17")
@each_row("field", WRONG_RESULT)
def test_a_success_needs_all_of_its_result(field: str) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        _answer(**{name: value for name, value in RESULT.items() if name != field})
    assert (rejected.value.field, rejected.value.reason) == (field, "is missing")


@pytest.mark.rule("firmware-19", "firmware-17")
@each_row(("field", "wrong"), [(field, wrong) for field in WRONG_RESULT for wrong in WRONG_RESULT[field]])
def test_a_wrong_result_is_rejected_by_its_field(field: str, wrong: Any) -> None:
    with pytest.raises(WireError) as rejected:
        _answer(**RESULT | {field: wrong})
    assert rejected.value.field == field


@pytest.mark.rule("firmware-36")
@each_row(("field", "wrong"), [(field, wrong) for field in WRONG_CHECKS for wrong in WRONG_CHECKS[field]])
def test_a_hash_or_size_that_is_none_is_rejected_by_its_field(field: str, wrong: Any) -> None:
    with pytest.raises(WireError) as rejected:
        _answer(**RESULT | {field: wrong})
    assert rejected.value.field == field


@pytest.mark.rule("firmware-15")
@each_row("field", ["id", "params"])
@each_row("wrong", [None, True, 1, 1.5, []])
def test_a_question_has_a_text_as_id_and_an_object_as_params(field: str, wrong: Any) -> None:
    envelope = json.loads(QUESTION)
    for broken in ({**envelope, field: wrong}, {k: v for k, v in envelope.items() if k != field}):
        with pytest.raises(MalformedPayload) as rejected:
            diagnostics.decode_question(json.dumps(broken).encode())
        assert rejected.value.field == field


@pytest.mark.rule("firmware-18")
@each_row("field", ["id", "success", "result"])
@each_row("wrong", [None, 0, 1, 1.5, []])
def test_an_answer_has_a_text_a_boolean_and_an_object(field: str, wrong: Any) -> None:
    envelope = json.loads(ANSWER)
    for broken in ({**envelope, field: wrong}, {k: v for k, v in envelope.items() if k != field}):
        with pytest.raises(MalformedPayload) as rejected:
            diagnostics.decode_answer(json.dumps(broken).encode())
        assert rejected.value.field == field


@each_row("payload", [b"", b"[]", b"null", b"{", b'{"id":"\xff"}', QUESTION.ljust(65537)])
def test_what_is_no_json_object_is_neither_question_nor_answer(payload: bytes) -> None:
    with pytest.raises(MalformedPayload):
        diagnostics.decode_question(payload)
    with pytest.raises(MalformedPayload):
        diagnostics.decode_answer(payload)
