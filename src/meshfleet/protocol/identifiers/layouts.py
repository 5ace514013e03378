"""Layouts: conversion of raw bytes to JSON values and back. All numbers are big-endian (value-1).

`decode` takes the raw value and the offset at which to start, and returns the JSON value and the offset of
the next byte. `encode` takes a JSON value and its path for error messages, and returns the bytes.

Most layouts are a `FixedLayout`: a format of Python's `struct` module that unpacks one value, and a function
that converts this value to JSON. Records combine the formats of their fields and unpack them in one call.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from struct import Struct
from struct import error as StructError  # noqa: N812 # a class, despite its name
from typing import TYPE_CHECKING, Any, Protocol

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedHex, MalformedVersion, UndecodableValue, UnencodableValue
from meshfleet.protocol.hex import parse_hex
from meshfleet.protocol.ids import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.protocol.fields import Json


class Layout(Protocol):
    """Converts the binary form of a value to JSON and back."""

    @abstractmethod
    def decode(self, raw: bytes, offset: int) -> tuple[Json, int]:
        """Decode `raw` from `offset` on. Return the JSON value and the offset after it.

        Raise `UndecodableValue` if the bytes are invalid.
        """

    @abstractmethod
    def encode(self, value: Json, field: str) -> bytes:
        """Encode a JSON value, or raise `UnencodableValue`. `field` names the value in the error."""

    def encode_before_extension(self, value: Json, field: str) -> bytes:
        """Encode a JSON value for a raw value in which an extension (`ext` in JSON) follows this value."""
        return self.encode(value, field)


def build_too_short_error(raw: bytes, needed: int) -> UndecodableValue:
    """Return the error for a raw value of fewer than `needed` bytes."""
    return UndecodableValue("value", f"has {len(raw)} bytes; at least {needed} are required")


class FixedLayout(Layout):
    """Layout whose values all have the same number of bytes."""

    def __init__(self, struct_format: str, convert: Callable[[Any], Json] | None = None) -> None:
        """Create a layout from a `struct` format for one value; `convert` converts that value to JSON."""
        self.struct_format = struct_format
        self.convert = convert
        self._struct = Struct(f">{struct_format}")
        self._unpack = self._struct.unpack_from
        self.size = self._struct.size

    def decode(self, raw: bytes, offset: int) -> tuple[Json, int]:
        """Decode one value of fixed size at `offset`."""
        end = offset + self.size
        if len(raw) < end:
            raise build_too_short_error(raw, end)
        (value,) = self._unpack(raw, offset)
        return (value if self.convert is None else self.convert(value)), end


class VoidLayout(Layout):
    """Empty value: an event or command without data (value-2)."""

    def decode(self, raw: bytes, offset: int) -> tuple[None, int]:  # noqa: ARG002 # no bytes to decode
        """Return None and the unchanged offset."""
        return None, offset

    def encode(self, value: Json, field: str) -> bytes:
        """Return empty bytes for None. Raise `UnencodableValue` for any other value."""
        if value is not None:
            raise UnencodableValue(field, "has no value; only null is accepted")
        return b""


class BoolLayout(FixedLayout):
    """One byte, 0 or 1; a boolean in JSON (value-3)."""

    def __init__(self) -> None:
        super().__init__("B", _byte_to_bool)

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a JSON boolean as one byte, 0 or 1."""
        if not isinstance(value, bool):
            raise UnencodableValue(field, f"{quote_input(value)} is not a boolean")
        return b"\x01" if value else b"\x00"


def _byte_to_bool(byte: int) -> bool:
    if byte > 1:
        raise UndecodableValue("value", f"byte {byte} is neither 0 nor 1")
    return byte == 1


