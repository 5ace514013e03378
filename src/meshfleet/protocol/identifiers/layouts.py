"""Layouts: how raw bytes and JSON values turn into each other. All numbers are big-endian (value-1).

`read` takes the raw value and where to start, and gives the JSON value and where it ended.
`write` takes a JSON value and its path for error messages, and gives the bytes.

Most layouts are `Fixed`: a format of the `struct` module that gives one Python value, and what then makes the
JSON value of it. Records put the formats of their fields together and read them in one go.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from struct import Struct
from struct import error as StructError  # noqa: N812 # the module names it like a variable
from typing import TYPE_CHECKING, Any, Protocol

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedHex, MalformedVersion, UndecodableValue, UnencodableValue
from meshfleet.protocol.hex import parse_hex
from meshfleet.protocol.ids import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.protocol.fields import Json


class Layout(Protocol):
    """A value's form in bytes."""

    @abstractmethod
    def decode(self, raw: bytes, at: int) -> tuple[Json, int]:
        """Turn bytes into a JSON value, or raise `UndecodableValue`."""

    @abstractmethod
    def encode(self, value: Json, field: str) -> bytes:
        """Turn a JSON value into bytes, or raise `UnencodableValue`."""

    def encode_before_extension(self, value: Json, field: str) -> bytes:
        """Turn a JSON value into bytes that others follow."""
        return self.encode(value, field)


def build_too_short_error(raw: bytes, needed: int) -> UndecodableValue:
    """Tell that a raw value ends too early."""
    return UndecodableValue("value", f"has {len(raw)} bytes; {needed} are needed")


class FixedLayout(Layout):
    """A layout of a fixed size."""

    def __init__(self, struct_format: str, convert: Callable[[Any], Json] | None = None) -> None:
        """`code` is a format of `struct` for one value; `finish` makes it JSON where it is not already."""
        self.struct_format = struct_format
        self.convert = convert
        self._struct = Struct(f">{struct_format}")
        self._unpack = self._struct.unpack_from
        self.size = self._struct.size

    def decode(self, raw: bytes, at: int) -> tuple[Json, int]:
        """Read one value."""
        end = at + self.size
        if len(raw) < end:
            raise build_too_short_error(raw, end)
        (value,) = self._unpack(raw, at)
        return (value if self.convert is None else self.convert(value)), end


class VoidLayout(Layout):
    """Nothing: an event or command that says all by itself (value-2)."""

    def decode(self, raw: bytes, at: int) -> tuple[None, int]:  # noqa: ARG002 # nothing to read
        """Give null."""
        return None, at

    def encode(self, value: Json, field: str) -> bytes:
        """Accept null only."""
        if value is not None:
            raise UnencodableValue(field, "carries no value; only null fits")
        return b""


class BoolLayout(FixedLayout):
    """One byte, 0 or 1 (value-3)."""

    def __init__(self) -> None:
        super().__init__("B", _bool)

    def encode(self, value: Json, field: str) -> bytes:
        """Take a boolean."""
        if not isinstance(value, bool):
            raise UnencodableValue(field, f"{quote_input(value)} is not a boolean")
        return b"\x01" if value else b"\x00"


def _bool(byte: int) -> bool:
    if byte > 1:
        raise UndecodableValue("value", f"byte {byte} is neither 0 nor 1")
    return byte == 1


class FlagLayout(BoolLayout):
    """One byte of flags, of which one is known; the others are cleared when written."""

    def __init__(self, bit: int) -> None:
        super().__init__()
        self._mask = mask = 1 << bit
        self.convert = lambda byte: byte & mask != 0

    def encode(self, value: Json, field: str) -> bytes:
        """Take a boolean."""
        return bytes([super().encode(value, field)[0] * self._mask])


_CODES = {(1, False): "B", (2, False): "H", (4, False): "I", (1, True): "b", (2, True): "h", (4, True): "i"}


