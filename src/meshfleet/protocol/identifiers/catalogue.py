"""The catalogue: identifiers by id and by name."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedCatalogue, Mistake, UnknownIdentifier, WireError
from meshfleet.protocol.identifiers.composites import RecordLayout
from meshfleet.protocol.identifiers.definition import (
    REMAINDER_KEY,
    IdentifierAccess,
    IdentifierDefinition,
    IdentifierKind,
)
from meshfleet.protocol.identifiers.notation import NotationError, parse_layout
from meshfleet.protocol.ids import is_identifier, parse_identifier, parse_identifier_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping

    from meshfleet.protocol.fields import Json
    from meshfleet.protocol.identifiers.definition import DecodedValue
    from meshfleet.protocol.identifiers.layouts import Layout
    from meshfleet.protocol.ids import IdentifierName


# Tables of identifiers: comments behind `#`, a header, then a line for each, its columns between `|`.

TABLE_COLUMNS: Final = ("id", "name", "dictionary", "kind", "type", "unit", "access", "ext", "note")


def parse_identifier_table(
    text: str, source: str, *, existing: Iterable[IdentifierDefinition] = ()
) -> dict[int, IdentifierDefinition]:
    """Read a table into its entries by line. All mistakes are told at once, in one `MalformedCatalogue`.

    Where it adds to the entries `beside` it, no name may come to stand for two identifiers.
    """
    entries: dict[int, IdentifierDefinition] = {}
    mistakes: list[Mistake] = []
    lines = _lines(text)
    line, header = next(lines, (1, []))
    if header != list(TABLE_COLUMNS):
        mistakes.append(Mistake(line, f"the first line is not the header: {' | '.join(TABLE_COLUMNS)}"))
    for line, cells in lines:
        found = _entry(cells)
        if isinstance(found, IdentifierDefinition):
            entries[line] = found
        else:
            mistakes += [Mistake(line, reason) for reason in found]
    mistakes += _find_conflicts(entries, existing)
    if mistakes:
        raise MalformedCatalogue(source, sorted(mistakes))
    return entries


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Number the lines that say something, and split them."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, [cell.strip() for cell in line.split("|")]


def _find_conflicts(
    entries: Mapping[int, IdentifierDefinition], existing: Iterable[IdentifierDefinition]
) -> Iterator[Mistake]:
    seen: dict[str, int] = {}
    for line, entry in entries.items():
        for word in (entry.id, entry.name):
            if seen.setdefault(word, line) != line:
                yield Mistake(line, f"{word} is in line {seen[word]} already")
    ours = {entry.name: entry.id for entry in existing if entry.id not in seen}
    for line, entry in entries.items():
        if entry.name in ours:
            yield Mistake(line, f"name: {entry.name} is the name of {ours[entry.name]} already")


def _entry(cells: list[str]) -> IdentifierDefinition | list[str]:
    """Make an entry of a row, or give all that is wrong with it."""
    if len(cells) != len(TABLE_COLUMNS):
        return [f"{len(cells)} columns; {len(TABLE_COLUMNS)} are needed"]
    row = dict(zip(TABLE_COLUMNS, cells, strict=True))
    found: dict[str, Any] = {}
    mistakes: list[str] = []
    for column, read in _CELL_PARSERS.items():
        try:
            found[column] = read(row[column])
        except (WireError, ValueError) as exc:
            reason = exc.reason if isinstance(exc, WireError) else exc
            mistakes.append(f"{column}: {reason}")
    if mistakes:
        return mistakes
    return IdentifierDefinition(
        id=found["id"],
        name=found["name"],
        dictionary=found["dictionary"],
        kinds=found["kind"],
        type=row["type"],
        unit=row["unit"],
        access=found["access"],
        ext=row["ext"],
        note=row["note"],
        layout=found["type"],
        extension=found["ext"],
    )


def _name(text: str) -> IdentifierName:
    if is_identifier(text):
        raise ValueError(f"{text} would be taken for an id")
    return parse_identifier_name(text)


def _dictionary(text: str) -> int | None:
    if text == "-":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 6):  # noqa: PLR2004 # more than there will ever be
        raise ValueError(f"{quote_input(text)} is neither a number nor -")
    return int(text)


def _kinds(text: str) -> frozenset[IdentifierKind]:
    words = text.split()
    if unknown := [word for word in words if word not in set(IdentifierKind)]:
        raise ValueError(f"{quote_input(unknown[0])} is not one of {', '.join(IdentifierKind)}")
    if not words:
        raise ValueError("is missing")
    return frozenset(map(IdentifierKind, words))


def _access(text: str) -> IdentifierAccess:
    if text not in set(IdentifierAccess):
        raise ValueError(f"{quote_input(text)} is not one of {', '.join(IdentifierAccess)}")
    return IdentifierAccess(text)


def _layout(text: str) -> Layout | None:
    return None if text == "raw" else parse_layout(text)


def _extension(text: str) -> RecordLayout | None:
    """Any of an extension's fields may be missing: older devices send fewer."""
    if not text:
        return None
    layout = parse_layout(text)
    if not isinstance(layout, RecordLayout) or not layout.is_fixed:
        raise NotationError("an extension is a record of fields with fixed sizes")
    if REMAINDER_KEY in layout.names:
        raise NotationError(f"{REMAINDER_KEY} is the name of what follows the extension")
    return layout.with_optional_fields()


_CELL_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "id": parse_identifier,
    "name": _name,
    "dictionary": _dictionary,
    "kind": _kinds,
    "type": _layout,
    "access": _access,
    "ext": _extension,
}


class IdentifierCatalogue:
    """Identifiers by id and by name."""

    def __init__(self, entries: Iterable[IdentifierDefinition]) -> None:
        self._by_id = {entry.id: entry for entry in entries}
        self._by_name = {entry.name: entry for entry in self}
        self._by_either: dict[str, IdentifierDefinition] = {
            word: entry for entry in self for word in (entry.id, entry.name)
        }

    @classmethod
    def parse(cls, text: str, source: str) -> IdentifierCatalogue:
        """Read a table; `source` is its name in error messages. All mistakes are told at once."""
        return cls(parse_identifier_table(text, source).values())

    def extended(self, text: str, source: str) -> IdentifierCatalogue:
        """Add a table of the user's. An identifier that is there already is described anew by it."""
        return IdentifierCatalogue([*self, *parse_identifier_table(text, source, existing=self).values()])

    def __iter__(self) -> Iterator[IdentifierDefinition]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def names(self) -> KeysView[IdentifierName]:
        """All names."""
        return self._by_name.keys()

    def find(self, text: str) -> IdentifierDefinition | None:
        """Find an identifier by its id or its name."""
        return self._by_either.get(text)

    def __getitem__(self, text: str) -> IdentifierDefinition:
        try:
            return self._by_either[text]
        except KeyError:
            raise UnknownIdentifier("identifier", f"{quote_input(text)} is not in the catalogue") from None

    def decode(self, identifier: str, raw: bytes) -> DecodedValue:
        """Turn a raw value of this identifier into JSON."""
        return self[identifier].decode(raw)

    def encode(self, identifier: str, value: Json, ext: dict[str, Json] | None = None) -> bytes:
        """Turn JSON into a raw value of this identifier."""
        return self[identifier].encode(value, ext)


# The table is part of the program, like a module, and is read when this one is.
BUILTIN_CATALOGUE: Final = IdentifierCatalogue.parse(
    (resources.files(__package__) / "identifiers.table").read_text("utf-8"), "identifiers.table"
)
