"""One identifier: what it is called, means and looks like in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.errors import join_field_path, quote_input
from meshfleet.errors.protocol import MalformedHex, UndecodableValue, UnencodableValue, UnknownIdentifier
from meshfleet.protocol.fields import Json
from meshfleet.protocol.hex import parse_hex

if TYPE_CHECKING:
    from meshfleet.protocol.identifiers.composites import RecordLayout
    from meshfleet.protocol.identifiers.layouts import Layout
    from meshfleet.protocol.ids import Identifier, IdentifierName

REMAINDER_KEY: Final = "rest"
"""The name in `ext` of bytes behind all that is known, as hex (value-24)."""


class IdentifierKind(StrEnum):
    """What an identifier is on a device."""

    PROPERTY = "property"
    MEASUREMENT = "measurement"
    EVENT = "event"
    COMMAND = "command"
    """A property that acts when it is written."""
    INTERNAL = "internal"
    """Used inside the mesh, never reported."""


class IdentifierAccess(StrEnum):
    """What requests may do with an identifier."""

    READ = "r"
    WRITE = "w"
    READ_WRITE = "rw"
    NONE = "-"


class DecodedValue(Struct, frozen=True, gc=False):
    """A raw value in JSON."""

    value: Json
    ext: dict[str, Json] | None = None
    """What stands behind the value (value-21)."""


@dataclass(frozen=True, slots=True)
class IdentifierDefinition:
    """One identifier."""

    id: Identifier
    name: IdentifierName
    dictionary: int | None
    """The dictionary version that brought the name; None: not known."""
    kinds: frozenset[IdentifierKind]
    type: str
    """The layout in the table's notation; `raw`: not known."""
    unit: str
    access: IdentifierAccess
    ext: str
    note: str
    layout: Layout | None
    extension: RecordLayout | None

    def decode(self, raw: bytes) -> DecodedValue:
        """Turn a raw value into JSON, with what stands behind it as `ext` (value-21)."""
        if self.layout is None:
            raise UnknownIdentifier("identifier", f"{self.name} ({self.id}) is known as raw only")
        value, at = self.layout.decode(raw, 0)
        if at == len(raw):
            return DecodedValue(value)
        ext, at = self.extension.decode(raw, at) if self.extension else ({}, at)
        if at < len(raw):
            ext[REMAINDER_KEY] = raw[at:].hex()
        return DecodedValue(value, ext)

    def encode(self, value: Json, ext: dict[str, Json] | None = None) -> bytes:
        """Turn JSON into a raw value."""
        if self.layout is None:
            raise UnknownIdentifier("identifier", f"{self.name} ({self.id}) is known as raw only")
        if not isinstance(ext, dict | None):
            raise UnencodableValue("ext", f"{quote_input(ext)} is not an object")
        if not ext:
            return self.layout.encode(value, "value")
        raw = self.layout.encode_before_extension(value, "value")
        return raw + self._encode_extension(raw, ext)

    def _encode_extension(self, raw: bytes, ext: dict[str, Json]) -> bytes:
        """Write an extension behind a value, if it can be told from the value again."""
        known = {name: part for name, part in ext.items() if name != REMAINDER_KEY}
        rest = ext.get(REMAINDER_KEY, "")
        if not isinstance(rest, str):
            raise UnencodableValue(f"ext.{REMAINDER_KEY}", "is not hex")
        if known and self.extension is None:
            raise UnencodableValue(join_field_path("ext", min(known)), f"{self.name} has no such extension")
        try:
            tail = self.extension.encode(known, "ext") if self.extension is not None and known else b""
            tail += parse_hex(rest, f"ext.{REMAINDER_KEY}")
            again = self.decode(raw + tail).ext or {}
        except (MalformedHex, UndecodableValue) as exc:
            raise UnencodableValue(
                "ext" if isinstance(exc, UndecodableValue) else exc.field, exc.reason
            ) from exc
        if again.keys() != ext.keys() or again.get(REMAINDER_KEY, "") != rest.lower():
            raise UnencodableValue("ext", "would be read as something else behind this value")
        return tail
