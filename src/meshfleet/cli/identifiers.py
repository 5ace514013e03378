"""`meshfleet identifiers`: what the catalogue knows."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import click
import msgspec
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from meshfleet.cli.table import table_option
from meshfleet.cli.terminal import printable
from meshfleet.errors import UnknownIdentifier

if TYPE_CHECKING:
    from meshfleet.wire.fields import Json
    from meshfleet.wire.identifiers import Catalogue, Entry


@click.command()
@table_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.argument("words", nargs=-1)
def identifiers(catalogue: Catalogue, words: tuple[str, ...], *, as_json: bool) -> None:
    """List the identifiers; with ids or names, tell all about those."""
    entries = [_entry(catalogue, word) for word in words] or list(catalogue)
    if as_json:
        for entry in entries:
            click.echo(msgspec.json.encode(_object(entry)))
        return
    if words:
        click.echo("\n\n".join(map(_details, entries)))
        return
    columns = [Column(title, no_wrap=True) for title in ("id", "name", "kind", "access", "unit")]
    table = Table(*columns, box=None, header_style="bold")
    for entry in entries:
        kinds = " ".join(sorted(entry.kinds))
        table.add_row(
            *(Text(printable(cell)) for cell in (entry.id, entry.name, kinds, entry.access, entry.unit))
        )
    # Nothing is cut for a program that reads along.
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


_WIDE = 1000

_SIMILAR: Final = 0.7
"""How much of two names must be the same for one to be meant by the other."""


def similar_name(text: str, catalogue: Catalogue) -> str | None:
    """Return the name in a catalogue that an unknown text most likely means."""
    names = [entry.name for entry in catalogue]
    return next(iter(get_close_matches(text.lower(), names, n=1, cutoff=_SIMILAR)), None)


def _entry(catalogue: Catalogue, word: str) -> Entry:
    try:
        return catalogue[word]
    except UnknownIdentifier as exc:
        meant = similar_name(word, catalogue)
        if meant is None:
            raise
        raise click.ClickException(printable(f"{exc}; did you mean {meant}?")) from exc


def _details(entry: Entry) -> str:
    """Everything about one identifier, a line for each fact."""
    return "\n".join(
        f"{name:<11} {printable(' '.join(value) if isinstance(value, list) else str(value))}"
        for name, value in _object(entry).items()
        if value is not None
    )


def _object(entry: Entry) -> dict[str, Json]:
    return {
        "id": entry.id,
        "name": entry.name,
        "dictionary": entry.dictionary,
        "kinds": sorted(entry.kinds),
        "access": entry.access,
        "type": entry.type,
        "ext": entry.ext or None,
        "unit": entry.unit or None,
        "note": entry.note or None,
    }
