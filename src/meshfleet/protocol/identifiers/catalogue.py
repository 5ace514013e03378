"""Catalogue of identifiers, searchable by id and by name, and parser of identifier tables."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import LineFault, MalformedCatalogue, MalformedInput, UnknownIdentifier
from meshfleet.protocol.identifiers.composites import RecordLayout
from meshfleet.protocol.identifiers.definition import (
    REMAINDER_KEY,
    IdentifierAccess,
    IdentifierDefinition,
    IdentifierKind,
)
from meshfleet.protocol.identifiers.homeassistant import check_entity, parse_entity
from meshfleet.protocol.identifiers.notation import NotationError, parse_layout
from meshfleet.protocol.ids import is_identifier, parse_identifier, parse_identifier_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence

    from meshfleet.protocol.fields import Json
    from meshfleet.protocol.identifiers.definition import DecodedValue
    from meshfleet.protocol.identifiers.layouts import Layout
    from meshfleet.protocol.ids import IdentifierName


# Identifier tables consist of `#` comments, a header line, and a line of columns separated by `|` for each
# identifier.

_OPTIONAL_COLUMN: Final = "homeassistant"
"""Column that a table may leave out, as tables of earlier versions do."""

TABLE_COLUMNS: Final = (
    "id",
    "name",
    "dictionary",
    "kind",
    "type",
    "unit",
    "access",
    "ext",
    _OPTIONAL_COLUMN,
    "note",
)

_SHORT_COLUMNS: Final = tuple(name for name in TABLE_COLUMNS if name != _OPTIONAL_COLUMN)


def parse_identifier_table(
    text: str, source: str, *, existing: Iterable[IdentifierDefinition] = ()
) -> dict[int, IdentifierDefinition]:
    """Parse an identifier table. Return the definitions in the table by line number.

    Raise `MalformedCatalogue` with all faults of the table. It is a fault too if a name in the table belongs
    to another id in `existing`. `source` names the table in errors.
    """
    entries: dict[int, IdentifierDefinition] = {}
    faults: list[LineFault] = []
    lines = _split_lines(text)
    line, header = next(lines, (1, []))
    columns = _SHORT_COLUMNS if tuple(header) == _SHORT_COLUMNS else TABLE_COLUMNS
    if tuple(header) != columns:
        faults.append(LineFault(line, f"the first line is not the header: {' | '.join(TABLE_COLUMNS)}"))
    for line, cells in lines:
        result = _parse_entry(cells, columns)
        if isinstance(result, IdentifierDefinition):
            entries[line] = result
        else:
            faults += [LineFault(line, reason) for reason in result]
    faults += _find_conflicts(entries, existing)
    if faults:
        raise MalformedCatalogue(source, sorted(faults))
    return entries


def _split_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is neither empty nor a comment."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, [cell.strip() for cell in line.split("|")]


def _find_conflicts(
    entries: Mapping[int, IdentifierDefinition], existing: Iterable[IdentifierDefinition]
) -> Iterator[LineFault]:
    """Yield a fault for each id or name that is used twice. The keys of `entries` are line numbers."""
    lines_by_key: dict[str, int] = {}
    for line, entry in entries.items():
        for key in (entry.id, entry.name):
            if lines_by_key.setdefault(key, line) != line:
                yield LineFault(line, f"{key} is already in line {lines_by_key[key]}")
    ids_by_name = {entry.name: entry.id for entry in existing if entry.id not in lines_by_key}
    for line, entry in entries.items():
        if entry.name in ids_by_name:
            yield LineFault(line, f"name: {entry.name} is already the name of {ids_by_name[entry.name]}")


def _parse_entry(cells: list[str], columns: Sequence[str]) -> IdentifierDefinition | list[str]:
    """Parse the cells of a table line. Return the definition, or a list of all faults in the line."""
    if len(cells) != len(columns):
        return [f"{len(cells)} columns; {len(columns)} are required"]
    row = {_OPTIONAL_COLUMN: "", **dict(zip(columns, cells, strict=True))}
    values: dict[str, Any] = {}
    faults: list[str] = []
    for column, parse_cell in _CELL_PARSERS.items():
        try:
            values[column] = parse_cell(row[column])
        except (MalformedInput, ValueError) as exc:
            reason = exc.reason if isinstance(exc, MalformedInput) else exc
            faults.append(f"{column}: {reason}")
    if not faults and values[_OPTIONAL_COLUMN] is not None:
        try:
            check_entity(values[_OPTIONAL_COLUMN], values["type"])
        except ValueError as exc:
            faults.append(f"{_OPTIONAL_COLUMN}: {exc}")
    if faults:
        return faults
    return IdentifierDefinition(
        id=values["id"],
        name=values["name"],
        dictionary=values["dictionary"],
        kinds=values["kind"],
        type=row["type"],
        unit=row["unit"],
        access=values["access"],
        ext=row["ext"],
        note=row["note"],
        layout=values["type"],
        extension=values["ext"],
        homeassistant=values[_OPTIONAL_COLUMN],
    )


def _parse_name(text: str) -> IdentifierName:
    """Parse the cell `name`. A name must not look like an id."""
    if is_identifier(text):
        raise ValueError(f"{text} has the form of an id")
    return parse_identifier_name(text)


def _parse_dictionary(text: str) -> int | None:
    """Parse the cell `dictionary`: the version of the vendor's dictionary, or `-` if unknown."""
    if text == "-":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 6):  # noqa: PLR2004 # far above any dictionary version
        raise ValueError(f"{quote_input(text)} is neither a number nor -")
    return int(text)


