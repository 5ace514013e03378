"""Conversion of message payloads (JSON objects in UTF-8) to structs and back.

`decode_payload` accepts every spelling that the protocol tolerates; its errors name the invalid field.
Reports have a faster decoder, which calls `decode_payload` for unusual spellings and errors.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct

from meshfleet.errors import quote_name
from meshfleet.errors.protocol import MalformedPayload, PayloadTooLarge
from meshfleet.protocol.decoders import get_decoder
from meshfleet.protocol.fields import FieldCodec
from meshfleet.protocol.validation_messages import explain_invalid_choice, explain_validation_error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

MAX_PAYLOAD_BYTES = 64 * 1024
"""Maximum bytes of a message payload; a longer payload is rejected without being decoded (report-28)."""


MAX_NESTING_DEPTH = 128
"""Maximum nesting depth of objects and arrays in a payload. Python's own limit varies."""


class Payload(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """Base class of all message payloads.

    `build_payload` ignores unknown fields; msgspec's decoder rejects unknown fields. Encode payloads with
    `encode_payload`: msgspec itself would format times and versions differently. Only `encode_report` uses
    msgspec directly, and corrects the time.
    """


PayloadT = TypeVar("PayloadT", bound=Payload)


class _Field(NamedTuple):
    """Field of a payload type: name of the attribute, name in JSON, default value, functions of its codec."""

    attribute: str
    name: str
    default: Any
    decode: Callable[[Any, str], Any] | None
    encode: Callable[[Any], Any] | None


def decode_payload(kind: type[PayloadT], payload: bytes, *, excluded: Collection[str] = ()) -> PayloadT:
    """Decode a payload in any tolerated spelling, or raise a `MalformedInput` that names the invalid field.

    Fields in `excluded` are ignored.
    """
    return build_payload(kind, decode_object(payload), excluded=excluded)


def build_payload(
    kind: type[PayloadT], json_object: dict[str, Any], *, excluded: Collection[str] = ()
) -> PayloadT:
    """Build a payload from a JSON object. Ignore unknown fields and the fields in `excluded`."""
    values = {}
    for field in _list_fields(kind):
        if field.name in json_object and field.name not in excluded:
            value = json_object[field.name]
            values[field.name] = field.decode(value, field.name) if field.decode else value
    get_decoder(kind)  # inspects the struct under a lock, for `convert` too
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as exc:
        raise to_malformed_payload(kind, exc) from None


def decode_object(payload: bytes) -> dict[str, Any]:
    """Decode a payload to a JSON object. Raise an error if it is too long, not UTF-8 or nested too deeply."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge("payload", f"has {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} are allowed")
    # msgspec does not validate the bytes of skipped fields, so UTF-8 is checked for the whole text.
    text = decode_utf8(payload)
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.DecodeError as exc:
        raise MalformedPayload("payload", f"cannot be read as JSON: {exc}") from exc
    except RecursionError:
        raise MalformedPayload("payload", "is nested too deeply") from None
    if not isinstance(decoded, dict):
        raise MalformedPayload("payload", "is not a JSON object")
    if text.count("[") + text.count("{") > MAX_NESTING_DEPTH and _is_nested_too_deeply(decoded):
        raise MalformedPayload("payload", "is nested too deeply")
    return decoded


def _is_nested_too_deeply(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_NESTING_DEPTH):
        contents = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for items in contents for item in items if isinstance(item, dict | list)]
    return bool(level)


def decode_utf8(payload: bytes) -> str:
    """Decode a UTF-8 payload to a string. The error never contains the payload, which may include a key."""
    # Python's own error contains the whole payload, maybe with a key: it is not kept as the cause.
    with suppress(UnicodeDecodeError):
        return str(payload, "utf-8")
    raise MalformedPayload("payload", "is not UTF-8")


def encode_payload(body: Payload, *, excluded: Collection[str] = ()) -> bytes:
    """Encode a payload. Omit unset fields, fields with their default value, and the fields in `excluded`.

    Values are not checked here, but when a payload is decoded or built.
    """
    try:
        return msgspec.json.encode(to_json_object(body, excluded=excluded))
    except UnicodeEncodeError:
        raise MalformedPayload("payload", "contains text that cannot be encoded as UTF-8") from None


def to_json_object(body: Payload, *, excluded: Collection[str] = ()) -> dict[str, Any]:
    """Convert a payload to a JSON object, without unset fields, defaults, and the fields in `excluded`."""
    fields = {}
    for field in _list_fields(type(body)):
        value = getattr(body, field.attribute)
        if value is UNSET or value == field.default or field.name in excluded:
            continue
        fields[field.name] = field.encode(value) if field.encode else value
    return fields


@cache
def _list_fields(kind: type[Payload]) -> tuple[_Field, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        _Field(info.name, info.encode_name, info.default, *(_find_codec(hints[info.name]) or (None, None)))
        for info in msgspec.structs.fields(kind)
    )


def _find_codec(hint: Any) -> FieldCodec | None:
    """Return the `FieldCodec` in a type hint, or in a member of a union type; None if there is none."""
    if get_origin(hint) is Annotated:
        return next((extra for extra in hint.__metadata__ if isinstance(extra, FieldCodec)), None)
    return next(filter(None, map(_find_codec, get_args(hint))), None)


_ERROR_AT_FIELD = re.compile(r"(?P<reason>.*) - at `\$\.?(?P<field>[^`]*)`", re.DOTALL)
_PATH = r"(?: - at `\$\.?(?P<place>[^`]*)`)?"
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<field>[^`]*)`" + _PATH)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<field>.*?)`" + _PATH, re.DOTALL)


def _join_path(place: str | None, field: str) -> str:
    """Return the path of a field in the object at the path `place`, or at the top if `place` is None."""
    return f"{place}.{field}" if place else field


def to_malformed_payload(kind: type[Struct], exc: msgspec.ValidationError) -> MalformedPayload:
    """Convert a validation error of msgspec to a `MalformedPayload` that names the invalid field."""
    text = str(exc)
    if missing := _MISSING_FIELD.fullmatch(text):
        return MalformedPayload(_join_path(missing["place"], missing["field"]), "is missing")
    if unknown := _UNKNOWN_FIELD.fullmatch(text):
        return MalformedPayload(
            _join_path(unknown["place"], quote_name(unknown["field"])), "is not a known field"
        )
    if error := _ERROR_AT_FIELD.fullmatch(text):
        # msgspec repeats the value, however long it is, and does not list the allowed values.
        is_choice = error["reason"].startswith("Invalid enum value")
        return MalformedPayload(
            error["field"],
            explain_invalid_choice(kind, error["field"])
            if is_choice
            else explain_validation_error(error["reason"]),
        )
    return MalformedPayload("payload", explain_validation_error(text))
