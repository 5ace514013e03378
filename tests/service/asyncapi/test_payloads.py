"""The schemas of the document are those of the types, and its examples are what the codecs read and write."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec
import pytest

from meshfleet.protocol import api_versions, diagnostics, payload, reports, requests, responses
from meshfleet.protocol.codes import AccessType, AckType, Kind, Operation, Origin, Priority, Status
from meshfleet.protocol.diagnostics import FirmwareAnswer, FirmwareQuestion, FirmwareType
from meshfleet.service.asyncapi import build_asyncapi_document
from tests.row_tables import each_row

if TYPE_CHECKING:
    from enum import Enum

DOCUMENT = build_asyncapi_document()
MESSAGES: dict[str, dict[str, Any]] = DOCUMENT["components"]["messages"]
SCHEMAS: dict[str, dict[str, Any]] = DOCUMENT["components"]["schemas"]

ANSWERED = [operation for operation in Operation if operation.is_answered]
FREE_TEXTS = {"id", "errorMessage", "route", "extenderRoute", "uri", "fileName"}


def _examples(message: str) -> list[bytes]:
    found = [msgspec.json.encode(example["payload"]) for example in MESSAGES[message]["examples"]]
    assert found
    return found


def _schema(message: str) -> dict[str, Any]:
    return SCHEMAS[MESSAGES[message]["payload"]["$ref"].removeprefix("#/components/schemas/")]


def _validator(schema: dict[str, Any]) -> jsonschema_rs.Draft7Validator:
    return jsonschema_rs.Draft7Validator(
        schema | {"components": DOCUMENT["components"]}, validate_formats=True
    )


# --- Examples ---


@pytest.mark.rule("rest-162")
@each_row("kind", list(Kind))
def test_the_examples_of_a_report_are_read_and_written_again_as_they_are(kind: Kind) -> None:
    for example in _examples(kind):
        assert reports.encode_report(kind, reports.decode_report(kind, example)) == example


@pytest.mark.rule("rest-162")
@each_row("operation", list(Operation))
def test_the_examples_of_a_request_are_read_and_written_again_as_they_are(operation: Operation) -> None:
    for example in _examples(f"{operation}-request"):
        assert requests.encode_request(requests.decode_request(operation, example)) == example


@pytest.mark.rule("rest-162")
@each_row("operation", ANSWERED)
def test_the_examples_of_a_response_are_read_and_written_again_as_they_are(operation: Operation) -> None:
    for example in _examples(f"{operation}-response"):
        assert responses.encode_response(operation, responses.decode_response(operation, example)) == example


@pytest.mark.rule("rest-162")
def test_the_examples_of_diagnostics_are_read_and_written_again_as_they_are() -> None:
    for example in _examples("firmware-question"):
        assert diagnostics.encode_question(*diagnostics.decode_question(example)) == example
    answers = [diagnostics.decode_answer(example) for example in _examples("firmware-answer")]
    assert [diagnostics.encode_answer(*answer) for answer in answers] == _examples("firmware-answer")
    assert {answer is None for _, answer in answers} == {True, False}


@each_row("name", list(MESSAGES))
def test_examples_fit_the_schema_and_what_is_spelt_otherwise_does_not(name: str) -> None:
    validator = _validator(_schema(name))
    for example in MESSAGES[name]["examples"]:
        validator.validate(example["payload"])
        for field, value in example["payload"].items():
            if isinstance(value, bool | int | float) and field != "value":
                assert not validator.is_valid(example["payload"] | {field: "41"})
            if field in {"time", "extenderId", "parent", "version"}:
                assert not validator.is_valid(example["payload"] | {field: f" {value}"})


# --- Schemas ---


def _structs() -> dict[str, type[payload.Payload]]:
    """What the codecs make of each message."""
    found: dict[str, type[payload.Payload]] = {str(kind): reports.REPORT_TYPES[kind] for kind in Kind}
    for operation in Operation:
        name = f"{operation}-request"
        found[name] = type(requests.decode_request(operation, _examples(name)[0]))
    for operation in ANSWERED:
        name = f"{operation}-response"
        found[name] = type(responses.decode_response(operation, _examples(name)[0]))
    return found


STRUCTS = _structs()


@pytest.mark.rule("rest-162")
@each_row("name", list(STRUCTS))
def test_a_schema_has_the_fields_of_its_struct_and_demands_those_without_a_default(name: str) -> None:
    schema, fields = _schema(name), msgspec.structs.fields(STRUCTS[name])
    assert schema["title"] == STRUCTS[name].__name__
    assert list(schema["properties"]) == [field.encode_name for field in fields]
    assert set(schema["required"]) == {field.encode_name for field in fields if field.required}


@pytest.mark.rule("rest-162")
@pytest.mark.parametrize("struct", [FirmwareQuestion, FirmwareAnswer])
def test_what_diagnostics_carry_has_the_fields_of_its_struct(struct: type[payload.Payload]) -> None:
    schema, fields = SCHEMAS[struct.__name__], msgspec.structs.fields(struct)
    assert list(schema["properties"]) == [field.encode_name for field in fields]
    assert set(schema["required"]) == {field.encode_name for field in fields if field.required}


def test_an_answer_about_firmware_has_a_result_just_when_there_is_an_image() -> None:
    validator = _validator(_schema("firmware-answer"))
    assert validator.is_valid({"id": "1", "success": False})
    assert not validator.is_valid({"id": "1", "success": True})
    assert not validator.is_valid({"id": "1"})


@each_row("name", list(SCHEMAS))
def test_a_schema_stands_alone_and_lets_later_versions_add_fields(name: str) -> None:
    jsonschema_rs.Draft7Validator(SCHEMAS[name] | {"components": DOCUMENT["components"]})
    assert "additionalProperties" not in SCHEMAS[name]
    assert SCHEMAS[name]["description"]


@each_row("name", list(SCHEMAS))
def test_a_field_is_told_to_people_and_a_text_has_its_spelling(name: str) -> None:
    for field, schema in SCHEMAS[name]["properties"].items():
        if "$ref" in schema:
            assert list(schema) == ["$ref"]  # what stands beside it would not count
            continue
        assert schema["description"].endswith(".")
        if "string" in schema.get("type", ()) and field not in FREE_TEXTS:
            assert "pattern" in schema or "enum" in schema


@pytest.mark.rule("rest-162")
@each_row(
    ("name", "field", "values"),
    [
        ("ReadRequest", "priority", Priority),
        ("WriteRequest", "accessType", AccessType),
        ("AckRequest", "type", AckType),
        ("Response", "origin", Origin),
        ("FirmwareQuestion", "firmwareType", FirmwareType),
    ],
)
def test_a_closed_set_is_told_with_all_its_values(name: str, field: str, values: type[Enum]) -> None:
    assert set(SCHEMAS[name]["properties"][field]["enum"]) == {each.value for each in values}


def test_every_status_is_told() -> None:
    for name, field in (("Response", "status"), ("MeasurementError", "error")):
        text = SCHEMAS[name]["properties"][field]["description"]
        assert all(f"`{status.value}` {status.name.lower().replace('_', ' ')}" in text for status in Status)


@pytest.mark.rule("rest-162", "version-2", "version-3")
def test_every_field_tells_the_version_that_brought_it() -> None:
    parts: dict[str, tuple[api_versions.InterfacePart, Kind | Operation]] = {
        **{str(kind): ("report", kind) for kind in Kind},
        **{f"{operation}-request": ("request", operation) for operation in Operation},
        **{f"{operation}-response": ("response", operation) for operation in ANSWERED},
    }
    told = set()
    for name, (part, of) in parts.items():
        assert MESSAGES[name].get("x-since") == _text(api_versions.find_first_version(part, of, None))
        for field, schema in _schema(name)["properties"].items():
            since = _text(api_versions.find_first_version(part, of, field))
            assert schema.get("x-since") == since
            assert since is None or f"Since version {since}." in schema["description"]
            told.add(since)
    assert told == {None, "1.3.0", "2.0.0", "2.0.1", "2.1.0", "2.2.0"}


def _text(version: object) -> str | None:
    return None if version is None else str(version)


@each_row(
    ("kind", "change"),
    [
        (Kind.HEARTBEAT, {"seq": "41"}),
        (Kind.HEARTBEAT, {"time": "2026-11-15T12:07:20.5850000+02:00"}),
        (Kind.MEASUREMENT, {"value": "ABCD"}),
        (Kind.RSSI, {"parent": "02005E0000F0"}),
    ],
)
def test_what_is_tolerated_is_read_but_is_not_what_the_document_says_is_sent(
    kind: Kind, change: dict[str, str]
) -> None:
    example = MESSAGES[kind]["examples"][0]["payload"]
    read = reports.decode_report(kind, msgspec.json.encode(example | change))
    assert read.time.utcoffset() == timedelta(0)
    assert not _validator(_schema(kind)).is_valid(example | change)
