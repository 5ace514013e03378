"""JSON schemas of payloads, made of the structs that read and write them."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args, get_type_hints

import msgspec

from meshfleet.protocol import api_versions, fields
from meshfleet.protocol.codes import Status
from meshfleet.protocol.diagnostics import FirmwareAnswer, FirmwareQuestion, Sha256Field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.protocol.codes import Kind, Operation
    from meshfleet.protocol.payload import Payload


# What the fields of payloads mean, for people: units, defaults, and the numbers that stand for something.


def describe_enum(values: type[Enum]) -> str:
    """Tell which number stands for what."""
    return ", ".join(
        f"`{each.value}` {each.name.lower().replace('_', ' ')}"
        for each in sorted(values, key=lambda each: each.value)
    )


_STATUS_VALUES_TEXT: Final = f"{describe_enum(Status)}; others pass through as they are"
_UNIT_TEXT: Final = "the identifier says in which unit"

_FIELD_TEXTS: Final[Mapping[str, str]] = {
    "time": "When it was.",
    "seq": "Counts the reports of this device, kind and identifier, from 0 to 255 and over again.",
    "status": "How the device is: 0 is fine, anything else an error or a warning of the device.",
    "lastCount": "How many copies of the heartbeat before were heard.",
    "parent": "The MAC of the mesh node that heard the device.",
    "rssi": "How strong the device was heard, in dBm.",
    "channel": "The BLE advertising channel on which it was heard.",
    "unreachable": "True: the device cannot be reached through this parent.",
    "value": f"The value, as any JSON; {_UNIT_TEXT}.",
    "ext": "The extension of the value, where it has one.",
    "error": f"Why the measurement failed: {_STATUS_VALUES_TEXT}.",
    "errorExt": "More about the error; only the device knows what it means.",
    "id": "Chosen by whoever asks, and unique there; the response has the same.",
    "priority": "How urgent the request and its response are on their way through the mesh.",
    "extenderId": "The MAC of the extender through which an unconnected device is reached.",
    "accessType": "How a device outside the secure network is reached.",
    "publicKey": "The public key for a device that is not provisioned, as hex.",
    "key": "The network key, as hex. It is never stored, logged or shown.",
    "type": "What becomes of the samples that the device still holds.",
    "responseTime": "How long it took to answer, in milliseconds.",
    "origin": "Who answered: the target itself, connected or not, or an extender or the gateway for it.",
    "errorMessage": "Why it failed, for people. It may change at any time: decide nothing by it.",
    "route": "The way to the connected target that answered: MACs, first hop first, joined by `-`.",
    "extenderRoute": "The way to that extender, spelt like `route`.",
    "modelNumber": "The model number of the firmware.",
    "version": "The version of the messaging interface that the gateway speaks.",
    "firmwareType": "How the image is packed.",
    "uri": "Where the image can be downloaded, for a short time.",
    "fileName": "The name of the image.",
    "sha256": "The SHA-256 of what is behind `uri`, as hex.",
    "size": "The size of what is behind `uri`, in bytes.",
}

_RAW_VALUE_TEXT: Final = "The bytes of the value, as hex; the catalogue of identifiers says what they mean."
_STATUS_TEXT: Final = f"How the request went: {_STATUS_VALUES_TEXT}."
_RESPONSE_TIME_TEXT: Final = "When the response was made."

_PAYLOAD_FIELD_TEXTS: Final[Mapping[tuple[str, str], str]] = {
    ("Heartbeat", "seq"): "Counts the heartbeats of this device, from 0 to 255 and over again.",
    ("Rssi", "seq"): "The number of the advertisement that was heard, from 0 to 255.",
    ("Property", "value"): _RAW_VALUE_TEXT,
    ("Measurement", "value"): _RAW_VALUE_TEXT,
    ("Event", "value"): f"{_RAW_VALUE_TEXT} Only some events have one.",
    ("EventDecoded", "value"): f"The value, as any JSON; {_UNIT_TEXT}. Only some events have one.",
    ("WriteRequest", "value"): (
        "The bytes to write, as hex. Null, empty text or nothing writes NULL (no value), "
        "which is how a command property is set off."
    ),
    ("WriteDecodedRequest", "value"): (
        f"The value to write, as any JSON; {_UNIT_TEXT}. Null or nothing writes NULL "
        "(no value), which is how a command property is set off."
    ),
    ("AckRequest", "time"): "The `time` of the sample that is acknowledged, cut to milliseconds.",
    ("AckRequest", "id"): "As in every request; there is no response to an ack.",
    ("ReadResponse", "value"): f"{_RAW_VALUE_TEXT} Always there when `status` is 0.",
    (
        "ReadDecodedResponse",
        "value",
    ): f"The value, as any JSON; {_UNIT_TEXT}. Always there when `status` is 0.",
    ("FirmwareQuestion", "version"): "The version of the firmware.",
    **{
        (response, field): text
        for response in ("Response", "ApiVersionResponse", "ReadResponse", "ReadDecodedResponse")
        for field, text in (
            ("time", _RESPONSE_TIME_TEXT),
            ("status", _STATUS_TEXT),
            ("id", "The `id` of the request, when it had one."),
            ("extenderId", "The MAC of the extender that reached the unconnected target."),
        )
    },
}
"""Where a field means something of its own in one payload."""


def describe_field(payload: str, field: str) -> str:
    """What a field of a payload means."""
    return _PAYLOAD_FIELD_TEXTS.get((payload, field)) or _FIELD_TEXTS[field]


# How the field types of payloads are written, and what else is read.

_HEX: Final = "^([0-9a-f]{2})*$"
_EITHER_CASE: Final = "Read in either case."


class FieldFormat(NamedTuple):
    """One way to write, and the others that are read."""

    schema: dict[str, Any]
    tolerated: str = ""


_FIELD_FORMATS: Final[dict[object, FieldFormat]] = {
    fields.TimeField: FieldFormat(
        {"format": "date-time", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$"},
        "UTC with three fractional digits and `Z`. Read with any number of digits, with any offset or none "
        "(then it is UTC), and in the other spellings of ISO 8601; what is finer than a millisecond is cut.",
    ),
    fields.SequenceField: FieldFormat({}, "Also read as quoted text."),
    fields.MacField: FieldFormat({"pattern": "^[0-9a-f]{12}$"}, _EITHER_CASE),
    fields.ExtenderIdField: FieldFormat({"pattern": "^[0-9A-F]{12}$"}, f"Sent in upper case. {_EITHER_CASE}"),
    fields.HexField: FieldFormat({"pattern": _HEX}, _EITHER_CASE),
    fields.HexOrNullField: FieldFormat({"type": ["string", "null"], "pattern": _HEX}, _EITHER_CASE),
    fields.SecretField: FieldFormat({"pattern": _HEX}, _EITHER_CASE),
    fields.ModelNumberField: FieldFormat({"pattern": "^[0-9A-F]{4}$"}, _EITHER_CASE),
    fields.VersionField: FieldFormat(
        {"pattern": r"^\d{1,5}\.\d{1,5}\.\d{1,5}(-beta\.\d{1,3})?$"},
        "Without a third number that one is 0.",
    ),
    Sha256Field: FieldFormat({"pattern": "^[0-9a-f]{64}$"}, _EITHER_CASE),
}


def find_field_format(hint: object) -> FieldFormat:
    """How a field with this annotation is written, be it optional or not."""
    for part in (hint, *get_args(hint)):
        if (found := _FIELD_FORMATS.get(part)) is not None:
            return found
    return FieldFormat({})


_RULES: Final = re.compile(r" \([a-z]+-\d[^)]*\)")
"""Docstrings name the rules that they keep, which is for readers of the source."""


def build_schema(
    payload: type[Payload], part: api_versions.InterfacePart | None = None, of: Kind | Operation | None = None
) -> dict[str, Any]:
    """Describe a payload as it is sent; `part` and `of` tell since when its fields exist."""
    parts = msgspec.json.schema_components([payload], schema_hook=_custom_type_schema)[1]
    schema: dict[str, Any] = parts[payload.__name__]
    # Later versions may send more, and readers leave alone what they do not know.
    del schema["additionalProperties"]
    schema["description"] = _clean_docstring(schema["description"])
    hints = get_type_hints(payload, include_extras=True)
    for field in msgspec.structs.fields(payload):
        since = api_versions.find_first_version(part, of, field.encode_name) if part else None
        schema["properties"][field.encode_name] = _build_field_schema(
            schema["properties"][field.encode_name],
            hints[field.name],
            meaning=describe_field(payload.__name__, field.encode_name),
            since=None if since is None else str(since),
        )
    return schema


def build_schema_reference(name: str) -> dict[str, str]:
    """Point to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def _custom_type_schema(_kind: type) -> dict[str, Any]:
    """For our own types, which are all written as text; `spellings` knows more."""
    return {"type": "string"}


