"""Layouts of composite values: records, counted lists and dictionaries."""

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
    """Field of a record of binary values."""

    name: str
    layout: Layout
    optional: bool = False
    """Whether this field, and all later fields, may be missing at the end of a value (value-17)."""
    default: int | None = None
    """Value to write if the JSON object does not have the field; None if the field is required."""


class _FieldRun(NamedTuple):
    """Consecutive fields of a record with fixed size, which one call of `struct` unpacks."""

    size: int
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    names: tuple[str, ...]
    converters: tuple[tuple[str, Callable[[Any], Json]], ...]


class RecordLayout(Layout):
    """Record of fields one after the other; an object in JSON (value-16).

    Required fields of fixed size come first, then either optional fields of fixed size, or one field that
    extends to the end of the value.
    """

    def __init__(self, fields: Sequence[RecordField]) -> None:
        self._fields = tuple(fields)
        self.names = frozenset(field.name for field in fields)
        fixed_fields = [field for field in fields if isinstance(field.layout, FixedLayout)]
        self._last_field = fields[-1] if len(fixed_fields) < len(fields) else None
        required_count = sum(not field.optional for field in fixed_fields)
        # A value may end before any optional field: there is a run for each length, the longest first.
        self._runs = [
            _build_run(fixed_fields[:end]) for end in range(len(fixed_fields), required_count - 1, -1)
        ]

    @property
    def is_fixed(self) -> bool:
        """Whether every field has a fixed size."""
        return self._last_field is None

    def with_optional_fields(self) -> RecordLayout:
        """Return a copy of this record in which all fields are optional, without defaults."""
        return RecordLayout([field._replace(optional=True, default=None) for field in self._fields])

    def decode(self, raw: bytes, offset: int) -> tuple[dict[str, Json], int]:
        """Decode the fields that are present. Leave the bytes of an incomplete optional field undecoded."""
        size, unpack, names, converters = self._runs[0]
        if offset + size > len(raw):
            size, unpack, names, converters = self._find_run_that_fits(raw, offset)
        # Names and format come from the same fields; a strict zip would cost a third of the call.
        values: dict[str, Json] = dict(zip(names, unpack(raw, offset)))  # noqa: B905 # see above
        for name, convert in converters:
            values[name] = convert(values[name])
        offset += size
        if self._last_field is not None:
            values[self._last_field.name], offset = self._last_field.layout.decode(raw, offset)
        return values, offset

    def _find_run_that_fits(self, raw: bytes, offset: int) -> _FieldRun:
        """Return the longest run of fields for which `raw` has enough bytes from `offset` on."""
        for run in self._runs:
            if offset + run.size <= len(raw):
                return run
        raise build_too_short_error(raw, offset + self._runs[-1].size)

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a JSON object. Raise `UnencodableValue` for a field that this record does not have."""
        if not isinstance(value, dict):
            raise UnencodableValue(field, f"{quote_input(value)} is not an object")
        if unknown := value.keys() - self.names:
            raise UnencodableValue(join_field_path(field, min(unknown)), "is not a field of this value")
        encoded = []
        first_missing: str | None = None
        for record_field in self._fields:
            path = f"{field}.{record_field.name}"
            field_value = value.get(record_field.name, record_field.default)
            if field_value is None and record_field.optional:
                first_missing = first_missing or path
            elif field_value is None:
                raise UnencodableValue(path, "is missing")
            elif first_missing:
                raise UnencodableValue(first_missing, f"is missing before {record_field.name}")
            else:
                encoded.append(record_field.layout.encode(field_value, path))
        return b"".join(encoded)


def _build_run(fields: Sequence[RecordField]) -> _FieldRun:
    """Build a run from consecutive fields of a record."""
    layouts = [(field.name, field.layout) for field in fields if isinstance(field.layout, FixedLayout)]
    struct = Struct(">" + "".join(layout.struct_format for _, layout in layouts))
    return _FieldRun(
        struct.size,
        struct.unpack_from,
        tuple(name for name, _ in layouts),
        tuple((name, layout.convert) for name, layout in layouts if layout.convert),
    )


class ListLayout(Layout):
    """List: number of elements, followed by the elements; an array in JSON (value-18)."""

    def __init__(self, count: NumberLayout, element: FixedLayout) -> None:
        self._count = count
        self._element = element

    def decode(self, raw: bytes, offset: int) -> tuple[list[Json], int]:
        """Decode the count and the elements of a list to a JSON array."""
        count, start = self._count.decode(raw, offset)
        end = start + count * self._element.size
        if end > len(raw):
            raise build_too_short_error(raw, end)
        return [
            self._element.decode(raw, element_offset)[0]
            for element_offset in range(start, end, self._element.size)
        ], end

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a JSON array. Raise `UnencodableValue` if the count is too small for the array's length."""
        if not isinstance(value, list):
            raise UnencodableValue(field, f"{quote_input(value)} is not an array")
        if len(value) > self._count.high:
            raise UnencodableValue(
                field, f"has {len(value)} elements; at most {self._count.high} are allowed"
            )
        elements = (self._element.encode(element, f"{field}[{index}]") for index, element in enumerate(value))
        return self._count.encode(len(value), field) + b"".join(elements)


