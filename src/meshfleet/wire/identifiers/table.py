"""Tables of identifiers: comments behind `#`, a header, then a line for each, its columns between `|`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors import MalformedCatalogue, Mistake, WireError, shown
from meshfleet.wire.identifiers.composites import Record
from meshfleet.wire.identifiers.entry import REST, Access, Entry, IdentifierKind
from meshfleet.wire.identifiers.notation import NotationError, parse_layout
from meshfleet.wire.ids import is_identifier, parse_identifier, parse_identifier_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from meshfleet.wire.identifiers.layouts import Layout
    from meshfleet.wire.ids import IdentifierName

COLUMNS: Final = ("id", "name", "dictionary", "kind", "type", "unit", "access", "ext", "note")


def parse_table(text: str, source: str, *, beside: Iterable[Entry] = ()) -> dict[int, Entry]:
    """Read a table into its entries by line. All mistakes are told at once, in one `MalformedCatalogue`.

    Where it adds to the entries `beside` it, no name may come to stand for two identifiers.
    """
    entries: dict[int, Entry] = {}
    mistakes: list[Mistake] = []
    lines = _lines(text)
    line, header = next(lines, (1, []))
    if header != list(COLUMNS):
        mistakes.append(Mistake(line, f"the first line is not the header: {' | '.join(COLUMNS)}"))
    for line, cells in lines:
        found = _entry(cells)
        if isinstance(found, Entry):
            entries[line] = found
        else:
            mistakes += [Mistake(line, reason) for reason in found]
    mistakes += _clashes(entries, beside)
    if mistakes:
        raise MalformedCatalogue(source, sorted(mistakes))
    return entries


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Number the lines that say something, and split them."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, [cell.strip() for cell in line.split("|")]


def _clashes(entries: Mapping[int, Entry], beside: Iterable[Entry]) -> Iterator[Mistake]:
    seen: dict[str, int] = {}
    for line, entry in entries.items():
        for word in (entry.id, entry.name):
            if seen.setdefault(word, line) != line:
                yield Mistake(line, f"{word} is in line {seen[word]} already")
    ours = {entry.name: entry.id for entry in beside if entry.id not in seen}
    for line, entry in entries.items():
        if entry.name in ours:
            yield Mistake(line, f"name: {entry.name} is the name of {ours[entry.name]} already")


def _entry(cells: list[str]) -> Entry | list[str]:
    """Make an entry of a row, or give all that is wrong with it."""
    if len(cells) != len(COLUMNS):
        return [f"{len(cells)} columns; {len(COLUMNS)} are needed"]
    row = dict(zip(COLUMNS, cells, strict=True))
    found: dict[str, Any] = {}
    mistakes: list[str] = []
    for column, read in _CELLS.items():
        try:
            found[column] = read(row[column])
        except (WireError, ValueError) as exc:
            reason = exc.reason if isinstance(exc, WireError) else exc
            mistakes.append(f"{column}: {reason}")
    if mistakes:
        return mistakes
    return Entry(
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
        raise ValueError(f"{shown(text)} is neither a number nor -")
    return int(text)


def _kinds(text: str) -> frozenset[IdentifierKind]:
    words = text.split()
    if unknown := [word for word in words if word not in set(IdentifierKind)]:
        raise ValueError(f"{shown(unknown[0])} is not one of {', '.join(IdentifierKind)}")
    if not words:
        raise ValueError("is missing")
    return frozenset(map(IdentifierKind, words))


def _access(text: str) -> Access:
    if text not in set(Access):
        raise ValueError(f"{shown(text)} is not one of {', '.join(Access)}")
    return Access(text)


def _layout(text: str) -> Layout | None:
    return None if text == "raw" else parse_layout(text)


def _extension(text: str) -> Record | None:
    """Any of an extension's fields may be missing: older devices send fewer."""
    if not text:
        return None
    layout = parse_layout(text)
    if not isinstance(layout, Record) or not layout.is_fixed:
        raise NotationError("an extension is a record of fields with fixed sizes")
    if REST in layout.names:
        raise NotationError(f"{REST} is the name of what follows the extension")
    return layout.tail()


_CELLS: Final[Mapping[str, Callable[[str], object]]] = {
    "id": parse_identifier,
    "name": _name,
    "dictionary": _dictionary,
    "kind": _kinds,
    "type": _layout,
    "access": _access,
    "ext": _extension,
}
