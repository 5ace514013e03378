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

from meshfleet.errors import MalformedPayload, PayloadTooLarge, plain
from meshfleet.wire.choices import none_of
from meshfleet.wire.decoders import decoder_of
from meshfleet.wire.fields import Spelling
from meshfleet.wire.plainly import plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

MAX_PAYLOAD = 64 * 1024
"""Bytes; anything longer is rejected unread (report-28)."""


MAX_DEPTH = 128
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
    read: Callable[[Any, str], Any] | None
    write: Callable[[Any], Any] | None


def read(kind: type[PayloadT], payload: bytes, *, without: Collection[str] = ()) -> PayloadT:
    """Read a payload with all that is tolerated, or raise a `WireError` that names the field."""
    return convert(kind, read_object(payload), without=without)


def convert(kind: type[PayloadT], given: dict[str, Any], *, without: Collection[str] = ()) -> PayloadT:
    """Make a payload of an object that is read already; fields in `without` are not looked at."""
    known = {}
    for field in _fields(kind):
        if field.name in given and field.name not in without:
            value = given[field.name]
            known[field.name] = field.read(value, field.name) if field.read else value
    decoder_of(kind)  # what it has learned serves here too
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as exc:
        raise rejection(kind, exc) from None


def read_object(payload: bytes) -> dict[str, Any]:
    """Read a payload as far as every payload is alike: a JSON object in UTF-8, and not too long."""
    if len(payload) > MAX_PAYLOAD:
        raise PayloadTooLarge("payload", f"has {len(payload)} bytes; {MAX_PAYLOAD} are allowed")
    # msgspec does not look at the bytes of fields it skips, so UTF-8 is checked for the whole text.
    text = utf8(payload)
    try:
        given = msgspec.json.decode(text)
    except msgspec.DecodeError as exc:
        raise MalformedPayload("payload", f"cannot be read as JSON: {exc}") from exc
    except RecursionError:
        raise MalformedPayload("payload", "is nested too deeply") from None
    if not isinstance(given, dict):
        raise MalformedPayload("payload", "is not a JSON object")
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(given):
        raise MalformedPayload("payload", "is nested too deeply")
    return given


def _is_deep(given: Any) -> bool:
    level = [given]
    for _ in range(MAX_DEPTH):
        inner = (part.values() if isinstance(part, dict) else part for part in level)
        level = [part for parts in inner for part in parts if isinstance(part, dict | list)]
    return bool(level)


def utf8(payload: bytes) -> str:
    """Read text that may hold a key."""
    # Python's own error holds the whole payload, and there may be a key in it: it is not kept as a cause.
    with suppress(UnicodeDecodeError):
        return str(payload, "utf-8")
    raise MalformedPayload("payload", "is not UTF-8")


def write(body: Payload, *, without: Collection[str] = ()) -> bytes:
    """Write a payload; what is absent, at its default, or named in `without` is left out.

    The payload is trusted to be one: limits are checked where values enter, which is when they are read.
    """
    try:
        return msgspec.json.encode(spell(body, without=without))
    except UnicodeEncodeError:
        raise MalformedPayload("payload", "holds text that UTF-8 cannot say") from None


def spell(body: Payload, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Make the object to write of a payload."""
    fields = {}
    for field in _fields(type(body)):
        value = getattr(body, field.attribute)
        if value is UNSET or value == field.default or field.name in without:
            continue
        fields[field.name] = field.write(value) if field.write else value
    return fields


@cache
def _fields(kind: type[Payload]) -> tuple[_Field, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        _Field(info.name, info.encode_name, info.default, *(_spelling(hints[info.name]) or (None, None)))
        for info in msgspec.structs.fields(kind)
    )


def _spelling(hint: Any) -> Spelling | None:
    """The spelling of a field type, be it optional or not."""
    if get_origin(hint) is Annotated:
        return next((extra for extra in hint.__metadata__ if isinstance(extra, Spelling)), None)
    return next(filter(None, map(_spelling, get_args(hint))), None)


_AT = re.compile(r"(?P<reason>.*) - at `\$\.?(?P<field>[^`]*)`", re.DOTALL)
_INSIDE = r"(?: - at `\$\.?(?P<place>[^`]*)`)?"
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]*)`" + _INSIDE)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*?)`" + _INSIDE, re.DOTALL)


def _within(place: str | None, field: str) -> str:
    return f"{place}.{field}" if place else field


def rejection(kind: type[Struct], exc: msgspec.ValidationError) -> MalformedPayload:
    """Turn msgspec's sentence about a struct into our error: it carries the field only as text."""
    text = str(exc)
    if missing := _MISSING.fullmatch(text):
        return MalformedPayload(_within(missing["place"], missing["field"]), "is missing")
    if unknown := _UNKNOWN.fullmatch(text):
        return MalformedPayload(_within(unknown["place"], plain(unknown["field"])), "is not a field here")
    if at := _AT.fullmatch(text):
        # That sentence repeats what was sent, however long it is, and not what could be.
        is_choice = at["reason"].startswith("Invalid enum value")
        return MalformedPayload(
            at["field"], none_of(kind, at["field"]) if is_choice else plainly(at["reason"])
        )
    return MalformedPayload("payload", plainly(text))
