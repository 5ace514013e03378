"""Values as samples keep them: a number where it is one, and else JSON."""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from meshfleet.db.samples import More
from meshfleet.errors import WireError
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.identifiers.layouts import Number as NumberLayout

if TYPE_CHECKING:
    from meshfleet.wire.fields import Json
    from meshfleet.wire.identifiers import Entry

Number: TypeAlias = float | int | None

_EXACT: Final = 2**53
"""Whole numbers up to here are the same in every reader of JSON, and in a database's floating point."""

_encode = msgspec.json.Encoder().encode


def from_json(value: Json, ext: dict[str, Json] | None) -> tuple[Number, More | None]:
    """A value of a decoded report."""
    if type(value) is float and ext is None and isfinite(value):
        return value, None
    number, text = _plain(value)
    if text is None and ext is None:
        return number, None
    return number, More(text=text, ext=None if ext is None else _spell(ext))


RawReader: TypeAlias = Callable[[str], tuple[Number, bytes, More | None]]
"""Reads the hex of a raw value; gives the bytes too."""


def raw_reader(identifier: str) -> RawReader:
    """What reads raw values of an identifier; what cannot be decoded is kept as it is (report-45)."""
    entry = BUILTIN.find(identifier)
    if entry is None or entry.layout is None:
        return lambda value: (None, bytes.fromhex(value), None)
    # Most samples are numbers of a few bytes.
    return _number_reader(entry, entry.layout) if type(entry.layout) is NumberLayout else _reader(entry)


def _reader(entry: Entry) -> RawReader:
    def read(value: str) -> tuple[Number, bytes, More | None]:
        raw = bytes.fromhex(value)
        try:
            decoded = entry.decode(raw)
        except WireError:
            return None, raw, None
        number, more = from_json(decoded.value, decoded.ext)
        return number, raw, more

    return read


def _number_reader(entry: Entry, layout: NumberLayout) -> RawReader:
    other = _reader(entry)
    unpack, finish, digits = struct.Struct(f">{layout.code}").unpack, layout.finish, 2 * layout.size

    def read(value: str) -> tuple[Number, bytes, More | None]:
        if len(value) != digits:  # with an extension, or too short
            return other(value)
        raw = bytes.fromhex(value)
        (number,) = unpack(raw)
        return number if finish is None else finish(number), raw, None

    return read


def to_json(number: Number, more: More | None) -> Any:
    """The value again."""
    if more is not None and more.text is not None:
        return msgspec.json.decode(more.text)
    return number


def _plain(value: Json) -> tuple[Number, str | None]:
    """A value as a number, and as JSON if the number does not say it all."""
    if isinstance(value, bool):
        return int(value), _spell(value)
    if isinstance(value, int) and abs(value) <= _EXACT:
        return value, None
    if isinstance(value, float) and isfinite(value):
        return value, None
    return None, _spell(value)


def _spell(value: Json) -> str:
    return _encode(value).decode()
