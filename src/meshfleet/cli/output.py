"""Prints the results of commands: as tables and sentences for users, or as JSON for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column as RichColumn
from rich.table import Table
from rich.text import Text

from meshfleet.cli.terminal import to_printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

_COLUMN_SEPARATOR: Final = "  "


class Column(NamedTuple):
    """Column of a printed table, with the function that returns the cell value for an item."""

    title: str
    cell: Callable[[Any], object]
    no_wrap: bool = False
    """Whether cells of the column are never wrapped, so that users can copy their content."""


def json_option(command: Any) -> Any:
    """Add the option `--json` to a command, which receives its value as argument `as_json`."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print the result as JSON; a list is printed as one object per line.",
    )(command)


limit_option = click.option(
    "--limit", type=click.IntRange(1), help="Maximum number of entries to list. Default: all."
)


def print_json(item: object) -> None:
    """Print an object as JSON on one line."""
    text = msgspec.json.encode(item).decode()
    click.echo((text if text.isprintable() else _escape_unprintable(text)).encode())


def _escape_unprintable(text: str) -> str:
    """Escape unprintable characters in JSON, so that the text cannot send control codes to a terminal."""
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def print_result(result: object, sentence: str, *, as_json: bool) -> None:
    """Print `result` as JSON if `as_json` is set, else print `sentence`."""
    if as_json:
        print_json(result)
    else:
        click.echo(to_printable(sentence))


async def print_list(
    items: AsyncIterator[Any], columns: Sequence[Column], *, as_json: bool, limit: int | None = None
) -> None:
    """Print items as a table, or as JSON; in JSON, each item is printed as soon as it is received."""
    rows = []
    async for item in limit_items(items, limit):
        if as_json:
            print_json(item)
        else:
            rows.append(item)
    if not as_json:
        print_table(columns, rows)


async def limit_items(items: AsyncIterator[Any], limit: int | None) -> AsyncIterator[Any]:
    """Yield at most `limit` items, or all items if `limit` is None."""
    remaining = limit
    async for item in items:
        yield item
        if remaining is not None:
            remaining -= 1
            if not remaining:
                return


def print_table(columns: Sequence[Column], items: Iterable[object]) -> None:
    """Print a table with one row per item. Long cells are wrapped only on a terminal."""
    header = [each.title for each in columns]
    rows = [[format_cell(each.cell(item)) for each in columns] for item in items]
    if _print_unwrapped([header, *rows]):
        return
    folded = [
        RichColumn(each.title, no_wrap=each.no_wrap, overflow="ignore" if each.no_wrap else "fold")
        for each in columns
    ]
    table = Table(*folded, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one field per line."""
    rows = [[to_printable(name), format_cell(value)] for name, value in fields]
    if _print_unwrapped(rows):
        return
    table = Table.grid(RichColumn(no_wrap=True), RichColumn(overflow="fold"), padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _print_unwrapped(rows: Sequence[Sequence[str]]) -> bool:
    """Print rows without wrapping. Return False, without printing, if the terminal is not wide enough."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    if sys.stdout.isatty() and sum(widths) + len(_COLUMN_SEPARATOR) * (len(widths) - 1) > Console().width:
        return False
    for row in rows:
        cells = (text + " " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True))
        click.echo(_COLUMN_SEPARATOR.join(cells).rstrip())
    return True


def flatten_fields(body: object) -> Iterable[tuple[str, object]]:
    """Return JSON names and values of the fields of `body`; the names of nested fields are joined by dots."""
    return _flatten(msgspec.to_builtins(body), "")


def truncate_to_seconds(time: str) -> str:
    """Remove the fraction of a second from a time such as `2026-11-15T10:00:00.123Z`."""
    return time.partition(".")[0] + "Z"


def format_cell(value: object) -> str:
    """Format a value for a table cell. Control characters, which could control the terminal, are replaced."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list() | tuple() if all(isinstance(each, str) for each in value):
            return to_printable(", ".join(value))
        case str() | int() | float():
            return to_printable(str(value))
    return to_printable(msgspec.json.encode(value).decode())


def _flatten(values: dict[str, object], prefix: str) -> Iterable[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
