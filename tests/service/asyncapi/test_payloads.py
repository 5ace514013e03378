"""Schemas of the document match the payload types, and its examples match the codecs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec
import pytest

from meshfleet.protocol import api_versions, diagnostics, payload, reports, requests, responses
from meshfleet.protocol.codes import AccessType, AckType, Kind, Operation, Origin, Priority, Status
from meshfleet.protocol.diagnostics import FirmwareType, ImageLocation, ImageRequest
from meshfleet.service.asyncapi import build_asyncapi_document
from tests.row_tables import each_row

if TYPE_CHECKING:
    from enum import Enum

DOCUMENT = build_asyncapi_document()
MESSAGES: dict[str, dict[str, Any]] = DOCUMENT["components"]["messages"]
SCHEMAS: dict[str, dict[str, Any]] = DOCUMENT["components"]["schemas"]

ANSWERED_OPERATIONS = [operation for operation in Operation if operation.is_answered]
UNRESTRICTED_FIELDS = {"id", "errorMessage", "route", "extenderRoute", "uri", "fileName"}


def _load_examples(message: str) -> list[bytes]:
    found = [msgspec.json.encode(example["payload"]) for example in MESSAGES[message]["examples"]]
    assert found
    return found


def _load_schema(message: str) -> dict[str, Any]:
    return SCHEMAS[MESSAGES[message]["payload"]["$ref"].removeprefix("#/components/schemas/")]


def _build_validator(schema: dict[str, Any]) -> jsonschema_rs.Draft7Validator:
    return jsonschema_rs.Draft7Validator(
        schema | {"components": DOCUMENT["components"]}, validate_formats=True
    )


# --- Examples ---


@pytest.mark.rule("rest-162")
@each_row("kind", list(Kind))
def test_report_examples_are_decoded_and_encoded_unchanged(kind: Kind) -> None:
    for example in _load_examples(kind):
        assert reports.encode_report(kind, reports.decode_report(kind, example)) == example


@pytest.mark.rule("rest-162")
@each_row("operation", list(Operation))
def test_request_examples_are_decoded_and_encoded_unchanged(operation: Operation) -> None:
    for example in _load_examples(f"{operation}-request"):
        assert requests.encode_request(requests.decode_request(operation, example)) == example


@pytest.mark.rule("rest-162")
@each_row("operation", ANSWERED_OPERATIONS)
def test_response_examples_are_decoded_and_encoded_unchanged(operation: Operation) -> None:
    for example in _load_examples(f"{operation}-response"):
        assert responses.encode_response(operation, responses.decode_response(operation, example)) == example


@pytest.mark.rule("rest-162")
def test_diagnostics_examples_are_decoded_and_encoded_unchanged() -> None:
    for example in _load_examples("firmware-question"):
        assert diagnostics.encode_image_request(*diagnostics.decode_image_request(example)) == example
    decoded = [diagnostics.decode_image_response(example) for example in _load_examples("firmware-answer")]
    assert [diagnostics.encode_image_response(*response) for response in decoded] == _load_examples(
        "firmware-answer"
    )
    assert {response is None for _, response in decoded} == {True, False}


@each_row("name", list(MESSAGES))
def test_examples_match_their_schema_and_malformed_ones_do_not(name: str) -> None:
    validator = _build_validator(_load_schema(name))
    for example in MESSAGES[name]["examples"]:
        validator.validate(example["payload"])
        for field, value in example["payload"].items():
            if isinstance(value, bool | int | float) and field != "value":
                assert not validator.is_valid(example["payload"] | {field: "41"})
            if field in {"time", "extenderId", "parent", "version"}:
                assert not validator.is_valid(example["payload"] | {field: f" {value}"})


# --- Schemas ---


def _load_structs() -> dict[str, type[payload.Payload]]:
    """Return the payload types of all messages."""
    found: dict[str, type[payload.Payload]] = {str(kind): reports.REPORT_TYPES[kind] for kind in Kind}
    for operation in Operation:
        name = f"{operation}-request"
        found[name] = type(requests.decode_request(operation, _load_examples(name)[0]))
    for operation in ANSWERED_OPERATIONS:
        name = f"{operation}-response"
        found[name] = type(responses.decode_response(operation, _load_examples(name)[0]))
    return found


STRUCTS = _load_structs()


@pytest.mark.rule("rest-162")
@each_row("name", list(STRUCTS))
def test_a_schema_has_the_fields_of_its_struct_and_requires_those_without_default(name: str) -> None:
    schema, fields = _load_schema(name), msgspec.structs.fields(STRUCTS[name])
    assert schema["title"] == STRUCTS[name].__name__
    assert list(schema["properties"]) == [field.encode_name for field in fields]
    assert set(schema["required"]) == {field.encode_name for field in fields if field.required}


@pytest.mark.rule("rest-162")
@each_row(("name", "struct"), [("FirmwareQuestion", ImageRequest), ("FirmwareAnswer", ImageLocation)])
def test_a_diagnostics_schema_has_the_fields_of_its_struct(name: str, struct: type[payload.Payload]) -> None:
    schema, fields = SCHEMAS[name], msgspec.structs.fields(struct)
    assert schema["title"] == name
    assert list(schema["properties"]) == [field.encode_name for field in fields]
    assert set(schema["required"]) == {field.encode_name for field in fields if field.required}


def test_a_firmware_response_has_a_result_only_if_there_is_an_image() -> None:
    validator = _build_validator(_load_schema("firmware-answer"))
    assert validator.is_valid({"id": "1", "success": False})
    assert not validator.is_valid({"id": "1", "success": True})
    assert not validator.is_valid({"id": "1"})


@each_row("name", list(SCHEMAS))
def test_a_schema_is_self_contained_and_allows_additional_fields(name: str) -> None:
    jsonschema_rs.Draft7Validator(SCHEMAS[name] | {"components": DOCUMENT["components"]})
    assert "additionalProperties" not in SCHEMAS[name]
    assert SCHEMAS[name]["description"]


@each_row("name", list(SCHEMAS))
def test_a_field_has_a_description_and_a_string_has_a_pattern(name: str) -> None:
    for field, schema in SCHEMAS[name]["properties"].items():
        if "$ref" in schema:
            assert list(schema) == ["$ref"]  # keywords next to a reference are ignored
            continue
        assert schema["description"].endswith(".")
        if "string" in schema.get("type", ()) and field not in UNRESTRICTED_FIELDS:
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
def test_an_enum_is_documented_with_all_its_values(name: str, field: str, values: type[Enum]) -> None:
    assert set(SCHEMAS[name]["properties"][field]["enum"]) == {each.value for each in values}


def test_every_status_is_documented() -> None:
    for name, field in (("Response", "status"), ("MeasurementError", "error")):
        text = SCHEMAS[name]["properties"][field]["description"]
        assert all(f"`{status.value}` {status.name.lower().replace('_', ' ')}" in text for status in Status)


@pytest.mark.rule("rest-162", "version-2", "version-3")
def test_every_field_names_the_version_that_added_it() -> None:
    parts: dict[str, tuple[api_versions.InterfacePart, Kind | Operation]] = {
        **{str(kind): ("report", kind) for kind in Kind},
        **{f"{operation}-request": ("request", operation) for operation in Operation},
        **{f"{operation}-response": ("response", operation) for operation in ANSWERED_OPERATIONS},
    }
    documented = set()
    for name, (part, of) in parts.items():
        assert MESSAGES[name].get("x-since") == _text(api_versions.find_first_version(part, of, None))
        for field, schema in _load_schema(name)["properties"].items():
            since = _text(api_versions.find_first_version(part, of, field))
            assert schema.get("x-since") == since
            assert since is None or f"Since version {since}." in schema["description"]
            documented.add(since)
    assert documented == {None, "1.3.0", "2.0.0", "2.0.1", "2.1.0", "2.2.0"}


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
def test_tolerated_forms_are_decoded_but_not_documented_as_sent(kind: Kind, change: dict[str, str]) -> None:
    example = MESSAGES[kind]["examples"][0]["payload"]
    read = reports.decode_report(kind, msgspec.json.encode(example | change))
    assert read.time.utcoffset() == timedelta(0)
    assert not _build_validator(_load_schema(kind)).is_valid(example | change)
