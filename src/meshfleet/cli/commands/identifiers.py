"""`meshfleet identifiers`: list the catalogue of properties, measurements and events."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import click
import msgspec
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from meshfleet.cli.options import table_option
from meshfleet.cli.terminal import to_printable
from meshfleet.errors.protocol import UnknownIdentifier

if TYPE_CHECKING:
    from meshfleet.protocol.fields import Json
    from meshfleet.protocol.identifiers import IdentifierCatalogue, IdentifierDefinition


@click.command()
@table_option
@click.option("--json", "as_json", is_flag=True, help="Print each identifier as a JSON object on one line.")
@click.argument("names", metavar="[IDENTIFIER]...", nargs=-1)
def identifiers(catalogue: IdentifierCatalogue, names: tuple[str, ...], *, as_json: bool) -> None:
    """List known properties, measurements and events, or describe each given IDENTIFIER (name or hex id)."""
    entries = [_find_entry(catalogue, name) for name in names] or list(catalogue)
    if as_json:
        for entry in entries:
            click.echo(msgspec.json.encode(_to_json_object(entry)))
        return
    if names:
        click.echo("\n\n".join(map(_format_details, entries)))
        return
    columns = [Column(title, no_wrap=True) for title in ("id", "name", "kind", "access", "unit")]
    table = Table(*columns, box=None, header_style="bold")
    for entry in entries:
        kinds = " ".join(sorted(entry.kinds))
        table.add_row(
            *(Text(to_printable(cell)) for cell in (entry.id, entry.name, kinds, entry.access, entry.unit))
        )
    # In a pipe the table is wide enough for all texts.
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)


_PIPE_WIDTH = 1000

_MIN_SIMILARITY: Final = 0.7
"""Minimum similarity (0 to 1) of an identifier's name that is suggested for an unknown name."""


def find_similar_identifier(text: str, catalogue: IdentifierCatalogue) -> str | None:
    """Return the identifier name that is most similar to an unknown name; None if no name is similar."""
    names = [entry.name for entry in catalogue]
    return next(iter(get_close_matches(text.lower(), names, n=1, cutoff=_MIN_SIMILARITY)), None)


def _find_entry(catalogue: IdentifierCatalogue, name_or_id: str) -> IdentifierDefinition:
    try:
        return catalogue[name_or_id]
    except UnknownIdentifier as exc:
        similar = find_similar_identifier(name_or_id, catalogue)
        if similar is None:
            raise
        raise click.ClickException(to_printable(f"{exc}; did you mean {similar}?")) from exc


def _format_details(entry: IdentifierDefinition) -> str:
    """Format an identifier's catalogue entry, with one line per field."""
    return "\n".join(
        f"{name:<11} {to_printable(' '.join(value) if isinstance(value, list) else str(value))}"
        for name, value in _to_json_object(entry).items()
        if value is not None
    )


def _to_json_object(entry: IdentifierDefinition) -> dict[str, Json]:
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
