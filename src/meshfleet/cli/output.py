"""What commands answer: tables and sentences for people, JSON for programs."""

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
    """A column of a table, and what it tells of a thing."""

    title: str
    cell: Callable[[Any], object]
    no_wrap: bool = False
    """Never broken into lines: somebody may want to copy it."""


def json_option(command: Any) -> Any:
    """Give a command the option `--json`; it gets it as `as_json`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Answer in JSON; lists with one object per line."
    )(command)


limit_option = click.option("--limit", type=click.IntRange(1), help="No more than so many.")


def print_json(thing: object) -> None:
    """Print something on one line, for programs."""
    text = msgspec.json.encode(thing).decode()
    click.echo((text if text.isprintable() else _escape_unprintable(text)).encode())


def _escape_unprintable(text: str) -> str:
    """The same JSON, in which nothing does anything to a terminal that happens to show it."""
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def print_result(result: object, sentence: str, *, as_json: bool) -> None:
    """Tell programs of the thing, and people what became of it."""
    if as_json:
        print_json(result)
    else:
        click.echo(to_printable(sentence))


async def print_list(
    items: AsyncIterator[Any], columns: Sequence[Column], *, as_json: bool, limit: int | None = None
) -> None:
    """Print a list: as a table, or each as soon as it comes for programs."""
    rows = []
    async for thing in limit_items(items, limit):
        if as_json:
            print_json(thing)
        else:
            rows.append(thing)
    if not as_json:
        print_table(columns, rows)


async def limit_items(items: AsyncIterator[Any], limit: int | None) -> AsyncIterator[Any]:
    """No more than so many."""
    left = limit
    async for thing in items:
        yield thing
        if left is not None:
            left -= 1
            if not left:
                return


def print_table(columns: Sequence[Column], items: Iterable[object]) -> None:
    """Print a row for each thing."""
    head = [each.title for each in columns]
    rows = [[format_cell(each.cell(thing)) for each in columns] for thing in items]
    if _print_unwrapped([head, *rows]):
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
    """Print what is known of one thing, a line for each fact."""
    rows = [[to_printable(name), format_cell(value)] for name, value in fields]
    if _print_unwrapped(rows):
        return
    table = Table.grid(RichColumn(no_wrap=True), RichColumn(overflow="fold"), padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _print_unwrapped(rows: Sequence[Sequence[str]]) -> bool:
    """Print rows without breaking any, for a program that reads along, or a terminal that is wide enough."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    if sys.stdout.isatty() and sum(widths) + len(_COLUMN_SEPARATOR) * (len(widths) - 1) > Console().width:
        return False
    for row in rows:
        cells = (text + " " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True))
        click.echo(_COLUMN_SEPARATOR.join(cells).rstrip())
    return True


def flatten_fields(body: object) -> Iterable[tuple[str, object]]:
    """All that a body tells, under the names that it has in JSON; what is inside follows a dot."""
    return _flatten(msgspec.to_builtins(body), "")


def truncate_to_seconds(time: str) -> str:
    """A time as REST tells it, as exactly as people read it in a table."""
    return time.partition(".")[0] + "Z"


def format_cell(value: object) -> str:
    """A value as people read it; foreign text cannot do anything to the terminal."""
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