class NumberLayout(FixedLayout):
    """A whole number, perhaps scaled, perhaps limited when written (value-4 to value-6, value-10)."""

    def __init__(
        self, size: int, *, signed: bool, scale: int = 1, limits: tuple[int, int] | None = None
    ) -> None:
        """Raise `ValueError` when the limits are outside of what fits."""
        code = _CODES.get((size, signed), f"{size}s")
        super().__init__(code, _number(code, scale))
        self._signed = signed
        self._scale = scale
        span = 1 << 8 * size
        lowest, highest = (-span // 2, span // 2 - 1) if signed else (0, span - 1)
        self.low, self.high = limits or (lowest, highest)
        if not lowest <= self.low <= self.high <= highest:
            raise ValueError(f"{self.low}..{self.high} does not lie within {lowest}..{highest}")

    @property
    def is_plain(self) -> bool:
        """Whether it is unsigned, without scale or limits."""
        return (self._scale, self.low, self.high) == (1, 0, (1 << 8 * self.size) - 1)

    def encode(self, value: Json, field: str) -> bytes:
        """Take a number; a scaled one is rounded to its resolution."""
        if not is_number(value):
            raise UnencodableValue(field, f"{quote_input(value)} is not a number")
        low, high = (limit if self._scale == 1 else limit / self._scale for limit in (self.low, self.high))
        # What is outside by more than rounding could mend is not even multiplied: it might overflow.
        number: int = round(value * self._scale) if low - 1 <= value <= high + 1 else self.high + 1
        if not self.low <= number <= self.high:
            raise UnencodableValue(field, f"{quote_input(value)} is not between {low} and {high}")
        if self._scale == 1 and number != value:
            raise UnencodableValue(field, f"{quote_input(value)} is not a whole number")
        return number.to_bytes(self.size, "big", signed=self._signed)


def _number(code: str, scale: int) -> Callable[[Any], Json] | None:
    """What makes a number of what `struct` gives; None where it is the number already."""
    if code.endswith("s"):
        return lambda chunk: (
            int.from_bytes(chunk, "big") if scale == 1 else int.from_bytes(chunk, "big") / scale
        )
    return None if scale == 1 else lambda number: number / scale


def is_number(value: Json) -> bool:
    """Tell a number from booleans and from what is infinite or none."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


class EnumLayout(FixedLayout):
    """A number that stands for a word (value-11)."""

    def __init__(self, number: NumberLayout, words: Mapping[str, int]) -> None:
        """Raise `UnencodableValue` when a word's number does not fit."""
        self._numbers = {word: number.encode(code, word) for word, code in words.items()}
        self._words = {raw: word for word, raw in self._numbers.items()}
        super().__init__(f"{number.size}s", self._word)

    def _word(self, raw: bytes) -> str:
        # Like a gateway that cannot decode: the raw value says more than a guess.
        if raw not in self._words:
            raise UndecodableValue("value", f"{raw.hex()} stands for no word")
        return self._words[raw]

    def encode(self, value: Json, field: str) -> bytes:
        """Take one of the words."""
        if not isinstance(value, str) or value not in self._numbers:
            raise UnencodableValue(field, f"{quote_input(value)} is not one of {', '.join(self._numbers)}")
        return self._numbers[value]


class FloatLayout(FixedLayout):
    """An IEEE 754 number of 4 bytes (value-7)."""

    def __init__(self) -> None:
        super().__init__("f", _finite)

    def encode(self, value: Json, field: str) -> bytes:
        """Take a number within the range of 4 bytes."""
        if not is_number(value):
            raise UnencodableValue(field, f"{quote_input(value)} is not a number")
        try:
            return self._struct.pack(value)
        except (OverflowError, StructError) as exc:
            raise UnencodableValue(field, f"{quote_input(value)} is too large for 4 bytes") from exc


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise UndecodableValue("value", f"{number} has no JSON form")
    return number


class TextLayout(Layout):
    """The rest of the value as UTF-8 (value-8)."""

    def decode(self, raw: bytes, at: int) -> tuple[str, int]:
        """Give the text."""
        try:
            return raw[at:].decode(), len(raw)
        except UnicodeDecodeError as exc:
            raise UndecodableValue("value", "is not UTF-8") from exc

    def encode(self, value: Json, field: str) -> bytes:
        """Take any text."""
        try:
            return _text(value, field).encode()
        except UnicodeEncodeError as exc:
            raise UnencodableValue(field, "is not valid Unicode text") from exc


class HexLayout(FixedLayout):
    """Bytes without a meaning of their own, as hex: a key, or a MAC (value-9)."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size}s", bytes.hex)

    def encode(self, value: Json, field: str) -> bytes:
        """Take hex in either case, of the right length."""
        try:
            raw = parse_hex(_text(value, field), field)
        except MalformedHex as exc:
            raise UnencodableValue(field, exc.reason) from exc
        if len(raw) != self.size:
            raise UnencodableValue(field, f"has {len(raw)} bytes; {self.size} are needed")
        return raw


class VersionLayout(FixedLayout):
    """Major, minor, patch and number of the beta, 0 for a release; inside a record (value-13, value-14)."""

    def __init__(self) -> None:
        super().__init__("4s", _version)

    def encode(self, value: Json, field: str) -> bytes:
        """Take `M.m.p` or `M.m.p-beta.b`."""
        try:
            version = Version.parse(_text(value, field))
        except MalformedVersion as exc:
            raise UnencodableValue(field, exc.reason) from exc
        if str(version) != value or max(version[:3]) > _BYTE:
            raise UnencodableValue(
                field, f"{quote_input(value)} is not M.m.p or M.m.p-beta.b with parts up to {_BYTE}"
            )
        return bytes((*version[:3], version.beta))


class TrailingVersionLayout(Layout):
    """The same at the end of a value, where a release need not say that it is no beta."""

    def decode(self, raw: bytes, at: int) -> tuple[str, int]:
        """Give the version from 3 or 4 bytes."""
        end = min(len(raw), at + 4)
        if end < at + 3:
            raise build_too_short_error(raw, at + 3)
        return _version(raw[at:end]), end

    def encode(self, value: Json, field: str) -> bytes:
        """Take `M.m.p` or `M.m.p-beta.b`."""
        return self.encode_before_extension(value, field).removesuffix(b"\x00")

    def encode_before_extension(self, value: Json, field: str) -> bytes:
        """Take the same; what follows must not be taken for the number of a beta."""
        return VersionLayout().encode(value, field)


def _version(chunk: bytes) -> str:
    text = f"{chunk[0]}.{chunk[1]}.{chunk[2]}"
    return f"{text}-beta.{chunk[3]}" if chunk[3:] > b"\x00" else text


class DottedLayout(FixedLayout):
    """Some bytes as numbers with dots between (value-15)."""

    def __init__(self, parts: int) -> None:
        super().__init__(f"{parts}s", lambda chunk: ".".join(map(str, chunk)))
        self._pattern = re.compile(r"\.".join([r"(\d{1,3})"] * parts), re.ASCII)

    def encode(self, value: Json, field: str) -> bytes:
        """Take the dotted text."""
        found = self._pattern.fullmatch(_text(value, field))
        if found is None or any(int(part) > _BYTE for part in found.groups()):
            raise UnencodableValue(
                field, f"{quote_input(value)} is not {self.size} numbers up to {_BYTE} with dots between"
            )
        return bytes(map(int, found.groups()))


_BYTE = 255


def _text(value: Json, field: str) -> str:
    if not isinstance(value, str):
        raise UnencodableValue(field, f"{quote_input(value)} is not a text")
    return value
