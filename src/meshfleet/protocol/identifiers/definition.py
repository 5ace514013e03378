"""Definition of an identifier (property, measurement or event): its name, meaning and binary layout."""

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
    from meshfleet.protocol.identifiers.homeassistant import EntityDefinition
    from meshfleet.protocol.identifiers.layouts import Layout
    from meshfleet.protocol.ids import Identifier, IdentifierName

REMAINDER_KEY: Final = "rest"
"""Field of `ext` with the bytes after the known fields, as hex (value-24)."""


class IdentifierKind(StrEnum):
    """Kind of value that an identifier names on a device. An identifier can have several kinds."""

    PROPERTY = "property"
    MEASUREMENT = "measurement"
    EVENT = "event"
    COMMAND = "command"
    """Property that triggers an action when written."""
    INTERNAL = "internal"
    """Identifier that is used only within the mesh and never reported."""


class IdentifierAccess(StrEnum):
    """Access that requests have to an identifier: read, write, both or neither."""

    READ = "r"
    WRITE = "w"
    READ_WRITE = "rw"
    NONE = "-"


class DecodedValue(Struct, frozen=True, gc=False):
    """JSON value decoded from a raw value."""

    value: Json
    ext: dict[str, Json] | None = None
    """Fields of the extension, which follows the value (value-21); None if no bytes follow the value."""


@dataclass(frozen=True, slots=True)
class IdentifierDefinition:
    """Entry of the catalogue: an identifier and the binary layout of its values."""

    id: Identifier
    name: IdentifierName
    dictionary: int | None
    """Version of the vendor's identifier dictionary that introduced the name; None if unknown."""
    kinds: frozenset[IdentifierKind]
    type: str
    """Layout of the values in the notation of identifier tables, such as `u16`; `raw` if it is unknown."""
    unit: str
    access: IdentifierAccess
    ext: str
    note: str
    layout: Layout | None
    extension: RecordLayout | None
    homeassistant: EntityDefinition | None
    """Entity that Home Assistant shows for the identifier; None if it shows none."""

    def decode(self, raw: bytes) -> DecodedValue:
        """Decode a raw value to JSON, and the bytes after the value to `ext` (value-21)."""
        if self.layout is None:
            raise UnknownIdentifier(
                "identifier", f"{self.name} ({self.id}) has no known layout, only raw values"
            )
        value, offset = self.layout.decode(raw, 0)
        if offset == len(raw):
            return DecodedValue(value)
        ext, offset = self.extension.decode(raw, offset) if self.extension else ({}, offset)
        if offset < len(raw):
            ext[REMAINDER_KEY] = raw[offset:].hex()
        return DecodedValue(value, ext)

    def encode(self, value: Json, ext: dict[str, Json] | None = None) -> bytes:
        """Encode a JSON value and its extension. Raise `UnencodableValue` if one of the two is invalid."""
        if self.layout is None:
            raise UnknownIdentifier(
                "identifier", f"{self.name} ({self.id}) has no known layout, only raw values"
            )
        if not isinstance(ext, dict | None):
            raise UnencodableValue("ext", f"{quote_input(ext)} is not an object")
        if not ext:
            return self.layout.encode(value, "value")
        raw = self.layout.encode_before_extension(value, "value")
        return raw + self._encode_extension(raw, ext)

    def _encode_extension(self, raw: bytes, ext: dict[str, Json]) -> bytes:
        """Encode the extension that follows the encoded value `raw`.

        Raise UnencodableValue if decoding would give another extension.
        """
        fields = {name: value for name, value in ext.items() if name != REMAINDER_KEY}
        remainder = ext.get(REMAINDER_KEY, "")
        if not isinstance(remainder, str):
            raise UnencodableValue(f"ext.{REMAINDER_KEY}", "is not hex")
        if fields and self.extension is None:
            raise UnencodableValue(
                join_field_path("ext", min(fields)), f"{self.name} has no such extension field"
            )
        try:
            extension = self.extension.encode(fields, "ext") if self.extension is not None and fields else b""
            extension += parse_hex(remainder, f"ext.{REMAINDER_KEY}")
            decoded = self.decode(raw + extension).ext or {}
        except (MalformedHex, UndecodableValue) as exc:
            raise UnencodableValue(
                "ext" if isinstance(exc, UndecodableValue) else exc.field, exc.reason
            ) from exc
        if decoded.keys() != ext.keys() or decoded.get(REMAINDER_KEY, "") != remainder.lower():
            raise UnencodableValue("ext", "would be decoded differently after this value")
        return extension