class FlagLayout(BoolLayout):
    """One byte in which only one bit has a known meaning; a boolean in JSON. Other bits are written as 0."""

    def __init__(self, bit: int) -> None:
        super().__init__()
        self._mask = mask = 1 << bit
        self.convert = lambda byte: byte & mask != 0

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a JSON boolean as the known bit of the byte."""
        return bytes([super().encode(value, field)[0] * self._mask])


_STRUCT_CODES = {
    (1, False): "B",
    (2, False): "H",
    (4, False): "I",
    (1, True): "b",
    (2, True): "h",
    (4, True): "i",
}


class NumberLayout(FixedLayout):
    """Whole number; in JSON the number divided by `scale`. `limits` restrict which numbers can be encoded.

    (value-4 to value-6, value-10)
    """

    def __init__(
        self, size: int, *, signed: bool, scale: int = 1, limits: tuple[int, int] | None = None
    ) -> None:
        """Create the layout. `limits` are inclusive, in units of the raw number.

        Raise `ValueError` if the limits exceed the range of `size` bytes.
        """
        code = _STRUCT_CODES.get((size, signed), f"{size}s")
        super().__init__(code, _build_number_converter(code, scale))
        self._signed = signed
        self._scale = scale
        value_count = 1 << 8 * size
        min_raw, max_raw = (-value_count // 2, value_count // 2 - 1) if signed else (0, value_count - 1)
        self.low, self.high = limits or (min_raw, max_raw)
        if not min_raw <= self.low <= self.high <= max_raw:
            raise ValueError(f"{self.low}..{self.high} is not within {min_raw}..{max_raw}")

    @property
    def is_plain(self) -> bool:
        """Whether the number is unsigned, without scale or limits."""
        return (self._scale, self.low, self.high) == (1, 0, (1 << 8 * self.size) - 1)

    @property
    def value_range(self) -> tuple[float, float]:
        """Lowest and highest JSON number that can be encoded."""
        return (
            (self.low, self.high) if self._scale == 1 else (self.low / self._scale, self.high / self._scale)
        )

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a JSON number times the scale as bytes. With a scale other than 1, round the product."""
        if not is_number(value):
            raise UnencodableValue(field, f"{quote_input(value)} is not a number")
        low, high = self.value_range
        # A value more than 1 outside the limits is not multiplied, as the product might overflow.
        number: int = round(value * self._scale) if low - 1 <= value <= high + 1 else self.high + 1
        if not self.low <= number <= self.high:
            raise UnencodableValue(field, f"{quote_input(value)} is not between {low} and {high}")
        if self._scale == 1 and number != value:
            raise UnencodableValue(field, f"{quote_input(value)} is not a whole number")
        return number.to_bytes(self.size, "big", signed=self._signed)


def _build_number_converter(code: str, scale: int) -> Callable[[Any], Json] | None:
    """Return a function that converts an unpacked value to a JSON number; None if none is needed."""
    if code.endswith("s"):
        return lambda data: int.from_bytes(data, "big") if scale == 1 else int.from_bytes(data, "big") / scale
    return None if scale == 1 else lambda number: number / scale


def is_number(value: Json) -> bool:
    """Return whether a value is a finite number and not a boolean."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


class EnumLayout(FixedLayout):
    """Whole number that stands for a keyword, such as `idle`; the keyword in JSON (value-11)."""

    def __init__(self, number: NumberLayout, words: Mapping[str, int]) -> None:
        """Create the layout from the number that stands for each keyword.

        Raise `UnencodableValue` if one of the numbers does not fit the layout `number`.
        """
        self._encoded = {keyword: number.encode(code, keyword) for keyword, code in words.items()}
        self._keywords = {raw: keyword for keyword, raw in self._encoded.items()}
        super().__init__(f"{number.size}s", self._find_keyword)

    @property
    def keywords(self) -> tuple[str, ...]:
        """All keywords, in the order of the table."""
        return tuple(self._encoded)

    def _find_keyword(self, raw: bytes) -> str:
        # An error, as from a gateway that does not know the number: the raw value is better than a guess.
        if raw not in self._keywords:
            raise UndecodableValue("value", f"{raw.hex()} is not a value of this enumeration")
        return self._keywords[raw]

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a keyword as its number."""
        if not isinstance(value, str) or value not in self._encoded:
            raise UnencodableValue(field, f"{quote_input(value)} is not one of {', '.join(self._encoded)}")
        return self._encoded[value]