def _build_field_schema(
    schema: Mapping[str, Any], hint: object, *, meaning: str, since: str | None
) -> dict[str, Any]:
    # What stands beside a `$ref` does not count, so the few numbers and words of an enum are told in place.
    described = {key: value for key, value in schema.items() if key != "$ref"}
    if (values := _find_enum(hint)) is not None:
        numbers = issubclass(values, int)
        described["type"] = "integer" if numbers else "string"
        described["enum"] = sorted(each.value for each in values)
        meaning = f"{meaning} {describe_enum(values)}." if numbers else meaning
    spelt = find_field_format(hint)
    if "type" in spelt.schema:
        described.pop("anyOf", None)
    told = [meaning, spelt.tolerated, f"Since version {since}." if since else ""]
    described |= {**spelt.schema, "description": " ".join(filter(None, told))}
    return described | ({"x-since": since} if since else {})


def _find_enum(hint: object) -> type[Enum] | None:
    """The closed set that a field is of, be it optional or not."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return next(filter(None, map(_find_enum, get_args(hint))), None)


def _clean_docstring(docstring: str) -> str:
    return _RULES.sub("", docstring).replace("None", "null").replace("?.", "?")


# The envelopes of diagnostics: an id around what is asked, and around what is answered.

FIRMWARE_QUESTION: Final = "FirmwareCommand"
FIRMWARE_ANSWER: Final = "FirmwareResponse"

_ID_SCHEMA: Final = {"type": "string", "description": "Chosen by the gateway; the answer has the same."}


def build_firmware_question_schemas() -> dict[str, dict[str, Any]]:
    """What a gateway asks (firmware-15)."""
    inner = FirmwareQuestion.__name__
    return {
        FIRMWARE_QUESTION: {
            "title": FIRMWARE_QUESTION,
            "description": "A question, and its id.",
            "type": "object",
            "properties": {"id": _ID_SCHEMA, "params": build_schema_reference(inner)},
            "required": ["id", "params"],
        },
        inner: build_schema(FirmwareQuestion),
    }


def build_firmware_answer_schemas() -> dict[str, dict[str, Any]]:
    """What it is answered (firmware-18, firmware-19)."""
    inner = FirmwareAnswer.__name__
    found = {"type": "boolean", "description": "False: there is no such image, and no `result`."}
    return {
        FIRMWARE_ANSWER: {
            "title": FIRMWARE_ANSWER,
            "description": "The answer to a question with the same id.",
            "type": "object",
            "properties": {"id": _ID_SCHEMA, "success": found, "result": build_schema_reference(inner)},
            "required": ["id", "success"],
            "if": {"properties": {"success": {"const": True}}},
            "then": {"required": ["result"]},
        },
        inner: build_schema(FirmwareAnswer),
    }
