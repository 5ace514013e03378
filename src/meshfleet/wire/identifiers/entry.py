"""One identifier: what it is called, means and looks like in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.errors import MalformedHex, UnencodableValue, UnknownIdentifier
from meshfleet.wire.fields import Json
from meshfleet.wire.hextext import to_bytes

if TYPE_CHECKING:
    from meshfleet.wire.identifiers.composites import Record
    from meshfleet.wire.identifiers.layouts import Layout
    from meshfleet.wire.ids import Identifier, IdentifierName

REST: Final = "rest"
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


class Access(StrEnum):
    """What requests may do with an identifier."""

    READ = "r"
    WRITE = "w"
    READ_WRITE = "rw"
    NONE = "-"


class Decoded(Struct, frozen=True, gc=False):
    """A raw value in JSON."""

    value: Json
    ext: dict[str, Json] | None = None
    """What stands behind the value (value-21)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One identifier."""

    id: Identifier
    name: IdentifierName
    dictionary: int | None
    """The dictionary version that brought the name; None: not known."""
    kinds: frozenset[IdentifierKind]
    type: str
    """The layout in the table's notation; `raw`: not known."""
    unit: str
    access: Access
    ext: str
    note: str
    layout: Layout | None
    extension: Record | None

    def decode(self, raw: bytes) -> Decoded:
        """Turn a raw value into JSON, with what stands behind it as `ext` (value-21)."""
        if self.layout is None:
            raise UnknownIdentifier("identifier", f"{self.name} ({self.id}) is known as raw only")
        value, at = self.layout.read(raw, 0)
        if at == len(raw):
            return Decoded(value)
        ext, at = self.extension.read(raw, at) if self.extension else ({}, at)
        if at < len(raw):
            ext[REST] = raw[at:].hex()
        return Decoded(value, ext)

    def encode(self, value: Json, ext: dict[str, Json] | None = None) -> bytes:
        """Turn JSON into a raw value."""
        if self.layout is None:
            raise UnknownIdentifier("identifier", f"{self.name} ({self.id}) is known as raw only")
        raw = self.layout.write(value, "value")
        if not ext:
            return raw
        raw += self._written_extension(dict(ext))
        if self.decode(raw).ext != ext:
            raise UnencodableValue("ext", "does not fit behind this value")
        return raw

    def _written_extension(self, ext: dict[str, Json]) -> bytes:
        rest = ext.pop(REST, "")
        if ext and self.extension is None:
            raise UnencodableValue(f"ext.{min(ext)}", f"{self.name} has no extensions")
        raw = self.extension.write(ext, "ext") if self.extension is not None and ext else b""
        try:
            return raw + to_bytes(rest, f"ext.{REST}")
        except (MalformedHex, TypeError) as exc:
            raise UnencodableValue(f"ext.{REST}", "is not an even number of hex digits") from exc