class FloatLayout(FixedLayout):
    """IEEE 754 floating point number of 4 bytes (value-7)."""

    def __init__(self) -> None:
        super().__init__("f", _require_finite)

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a JSON number as a floating point number of 4 bytes."""
        if not is_number(value):
            raise UnencodableValue(field, f"{quote_input(value)} is not a number")
        try:
            return self._struct.pack(value)
        except (OverflowError, StructError) as exc:
            raise UnencodableValue(field, f"{quote_input(value)} is too large for 4 bytes") from exc


def _require_finite(number: float) -> float:
    if not math.isfinite(number):
        raise UndecodableValue("value", f"{number} has no JSON form")
    return number


class TextLayout(Layout):
    """UTF-8 string up to the end of the value (value-8)."""

    def decode(self, raw: bytes, offset: int) -> tuple[str, int]:
        """Decode a UTF-8 string up to the end of the raw value."""
        try:
            return raw[offset:].decode(), len(raw)
        except UnicodeDecodeError as exc:
            raise UndecodableValue("value", "is not UTF-8") from exc

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a JSON string as UTF-8."""
        try:
            return _require_string(value, field).encode()
        except UnicodeEncodeError as exc:
            raise UnencodableValue(field, "is not valid Unicode text") from exc


class HexLayout(FixedLayout):
    """Bytes without further structure, such as a key or a MAC; hex in JSON (value-9)."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size}s", bytes.hex)

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a hex string of exactly `size` bytes, in upper or lower case."""
        try:
            raw = parse_hex(_require_string(value, field), field)
        except MalformedHex as exc:
            raise UnencodableValue(field, exc.reason) from exc
        if len(raw) != self.size:
            raise UnencodableValue(field, f"has {len(raw)} bytes; exactly {self.size} are required")
        return raw


class VersionLayout(FixedLayout):
    """Version in a record: major, minor, patch, and beta number (0 for a release) (value-13, value-14)."""

    def __init__(self) -> None:
        super().__init__("4s", _format_version)

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a version string `M.m.p` or `M.m.p-beta.b` as 4 bytes."""
        try:
            version = Version.parse(_require_string(value, field))
        except MalformedVersion as exc:
            raise UnencodableValue(field, exc.reason) from exc
        if str(version) != value or max(version[:3]) > _MAX_BYTE:
            raise UnencodableValue(
                field, f"{quote_input(value)} is not M.m.p or M.m.p-beta.b with numbers up to {_MAX_BYTE}"
            )
        return bytes((*version[:3], version.beta))


class TrailingVersionLayout(Layout):
    """Version at the end of a value: like `VersionLayout`, but a release may omit the byte for the beta."""

    def decode(self, raw: bytes, offset: int) -> tuple[str, int]:
        """Decode a version of 3 or 4 bytes."""
        end = min(len(raw), offset + 4)
        if end < offset + 3:
            raise build_too_short_error(raw, offset + 3)
        return _format_version(raw[offset:end]), end

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a version string `M.m.p` as 3 bytes, or `M.m.p-beta.b` as 4 bytes."""
        return self.encode_before_extension(value, field).removesuffix(b"\x00")

    def encode_before_extension(self, value: Json, field: str) -> bytes:
        """Encode all 4 bytes, so that the first byte of the extension is not taken for a beta number."""
        return VersionLayout().encode(value, field)


def _format_version(data: bytes) -> str:
    text = f"{data[0]}.{data[1]}.{data[2]}"
    return f"{text}-beta.{data[3]}" if data[3:] > b"\x00" else text


class DottedLayout(FixedLayout):
    """Bytes that are written in JSON as numbers separated by dots, such as "1.0" (value-15)."""

    def __init__(self, parts: int) -> None:
        super().__init__(f"{parts}s", lambda data: ".".join(map(str, data)))
        self._pattern = re.compile(r"\.".join([r"(\d{1,3})"] * parts), re.ASCII)

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a string of numbers separated by dots, one byte per number."""
        match = self._pattern.fullmatch(_require_string(value, field))
        if match is None or any(int(part) > _MAX_BYTE for part in match.groups()):
            raise UnencodableValue(
                field, f"{quote_input(value)} is not {self.size} numbers up to {_MAX_BYTE} separated by dots"
            )
        return bytes(map(int, match.groups()))


_MAX_BYTE = 255


def _require_string(value: Json, field: str) -> str:
    if not isinstance(value, str):
        raise UnencodableValue(field, f"{quote_input(value)} is not a string")
    return value
