"""Layouts made of layouts: records, counted lists and dictionaries."""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from meshfleet.errors import join_field_path, quote_input
from meshfleet.errors.protocol import MalformedHex, UndecodableValue, UnencodableValue
from meshfleet.protocol.hex import parse_hex
from meshfleet.protocol.identifiers.layouts import FixedLayout, Layout, NumberLayout, build_too_short_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meshfleet.protocol.fields import Json


class RecordField(NamedTuple):
    """One field of a record."""

    name: str
    layout: Layout
    optional: bool = False
    """A value may end before it (value-17)."""
    default: int | None = None
    """What is written when the JSON object does not have the field."""


class _Run(NamedTuple):
    """Fields of fixed size, read in one go."""

    size: int
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    names: tuple[str, ...]
    converters: tuple[tuple[str, Callable[[Any], Json]], ...]


class RecordLayout(Layout):
    """Fields one after the other, an object in JSON (value-16).

    First come fields of fixed size; then either optional ones, or one field that reaches to the end.
    """

    def __init__(self, fields: Sequence[RecordField]) -> None:
        self._fields = tuple(fields)
        self.names = frozenset(field.name for field in fields)
        fixed = [field for field in fields if isinstance(field.layout, FixedLayout)]
        self._last = fields[-1] if len(fixed) < len(fields) else None
        required = sum(not field.optional for field in fixed)
        # A value may end before each optional field: the longest run that fits is read.
        self._runs = [_run(fixed[:end]) for end in range(len(fixed), required - 1, -1)]

    @property
    def is_fixed(self) -> bool:
        """Whether every field has a fixed size."""
        return self._last is None

    def with_optional_fields(self) -> RecordLayout:
        """Give the same record for the end of a value, where any field may be missing."""
        return RecordLayout([field._replace(optional=True, default=None) for field in self._fields])

    def decode(self, raw: bytes, at: int) -> tuple[dict[str, Json], int]:
        """Give an object with the fields that are there. Half an optional field is left unread."""
        size, unpack, names, unfinished = self._runs[0]
        if at + size > len(raw):
            size, unpack, names, unfinished = self._longest_run(raw, at)
        # Names and format come from the same fields; checking their lengths would cost a third of the call.
        values: dict[str, Json] = dict(zip(names, unpack(raw, at)))  # noqa: B905
        for name, finish in unfinished:
            values[name] = finish(values[name])
        at += size
        if self._last is not None:
            values[self._last.name], at = self._last.layout.decode(raw, at)
        return values, at

    def _longest_run(self, raw: bytes, at: int) -> _Run:
        for run in self._runs:
            if at + run.size <= len(raw):
                return run
        raise build_too_short_error(raw, at + self._runs[-1].size)

    def encode(self, value: Json, field: str) -> bytes:
        """Take an object with no other fields."""
        if not isinstance(value, dict):
            raise UnencodableValue(field, f"{quote_input(value)} is not an object")
        if unknown := value.keys() - self.names:
            raise UnencodableValue(join_field_path(field, min(unknown)), "is not a field of this value")
        parts = []
        left_out: str | None = None
        for part in self._fields:
            place = f"{field}.{part.name}"
            given = value.get(part.name, part.default)
            if given is None and part.optional:
                left_out = left_out or place
            elif given is None:
                raise UnencodableValue(place, "is missing")
            elif left_out:
                raise UnencodableValue(left_out, f"is missing in front of {part.name}")
            else:
                parts.append(part.layout.encode(given, place))
        return b"".join(parts)


def _run(fields: Sequence[RecordField]) -> _Run:
    layouts = [(field.name, field.layout) for field in fields if isinstance(field.layout, FixedLayout)]
    struct = Struct(">" + "".join(layout.struct_format for _, layout in layouts))
    return _Run(
        struct.size,
        struct.unpack_from,
        tuple(name for name, _ in layouts),
        tuple((name, layout.convert) for name, layout in layouts if layout.convert),
    )


class ListLayout(Layout):
    """A count, then that many elements; an array in JSON (value-18)."""

    def __init__(self, count: NumberLayout, element: FixedLayout) -> None:
        self._count = count
        self._element = element

    def decode(self, raw: bytes, at: int) -> tuple[list[Json], int]:
        """Give the elements."""
        count, start = self._count.decode(raw, at)
        end = start + count * self._element.size
        if end > len(raw):
            raise build_too_short_error(raw, end)
        return [self._element.decode(raw, place)[0] for place in range(start, end, self._element.size)], end

    def encode(self, value: Json, field: str) -> bytes:
        """Take an array no longer than the count can tell."""
        if not isinstance(value, list):
            raise UnencodableValue(field, f"{quote_input(value)} is not an array")
        if len(value) > self._count.high:
            raise UnencodableValue(field, f"has {len(value)} elements; {self._count.high} are allowed")
        elements = (self._element.encode(element, f"{field}[{n}]") for n, element in enumerate(value))
        return self._count.encode(len(value), field) + b"".join(elements)


class DictionaryLayout(Layout):
    """Entries of key, length and value, ordered by key; an object in JSON (value-19, value-20).

    What is not known, a key or the form of a value, appears as hex under the number of its key.
    """

    def __init__(self, entries: Mapping[int, tuple[str, Layout]]) -> None:
        self._entries = dict(entries)
        self._keys = {name: key for key, (name, _) in entries.items()}

    def decode(self, raw: bytes, at: int) -> tuple[dict[str, Json], int]:
        """Give an object; a dictionary fills its value to the end."""
        values: dict[str, Json] = {}
        last = -1
        while at < len(raw):
            key = raw[at]
            if key <= last:
                raise UndecodableValue("value", f"key {key} follows key {last}")
            end = at + 2 + sum(raw[at + 1 : at + 2])
            if end > len(raw):
                raise build_too_short_error(raw, end)
            name, value = self._entry(key, raw[at + 2 : end])
            values[name] = value
            at, last = end, key
        return values, at

    def _entry(self, key: int, chunk: bytes) -> tuple[str, Json]:
        if key in self._entries:
            name, layout = self._entries[key]
            with suppress(UndecodableValue):
                value, end = layout.decode(chunk, 0)
                if end == len(chunk):
                    return name, value
        return str(key), chunk.hex()

    def encode(self, value: Json, field: str) -> bytes:
        """Take an object of known names, and of numbers with hex."""
        if not isinstance(value, dict):
            raise UnencodableValue(field, f"{quote_input(value)} is not an object")
        chunks: dict[int, bytes] = {}
        for name, part in value.items():
            key, chunk = self._chunk(name, part, join_field_path(field, name))
            if key in chunks:
                raise UnencodableValue(join_field_path(field, name), f"is key {key} once more")
            if len(chunk) > 255:  # noqa: PLR2004 # its length is one byte
                raise UnencodableValue(
                    join_field_path(field, name), f"has {len(chunk)} bytes; 255 are allowed"
                )
            chunks[key] = chunk
        return b"".join(bytes([key, len(chunk)]) + chunk for key, chunk in sorted(chunks.items()))

    def _chunk(self, name: str, value: Json, field: str) -> tuple[int, bytes]:
        if name in self._keys:
            key = self._keys[name]
            return key, self._entries[key][1].encode(value, field)
        if not (name.isascii() and name.isdigit() and len(name) <= 3 and int(name) <= 255):  # noqa: PLR2004 # one byte
            raise UnencodableValue(field, "is not a field of this value")
        try:
            return int(name), parse_hex(value, field)
        except (MalformedHex, TypeError) as exc:
            raise UnencodableValue(field, "is not an even number of hex digits") from exc
