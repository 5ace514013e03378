"""Payloads: a JSON object in UTF-8 to a struct and back.

`read` accepts every spelling that the protocol tolerates and names the field of whatever it rejects.
It is the careful way; reports have a fast way in front of it.
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
"""Bytes; anything longer is rejected unread (report-28)."""


MAX_NESTING_DEPTH = 128
"""Objects and arrays within each other. Python's own limit depends on its version and on who calls."""


class Payload(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """What all payloads share. `read` drops unknown fields; the fast way of reports leaves them to it.

    Payloads are written by `write`: msgspec by itself would spell times and versions in its own way. Only the
    fast way of reports asks it to, and puts that right.
    """


PayloadT = TypeVar("PayloadT", bound=Payload)


class _Field(NamedTuple):
    attribute: str
    name: str
    default: Any
    decode: Callable[[Any, str], Any] | None
    encode: Callable[[Any], Any] | None


def decode_payload(kind: type[PayloadT], payload: bytes, *, excluded: Collection[str] = ()) -> PayloadT:
    """Read a payload with all that is tolerated, or raise a `WireError` that names the field."""
    return build_payload(kind, decode_object(payload), excluded=excluded)


def build_payload(kind: type[PayloadT], given: dict[str, Any], *, excluded: Collection[str] = ()) -> PayloadT:
    """Make a payload of an object that is read already; fields in `without` are not looked at."""
    known = {}
    for field in _fields(kind):
        if field.name in given and field.name not in excluded:
            value = given[field.name]
            known[field.name] = field.decode(value, field.name) if field.decode else value
    get_decoder(kind)  # what it has learned serves here too
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as exc:
        raise to_malformed_payload(kind, exc) from None


def decode_object(payload: bytes) -> dict[str, Any]:
    """Read a payload as far as every payload is alike: a JSON object in UTF-8, and not too long."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge("payload", f"has {len(payload)} bytes; {MAX_PAYLOAD_BYTES} are allowed")
    # msgspec does not look at the bytes of fields it skips, so UTF-8 is checked for the whole text.
    text = decode_utf8(payload)
    try:
        given = msgspec.json.decode(text)
    except msgspec.DecodeError as exc:
        raise MalformedPayload("payload", f"cannot be read as JSON: {exc}") from exc
    except RecursionError:
        raise MalformedPayload("payload", "is nested too deeply") from None
    if not isinstance(given, dict):
        raise MalformedPayload("payload", "is not a JSON object")
    if text.count("[") + text.count("{") > MAX_NESTING_DEPTH and _is_deep(given):
        raise MalformedPayload("payload", "is nested too deeply")
    return given


def _is_deep(given: Any) -> bool:
    level = [given]
    for _ in range(MAX_NESTING_DEPTH):
        inner = (part.values() if isinstance(part, dict) else part for part in level)
        level = [part for parts in inner for part in parts if isinstance(part, dict | list)]
    return bool(level)


def decode_utf8(payload: bytes) -> str:
    """Read text that may hold a key."""
    # Python's own error holds the whole payload, and there may be a key in it: it is not kept as a cause.
    with suppress(UnicodeDecodeError):
        return str(payload, "utf-8")
    raise MalformedPayload("payload", "is not UTF-8")


def encode_payload(body: Payload, *, excluded: Collection[str] = ()) -> bytes:
    """Write a payload; what is absent, at its default, or named in `without` is left out.

    The payload is trusted to be one: limits are checked where values enter, which is when they are read.
    """
    try:
        return msgspec.json.encode(to_json_object(body, excluded=excluded))
    except UnicodeEncodeError:
        raise MalformedPayload("payload", "holds text that UTF-8 cannot say") from None


def to_json_object(body: Payload, *, excluded: Collection[str] = ()) -> dict[str, Any]:
    """Make the object to write of a payload."""
    fields = {}
    for field in _fields(type(body)):
        value = getattr(body, field.attribute)
        if value is UNSET or value == field.default or field.name in excluded:
            continue
        fields[field.name] = field.encode(value) if field.encode else value
    return fields


@cache
def _fields(kind: type[Payload]) -> tuple[_Field, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        _Field(info.name, info.encode_name, info.default, *(_find_codec(hints[info.name]) or (None, None)))
        for info in msgspec.structs.fields(kind)
    )


def _find_codec(hint: Any) -> FieldCodec | None:
    """The spelling of a field type, be it optional or not."""
    if get_origin(hint) is Annotated:
        return next((extra for extra in hint.__metadata__ if isinstance(extra, FieldCodec)), None)
    return next(filter(None, map(_find_codec, get_args(hint))), None)


_AT = re.compile(r"(?P<reason>.*) - at `\$\.?(?P<field>[^`]*)`", re.DOTALL)
_INSIDE = r"(?: - at `\$\.?(?P<place>[^`]*)`)?"
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]*)`" + _INSIDE)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*?)`" + _INSIDE, re.DOTALL)


def _within(place: str | None, field: str) -> str:
    return f"{place}.{field}" if place else field


def to_malformed_payload(kind: type[Struct], exc: msgspec.ValidationError) -> MalformedPayload:
    """Turn msgspec's sentence about a struct into our error: it carries the field only as text."""
    text = str(exc)
    if missing := _MISSING.fullmatch(text):
        return MalformedPayload(_within(missing["place"], missing["field"]), "is missing")
    if unknown := _UNKNOWN.fullmatch(text):
        return MalformedPayload(
            _within(unknown["place"], quote_name(unknown["field"])), "is not a field here"
        )
    if at := _AT.fullmatch(text):
        # That sentence repeats what was sent, however long it is, and not what could be.
        is_choice = at["reason"].startswith("Invalid enum value")
        return MalformedPayload(
            at["field"],
            explain_invalid_choice(kind, at["field"])
            if is_choice
            else explain_validation_error(at["reason"]),
        )
    return MalformedPayload("payload", explain_validation_error(text))
