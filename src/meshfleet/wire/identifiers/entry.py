"""One identifier: what it is called, means and looks like in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.errors import MalformedHex, UndecodableValue, UnencodableValue, UnknownIdentifier, path, shown
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
        if not isinstance(ext, dict | None):
            raise UnencodableValue("ext", f"{shown(ext)} is not an object")
        if not ext:
            return self.layout.write(value, "value")
        raw = self.layout.write_in_front(value, "value")
        return raw + self._tail(raw, ext)

    def _tail(self, raw: bytes, ext: dict[str, Json]) -> bytes:
        """Write an extension behind a value, if it can be told from the value again."""
        known = {name: part for name, part in ext.items() if name != REST}
        rest = ext.get(REST, "")
        if not isinstance(rest, str):
            raise UnencodableValue(f"ext.{REST}", "is not hex")
        if known and self.extension is None:
            raise UnencodableValue(path("ext", min(known)), f"{self.name} has no such extension")
        try:
            tail = self.extension.write(known, "ext") if self.extension is not None and known else b""
            tail += to_bytes(rest, f"ext.{REST}")
            again = self.decode(raw + tail).ext or {}
        except (MalformedHex, UndecodableValue) as exc:
            raise UnencodableValue(
                "ext" if isinstance(exc, UndecodableValue) else exc.field, exc.reason
            ) from exc
        if again.keys() != ext.keys() or again.get(REST, "") != rest.lower():
            raise UnencodableValue("ext", "would be read as something else behind this value")
        return tail
