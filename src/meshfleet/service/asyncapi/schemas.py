"""JSON schemas of MQTT payloads, generated from the structs that encode and decode the payloads."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args, get_type_hints

import msgspec

from meshfleet.protocol import fields
from meshfleet.protocol.api_versions import InterfacePart, find_first_version
from meshfleet.protocol.codes import Kind, Operation, Status
from meshfleet.protocol.diagnostics import ImageLocation, ImageRequest, Sha256Field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.protocol.ids import Version
    from meshfleet.protocol.payload import Payload


# Descriptions of fields: units, defaults, and the meaning of numbers.


def _describe_enum(values: type[Enum]) -> str:
    return ", ".join(
        f"`{each.value}` {each.name.lower().replace('_', ' ')}"
        for each in sorted(values, key=lambda each: each.value)
    )


_STATUS_VALUES_TEXT: Final = f"{_describe_enum(Status)}; other values are passed on unchanged"
_JSON_VALUE_TEXT: Final = "The value, as any JSON; the unit depends on the identifier."

_FIELD_TEXTS: Final[Mapping[str, str]] = {
    "time": "Time of the observation.",
    "seq": "Sequence number of the reports of this device, kind and identifier: 0 to 255, then 0 again.",
    "status": "Status of the device: 0 is OK, any other value is a device-specific error or warning.",
    "lastCount": "Number of copies of the previous heartbeat that were received.",
    "parent": "The MAC of the mesh node that received the device.",
    "rssi": "Received signal strength of the device, in dBm.",
    "channel": "The BLE advertising channel on which the device was received.",
    "unreachable": "True: the device cannot be reached through this parent.",
    "value": _JSON_VALUE_TEXT,
    "ext": "The extension of the value, if it has one.",
    "error": f"Why the measurement failed: {_STATUS_VALUES_TEXT}.",
    "errorExt": "Additional, device-specific error code.",
    "id": "Chosen by the sender of the request and unique there; repeated in the response.",
    "priority": "Priority of the request and its response in the mesh.",
    "extenderId": "The MAC of the extender that reaches an unconnected device.",
    "accessType": "How a device outside the secure network is reached.",
    "publicKey": "The public key for an unprovisioned device, as hex.",
    "key": "The network key, as hex. It is never stored, logged or shown.",
    "type": "What to do with the samples that the device still stores.",
    "responseTime": "Time until the response, in milliseconds.",
    "origin": (
        "Origin of the response: the target itself (connected or unconnected), or an extender or the gateway."
    ),
    "errorMessage": "Error text for users. It may change at any time: do not evaluate it in programs.",
    "route": "The route to the connected target that responded: MACs joined by `-`, the first hop first.",
    "extenderRoute": "The route to the extender, in the form of `route`.",
    "modelNumber": "The model number of the firmware.",
    "version": "The version of the messaging interface that the gateway supports.",
    "firmwareType": "Package format of the image.",
    "uri": "Download address of the image, valid for a short time.",
    "fileName": "The file name of the image.",
    "sha256": "The SHA-256 of the file at `uri`, as hex.",
    "size": "The size of the file at `uri`, in bytes.",
}

_RAW_VALUE_TEXT: Final = "The bytes of the value, as hex; the catalogue of identifiers defines their meaning."

_PAYLOAD_FIELD_TEXTS: Final[Mapping[tuple[str, str], str]] = {
    ("Heartbeat", "seq"): "Sequence number of the heartbeats of this device: 0 to 255, then 0 again.",
    ("Rssi", "seq"): "Sequence number of the received advertisement: 0 to 255.",
    ("Property", "value"): _RAW_VALUE_TEXT,
    ("Measurement", "value"): _RAW_VALUE_TEXT,
    ("Event", "value"): f"{_RAW_VALUE_TEXT} Only some events have one.",
    ("EventDecoded", "value"): f"{_JSON_VALUE_TEXT} Only some events have one.",
    ("WriteRequest", "value"): (
        "The bytes to write, as hex. Null, an empty string or a missing value writes NULL (no value), "
        "which triggers a command property."
    ),
    ("WriteDecodedRequest", "value"): (
        "The value to write, as any JSON; the unit depends on the identifier. Null or a missing value writes "
        "NULL (no value), which triggers a command property."
    ),
    ("AckRequest", "time"): "The `time` of the acknowledged sample, truncated to milliseconds.",
    ("AckRequest", "id"): "As in every request; there is no response to an ack.",
    ("ReadResponse", "value"): f"{_RAW_VALUE_TEXT} Always present if `status` is 0.",
    ("ReadDecodedResponse", "value"): f"{_JSON_VALUE_TEXT} Always present if `status` is 0.",
    ("ImageRequest", "version"): "The version of the firmware.",
    **{
        (response, field): text
        for response in ("Response", "ApiVersionResponse", "ReadResponse", "ReadDecodedResponse")
        for field, text in (
            ("time", "Time of the response."),
            ("status", f"Result of the request: {_STATUS_VALUES_TEXT}."),
            ("id", "The `id` of the request, if it had one."),
            ("extenderId", "The MAC of the extender that reached the unconnected target."),
        )
    },
}
"""Descriptions of fields that differ from `_FIELD_TEXTS` in some payloads, by payload and field name."""


# Formats of field types, and other forms that are accepted.

_HEX: Final = "^([0-9a-f]{2})*$"
_EITHER_CASE: Final = "Accepted in upper and lower case."


class _FieldFormat(NamedTuple):
    """Schema of a payload field as it is sent, and a sentence about other accepted formats."""

    schema: dict[str, Any]
    tolerated: str = ""


_FIELD_FORMATS: Final[dict[object, _FieldFormat]] = {
    fields.TimeField: _FieldFormat(
        {"format": "date-time", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$"},
        "UTC with three fractional digits and `Z`. Accepted with any number of digits, with any offset or "
        "none (then UTC), and in the other forms of ISO 8601; fractions of a millisecond are truncated.",
    ),
    fields.SequenceField: _FieldFormat({}, "Also accepted as a string."),
    fields.MacField: _FieldFormat({"pattern": "^[0-9a-f]{12}$"}, _EITHER_CASE),
    fields.ExtenderIdField: _FieldFormat(
        {"pattern": "^[0-9A-F]{12}$"}, f"Sent in upper case. {_EITHER_CASE}"
    ),
    fields.HexField: _FieldFormat({"pattern": _HEX}, _EITHER_CASE),
    fields.HexOrNullField: _FieldFormat({"type": ["string", "null"], "pattern": _HEX}, _EITHER_CASE),
    fields.SecretField: _FieldFormat({"pattern": _HEX}, _EITHER_CASE),
    fields.ModelNumberField: _FieldFormat({"pattern": "^[0-9A-F]{4}$"}, _EITHER_CASE),
    fields.VersionField: _FieldFormat(
        {"pattern": r"^\d{1,5}\.\d{1,5}\.\d{1,5}(-beta\.\d{1,3})?$"},
        "A missing third number means 0.",
    ),
    Sha256Field: _FieldFormat({"pattern": "^[0-9a-f]{64}$"}, _EITHER_CASE),
}


_RULES: Final = re.compile(r" \([a-z]+-\d[^)]*\)")
"""Pattern of rule numbers in docstrings, which are removed from the AsyncAPI document."""


def build_schema(
    payload: type[Payload], part: InterfacePart | None = None, code: Kind | Operation | None = None
) -> dict[str, Any]:
    """Return the JSON schema of an MQTT payload as it is sent.

    If `part` and `code` are given, the schema says for each field which interface version added it.
    """
    name = payload.__name__
    # Custom field types are strings; `_FIELD_FORMATS` has their patterns.
    components = msgspec.json.schema_components([payload], schema_hook=lambda _: {"type": "string"})[1]
    schema: dict[str, Any] = components[name]
    # Later versions may add fields, and receivers ignore unknown ones.
    del schema["additionalProperties"]
    schema["description"] = _RULES.sub("", schema["description"]).replace("None", "null").replace("?.", "?")
    hints = get_type_hints(payload, include_extras=True)
    for each in msgspec.structs.fields(payload):
        field = each.encode_name
        text = _PAYLOAD_FIELD_TEXTS.get((name, field)) or _FIELD_TEXTS[field]
        since = find_first_version(part, code, field) if part else None
        _complete_field_schema(schema["properties"][field], hints[each.name], text, since)
    return schema


def build_schema_reference(name: str) -> dict[str, str]:
    """Return an AsyncAPI reference to the schema with this name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _complete_field_schema(schema: dict[str, Any], hint: object, text: str, since: Version | None) -> None:
    """Add description, format and first interface version to the schema of a field; `hint` is its type."""
    schema.pop("$ref", None)  # keywords next to a reference are ignored, so the values of an enum are inlined
    if (values := _find_enum(hint)) is not None:
        is_numeric = issubclass(values, int)
        schema["type"] = "integer" if is_numeric else "string"
        schema["enum"] = sorted(each.value for each in values)
        text = f"{text} {_describe_enum(values)}." if is_numeric else text
    formats = (_FIELD_FORMATS[part] for part in (hint, *get_args(hint)) if part in _FIELD_FORMATS)
    field_format = next(formats, _FieldFormat({}))
    if "type" in field_format.schema:
        schema.pop("anyOf", None)
    schema |= field_format.schema
    texts = (text, field_format.tolerated, f"Since version {since}." if since else "")
    schema["description"] = " ".join(filter(None, texts))
    if since:
        schema["x-since"] = str(since)


