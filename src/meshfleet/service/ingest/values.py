"""Values as samples keep them: a number where it is one, and else JSON."""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from meshfleet.db.samples import More
from meshfleet.errors import WireError
from meshfleet.wire.identifiers import BUILTIN

if TYPE_CHECKING:
    from meshfleet.wire.fields import Json

Number: TypeAlias = float | int | None

_EXACT: Final = 2**53
"""Whole numbers up to here are the same in every reader of JSON, and in a database's floating point."""

_CACHED: Final = 1 << 15
"""Raw values that are remembered. Most devices repeat a few for ever."""

_SHORT: Final = 32
"""Digits of those that are."""

_encode = msgspec.json.Encoder().encode


def from_json(value: Json, ext: dict[str, Json] | None) -> tuple[Number, More | None]:
    """A value of a decoded report."""
    if type(value) is float and ext is None and isfinite(value):
        return value, None
    number, text = _plain(value)
    if text is None and ext is None:
        return number, None
    return number, More(text=text, ext=None if ext is None else _spell(ext))


def from_raw(identifier: str, value: str) -> tuple[Number, bytes, More | None]:
    """A raw value, decoded if the catalogue can (report-45), with the bytes themselves."""
    return _remembered(identifier, value) if len(value) <= _SHORT else _decoded(identifier, value)


def _decoded(identifier: str, value: str) -> tuple[Number, bytes, More | None]:
    raw = bytes.fromhex(value)
    entry = BUILTIN.find(identifier)
    if entry is None or entry.layout is None:
        return None, raw, None
    try:
        decoded = entry.decode(raw)
    except WireError:  # bytes that are no value of this identifier are kept as they are
        return None, raw, None
    number, more = from_json(decoded.value, decoded.ext)
    return number, raw, more


_remembered = lru_cache(_CACHED)(_decoded)


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