def _parse_kinds(text: str) -> frozenset[IdentifierKind]:
    names = text.split()
    if unknown := [name for name in names if name not in set(IdentifierKind)]:
        raise ValueError(f"{quote_input(unknown[0])} is not one of {', '.join(IdentifierKind)}")
    if not names:
        raise ValueError("is missing")
    return frozenset(map(IdentifierKind, names))


def _parse_access(text: str) -> IdentifierAccess:
    if text not in set(IdentifierAccess):
        raise ValueError(f"{quote_input(text)} is not one of {', '.join(IdentifierAccess)}")
    return IdentifierAccess(text)


def _parse_type(text: str) -> Layout | None:
    """Parse the cell `type`. Return None for `raw`, which means that the layout is unknown."""
    return None if text == "raw" else parse_layout(text)


def _parse_extension(text: str) -> RecordLayout | None:
    """Parse the layout of an extension. All fields become optional, as older devices send fewer fields."""
    if not text:
        return None
    layout = parse_layout(text)
    if not isinstance(layout, RecordLayout) or not layout.is_fixed:
        raise NotationError("an extension must be a record of fixed-size fields")
    if REMAINDER_KEY in layout.names:
        raise NotationError(f"{REMAINDER_KEY} is reserved for the bytes after the extension")
    return layout.with_optional_fields()


_CELL_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "id": parse_identifier,
    "name": _parse_name,
    "dictionary": _parse_dictionary,
    "kind": _parse_kinds,
    "type": _parse_type,
    "access": _parse_access,
    "ext": _parse_extension,
    _OPTIONAL_COLUMN: parse_entity,
}


class IdentifierCatalogue:
    """Finds identifier definitions by id or name, and converts values of identifiers."""

    def __init__(self, entries: Iterable[IdentifierDefinition]) -> None:
        self._by_id = {entry.id: entry for entry in entries}
        self._by_name = {entry.name: entry for entry in self}
        self._by_key: dict[str, IdentifierDefinition] = {
            key: entry for entry in self for key in (entry.id, entry.name)
        }

    @classmethod
    def parse(cls, text: str, source: str) -> IdentifierCatalogue:
        """Create a catalogue from an identifier table; `source` is its name in error messages.

        Raise `MalformedCatalogue` with all faults of the table.
        """
        return cls(parse_identifier_table(text, source).values())

    def extended(self, text: str, source: str) -> IdentifierCatalogue:
        """Return a copy of this catalogue to which the identifier table of a user is added.

        A definition in the table replaces the existing definition with the same id.
        """
        return IdentifierCatalogue([*self, *parse_identifier_table(text, source, existing=self).values()])

    def __iter__(self) -> Iterator[IdentifierDefinition]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def names(self) -> KeysView[IdentifierName]:
        """Names of all identifiers."""
        return self._by_name.keys()

    def find(self, text: str) -> IdentifierDefinition | None:
        """Return the definition of the identifier with this id or name; None if the identifier is unknown."""
        return self._by_key.get(text)

    def __getitem__(self, text: str) -> IdentifierDefinition:
        try:
            return self._by_key[text]
        except KeyError:
            raise UnknownIdentifier("identifier", f"{quote_input(text)} is not in the catalogue") from None

    def decode(self, identifier: str, raw: bytes) -> DecodedValue:
        """Decode a raw value of the identifier with this id or name to JSON."""
        return self[identifier].decode(raw)

    def encode(self, identifier: str, value: Json, ext: dict[str, Json] | None = None) -> bytes:
        """Encode a JSON value, and its extension fields, of the identifier with this id or name."""
        return self[identifier].encode(value, ext)


# The table is a file of this package and is loaded when this module is imported.
BUILTIN_CATALOGUE: Final = IdentifierCatalogue.parse(
    (resources.files(__package__) / "identifiers.table").read_text("utf-8"), "identifiers.table"
)