def _find_enum(hint: object) -> type[Enum] | None:
    """Return the enum in a type annotation, which may be optional; None if there is no enum."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return next(filter(None, map(_find_enum, get_args(hint))), None)


# Envelopes of diagnostics messages: an id with the image request, and with the response.

_ID_SCHEMA: Final = {"type": "string", "description": "Chosen by the gateway; repeated in the response."}

IMAGE_REQUEST_SCHEMAS: Final[Mapping[str, dict[str, Any]]] = {
    "FirmwareCommand": {
        "title": "FirmwareCommand",
        "description": "A firmware request with its id.",
        "type": "object",
        "properties": {"id": _ID_SCHEMA, "params": build_schema_reference("FirmwareQuestion")},
        "required": ["id", "params"],
    },
    # The schema names are part of the interface.
    "FirmwareQuestion": build_schema(ImageRequest) | {"title": "FirmwareQuestion"},
}
"""JSON schemas of an image request (firmware-15), by name."""

IMAGE_RESPONSE_SCHEMAS: Final[Mapping[str, dict[str, Any]]] = {
    "FirmwareResponse": {
        "title": "FirmwareResponse",
        "description": "The response to the firmware request with the same id.",
        "type": "object",
        "properties": {
            "id": _ID_SCHEMA,
            "success": {
                "type": "boolean",
                "description": "False: there is no such image, and `result` is absent.",
            },
            "result": build_schema_reference("FirmwareAnswer"),
        },
        "required": ["id", "success"],
        "if": {"properties": {"success": {"const": True}}},
        "then": {"required": ["result"]},
    },
    "FirmwareAnswer": build_schema(ImageLocation) | {"title": "FirmwareAnswer"},
}
"""JSON schemas of the response to an image request (firmware-18, firmware-19), by name."""