class DictionaryLayout(Layout):
    """Dictionary: entries of key, length and value, ordered by key; an object in JSON (value-19, value-20).

    A key is one byte; the JSON object has a name instead. If a key has no name, or its value cannot be
    decoded, the object has the key as a decimal number, such as "7", and the value as hex.
    """

    def __init__(self, entries: Mapping[int, tuple[str, Layout]]) -> None:
        self._entries = dict(entries)
        self._keys = {name: key for key, (name, _) in entries.items()}

    def decode(self, raw: bytes, offset: int) -> tuple[dict[str, Json], int]:
        """Decode entries up to the end of the raw value to a JSON object."""
        values: dict[str, Json] = {}
        last_key = -1
        while offset < len(raw):
            key = raw[offset]
            if key <= last_key:
                raise UndecodableValue("value", f"key {key} follows key {last_key}")
            end = offset + 2 + sum(raw[offset + 1 : offset + 2])
            if end > len(raw):
                raise build_too_short_error(raw, end)
            name, value = self._decode_entry(key, raw[offset + 2 : end])
            values[name] = value
            offset, last_key = end, key
        return values, offset

    def _decode_entry(self, key: int, data: bytes) -> tuple[str, Json]:
        """Return the name and the JSON value of a dictionary entry with the value bytes `data`."""
        if key in self._entries:
            name, layout = self._entries[key]
            with suppress(UndecodableValue):
                value, end = layout.decode(data, 0)
                if end == len(data):
                    return name, value
        return str(key), data.hex()

    def encode(self, value: Json, field: str) -> bytes:
        """Encode a JSON object whose keys are names, or decimal numbers with values in hex."""
        if not isinstance(value, dict):
            raise UnencodableValue(field, f"{quote_input(value)} is not an object")
        encoded: dict[int, bytes] = {}
        for name, entry_value in value.items():
            key, data = self._encode_entry(name, entry_value, join_field_path(field, name))
            if key in encoded:
                raise UnencodableValue(join_field_path(field, name), f"repeats key {key}")
            if len(data) > 255:  # noqa: PLR2004 # the length is one byte
                raise UnencodableValue(
                    join_field_path(field, name), f"has {len(data)} bytes; at most 255 are allowed"
                )
            encoded[key] = data
        return b"".join(bytes([key, len(data)]) + data for key, data in sorted(encoded.items()))

    def _encode_entry(self, name: str, value: Json, field: str) -> tuple[int, bytes]:
        """Return the key and the value bytes of a dictionary entry."""
        if name in self._keys:
            key = self._keys[name]
            return key, self._entries[key][1].encode(value, field)
        if not (name.isascii() and name.isdigit() and len(name) <= 3 and int(name) <= 255):  # noqa: PLR2004 # one byte
            raise UnencodableValue(field, "is not a field of this value")
        try:
            return int(name), parse_hex(value, field)
        except (MalformedHex, TypeError) as exc:
            raise UnencodableValue(field, "is not an even number of hex digits") from exc
