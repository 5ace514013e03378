"""The catalogue: identifiers by id and by name."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Final

from meshfleet.errors import UnknownIdentifier, shown
from meshfleet.wire.identifiers.table import parse_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, KeysView

    from meshfleet.wire.fields import Json
    from meshfleet.wire.identifiers.entry import Decoded, Entry
    from meshfleet.wire.ids import IdentifierName


class Catalogue:
    """Identifiers by id and by name."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._by_id = {entry.id: entry for entry in entries}
        self._by_name = {entry.name: entry for entry in self}
        self._by_either: dict[str, Entry] = {word: entry for entry in self for word in (entry.id, entry.name)}

    @classmethod
    def parse(cls, text: str, source: str) -> Catalogue:
        """Read a table; `source` is its name in error messages. All mistakes are told at once."""
        return cls(parse_table(text, source).values())

    def extended(self, text: str, source: str) -> Catalogue:
        """Add a table of the user's. An identifier that is there already is described anew by it."""
        return Catalogue([*self, *parse_table(text, source, beside=self).values()])

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def names(self) -> KeysView[IdentifierName]:
        """All names."""
        return self._by_name.keys()

    def find(self, text: str) -> Entry | None:
        """Find an identifier by its id or its name."""
        return self._by_either.get(text)

    def __getitem__(self, text: str) -> Entry:
        try:
            return self._by_either[text]
        except KeyError:
            raise UnknownIdentifier("identifier", f"{shown(text)} is not in the catalogue") from None

    def decode(self, identifier: str, raw: bytes) -> Decoded:
        """Turn a raw value of this identifier into JSON."""
        return self[identifier].decode(raw)

    def encode(self, identifier: str, value: Json, ext: dict[str, Json] | None = None) -> bytes:
        """Turn JSON into a raw value of this identifier."""
        return self[identifier].encode(value, ext)


# The table is part of the program, like a module, and is read when this one is.
BUILTIN: Final = Catalogue.parse(
    (resources.files(__package__) / "identifiers.table").read_text("utf-8"), "identifiers.table"
)
