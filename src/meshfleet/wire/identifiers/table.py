"""Tables of identifiers: comments behind `#`, a header, then a line for each, its columns between `|`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from meshfleet.errors import MalformedCatalogue, Mistake, WireError, shown
from meshfleet.wire.identifiers.composites import Record
from meshfleet.wire.identifiers.entry import Access, Entry, IdentifierKind
from meshfleet.wire.identifiers.notation import NotationError, parse_layout
from meshfleet.wire.ids import is_identifier, parse_identifier, parse_identifier_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.wire.identifiers.layouts import Layout

COLUMNS: Final = ("id", "name", "dictionary", "kind", "type", "unit", "access", "ext", "note")

_RAW: Final = "raw"

_WordT = TypeVar("_WordT", bound=StrEnum)


def parse_table(text: str, source: str) -> dict[int, Entry]:
    """Read a table into its entries by line. All mistakes are told at once, in one `MalformedCatalogue`."""
    entries: dict[int, Entry] = {}
    mistakes: list[Mistake] = []
    lines = _lines(text)
    line, header = next(lines, (1, []))
    if header != list(COLUMNS):
        mistakes.append(Mistake(line, f"the first line is not the header: {' | '.join(COLUMNS)}"))
    seen: dict[str, int] = {}
    for line, cells in lines:
        try:
            entries[line] = entry = _entry(cells)
        except (_CellError, WireError) as exc:
            mistakes.append(Mistake(line, str(exc)))
            continue
        mistakes += [
            Mistake(line, f"{word} is in line {seen[word]} already")
            for word in (entry.id, entry.name)
            if seen.setdefault(word, line) != line
        ]
    if mistakes:
        raise MalformedCatalogue(source, mistakes)
    return entries


class _CellError(ValueError):
    """A row that is not as it should be."""


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Number the lines that say something, and split them."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, [cell.strip() for cell in line.split("|")]


def _entry(cells: list[str]) -> Entry:
    if len(cells) != len(COLUMNS):
        raise _CellError(f"{len(cells)} columns; {len(COLUMNS)} are needed")
    row = dict(zip(COLUMNS, cells, strict=True))
    name = parse_identifier_name(row["name"], "name")
    if is_identifier(name):
        raise _CellError(f"name: {name} would be taken for an id")
    kinds = frozenset(_word(IdentifierKind, kind, "kind") for kind in row["kind"].split())
    if not kinds:
        raise _CellError("kind: is missing")
    return Entry(
        id=parse_identifier(row["id"], "id"),
        name=name,
        dictionary=_dictionary(row["dictionary"]),
        kinds=kinds,
        type=row["type"],
        unit=row["unit"],
        access=_word(Access, row["access"], "access"),
        ext=row["ext"],
        note=row["note"],
        layout=None if row["type"] == _RAW else _layout(row["type"], "type"),
        extension=_extension(row["ext"]),
    )


def _word(words: type[_WordT], text: str, column: str) -> _WordT:
    try:
        return words(text)
    except ValueError:
        raise _CellError(f"{column}: {shown(text)} is not one of {', '.join(words)}") from None


def _dictionary(text: str) -> int | None:
    if text == "-":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 6):  # noqa: PLR2004 # more than there will ever be
        raise _CellError(f"dictionary: {shown(text)} is neither a number nor -")
    return int(text)


def _layout(text: str, column: str) -> Layout:
    try:
        return parse_layout(text)
    except NotationError as exc:
        raise _CellError(f"{column}: {exc}") from exc


def _extension(text: str) -> Record | None:
    """Any of an extension's fields may be missing: older devices send fewer."""
    if not text:
        return None
    layout = _layout(text, "ext")
    if not isinstance(layout, Record):
        raise _CellError("ext: is not a record in braces")
    return layout.tail()
