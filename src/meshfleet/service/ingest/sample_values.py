"""Converts reported values to their stored form: a number if possible, otherwise JSON."""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from meshfleet.db.samples import SampleExtras
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, IdentifierDefinition
from meshfleet.protocol.identifiers.layouts import NumberLayout

if TYPE_CHECKING:
    from meshfleet.protocol.fields import Json

SampleNumber: TypeAlias = float | int | None

_MAX_EXACT_INTEGER: Final = 2**53
"""Largest integer that a double represents exactly; databases and many JSON readers use doubles."""

_encode = msgspec.json.Encoder().encode


def to_sample_value(value: Json, ext: dict[str, Json] | None) -> tuple[SampleNumber, SampleExtras | None]:
    """Convert the JSON value and extension fields of a report to a number and, if needed, sample extras."""
    if type(value) is float and ext is None and isfinite(value):
        return value, None
    number, text = _to_number_and_text(value)
    if text is None and ext is None:
        return number, None
    return number, SampleExtras(text=text, ext=None if ext is None else _encode_text(ext))


RawDecoder: TypeAlias = Callable[[str], tuple[SampleNumber, bytes, SampleExtras | None]]
"""Function that decodes a raw value (hex string) into a number, bytes and sample extras."""


def build_raw_decoder(identifier: str) -> RawDecoder:
    """Build the decoder for raw values (hex strings) of an identifier.

    For a value that cannot be decoded, the decoder returns only the bytes (report-45).
    """
    entry = BUILTIN_CATALOGUE.find(identifier)
    if entry is None or entry.layout is None:
        return lambda value: (None, bytes.fromhex(value), None)
    if type(entry.layout) is NumberLayout:  # most samples are numbers of a few bytes
        return _build_number_decoder(entry, entry.layout)
    return _build_general_decoder(entry)


def _build_general_decoder(entry: IdentifierDefinition) -> RawDecoder:
    """Build the decoder for raw values of an identifier with any layout, with or without extension."""

    def decode_value(value: str) -> tuple[SampleNumber, bytes, SampleExtras | None]:
        raw = bytes.fromhex(value)
        try:
            decoded = entry.decode(raw)
        except MalformedInput:
            return None, raw, None
        number, extras = to_sample_value(decoded.value, decoded.ext)
        return number, raw, extras

    return decode_value


def _build_number_decoder(entry: IdentifierDefinition, layout: NumberLayout) -> RawDecoder:
    """Build the fast decoder for an identifier whose values are single numbers."""
    decode_general = _build_general_decoder(entry)
    unpack = struct.Struct(f">{layout.struct_format}").unpack
    convert, digit_count = layout.convert, 2 * layout.size

    def decode_number(value: str) -> tuple[SampleNumber, bytes, SampleExtras | None]:
        if len(value) != digit_count:  # with an extension, or too short
            return decode_general(value)
        raw = bytes.fromhex(value)
        (number,) = unpack(raw)
        return number if convert is None else convert(number), raw, None

    return decode_number


def from_sample_value(number: SampleNumber, more: SampleExtras | None) -> Any:
    """Return the value of a sample as it was reported, from the stored number and extras."""
    if more is not None and more.text is not None:
        return msgspec.json.decode(more.text)
    return number


def _to_number_and_text(value: Json) -> tuple[SampleNumber, str | None]:
    """Return a JSON value as a number, if possible, and as JSON text, if the number alone is not exact."""
    if isinstance(value, bool):
        return int(value), _encode_text(value)
    if isinstance(value, int) and abs(value) <= _MAX_EXACT_INTEGER:
        return value, None
    if isinstance(value, float) and isfinite(value):
        return value, None
    return None, _encode_text(value)


def _encode_text(value: Json) -> str:
    return _encode(value).decode()
