"""Reads CSV files that users write with spreadsheet programs, and collects the mistakes in their lines."""

from __future__ import annotations

import csv
import io
import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import click

from meshfleet.cli.options import parse_any_mac
from meshfleet.cli.terminal import to_printable
from meshfleet.errors import quote_input
from meshfleet.errors.protocol import LineFault, MalformedInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from meshfleet.protocol.ids import Mac

Value = TypeVar("Value")

_SEPARATOR_LINE: Final = re.compile(r"sep=([\t !#-~])(?:\n|$)", re.IGNORECASE)
"""First line with which a file tells Excel the separator of its columns."""
_MAC_SEPARATORS: Final = re.compile(r"[\s.]")
_CHANGED_BY_EXCEL: Final = re.compile(r"[0-9.,]+e\+[0-9]+", re.IGNORECASE)
"""Number such as 2,0E+10: a spreadsheet program may have changed a MAC to such a number."""


class CsvColumns(NamedTuple):
    """Columns that a CSV file may have, in any order. Names of columns are compared ignoring case."""

    named: tuple[str, ...]
    """Columns that are read; errors list them."""
    required: tuple[str, ...]
    ignored: frozenset[str] = frozenset()
    """Columns that are neither read nor refused."""


class CsvRow:
    """Row of a CSV file. Parses its cells, and adds mistakes to the faults of the file."""

    def __init__(self, line: int, values: dict[str, str], faults: list[LineFault]) -> None:
        self.line = line
        """Number of the first line of the row, from 1."""
        self.values = values
        """Trimmed cells by name of the column, in lower case. Cells that are not there are missing."""
        self._faults = faults

    def parse(self, parse: Callable[[str], Value], text: str) -> Value | None:
        """Parse a text with the function `parse`. If the text is malformed, add a fault and return None."""
        try:
            return parse(text)
        except MalformedInput as exc:
            self.add_fault(f"{exc.field}: {exc.reason}")
            return None

    def parse_required(self, column: str, parse: Callable[[str, str], Value]) -> Value | None:
        """Parse a cell with the function `parse`, which gets its text and the name of its column.

        If the cell is empty or malformed, add a fault and return None.
        """
        text = self.values.get(column, "")
        if text:
            return self.parse(lambda value: parse(value, column), text)
        self.add_fault(f"{column}: is missing")
        return None

    def parse_optional(self, column: str, parse: Callable[[str, str], Value]) -> Value | None:
        """Parse a cell like `parse_required`, but return None without a fault if it is empty."""
        text = self.values.get(column, "")
        return self.parse(lambda value: parse(value, column), text) if text else None

    def add_fault(self, reason: str) -> None:
        """Add a fault of this row to the faults of the file."""
        self._faults.append(LineFault(self.line, reason))


def read_csv_rows(path: Path, columns: CsvColumns, faults: list[LineFault]) -> Iterator[CsvRow]:
    """Yield the rows of a CSV file that are not blank. Add mistakes to `faults`; raise nothing for them.

    Columns are separated by `,`, by `;` as in files of Excel in many countries, or by the character in a
    first line such as `sep=;`. The next line has the names of the columns. Without valid names, or if the
    file is not UTF-8, yield nothing.
    """
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw[: exc.start].count(b"\n") + 1
        faults.append(LineFault(line, "is not UTF-8: save the file as CSV UTF-8"))
        return
    rows = _iterate_rows(text.replace("\r\n", "\n").replace("\r", "\n"), faults)
    header_line, header = next(rows, (1, []))
    names = [each.strip().lower() for each in header]
    if header_faults := [LineFault(header_line, each) for each in _check_header(names, columns)]:
        faults.extend(header_faults)
        return
    for line, cells in rows:
        values = dict(zip(names, (each.strip() for each in cells), strict=False))
        row = CsvRow(line, values, faults)
        if len(cells) > len(names):
            row.add_fault(f"has {len(cells)} values for {len(names)} columns")
        yield row


def raise_line_faults(name: str, faults: Sequence[LineFault], outcome: str) -> None:
    """Raise `ClickException` with all mistakes in a file, in the order of their lines, if there are any.

    The text begins with `outcome`, which says what the command did not do.
    """
    if faults:
        lines = [f"{name}:{fault.line}: {fault.reason}" for fault in sorted(faults)]
        raise click.ClickException("\n".join(map(to_printable, [outcome, *lines])))


def parse_csv_mac(text: str, field: str = "mac") -> Mac:
    """Parse a MAC as printed on devices, as shown by other systems, or as a device id."""
    try:
        return parse_any_mac(_MAC_SEPARATORS.sub("", text.lower().removeprefix("bmac-")))
    except MalformedInput as exc:
        if not _CHANGED_BY_EXCEL.fullmatch(text):
            raise MalformedInput(field, exc.reason) from None
    raise MalformedInput(
        field, f"a spreadsheet program made a number of it, {quote_input(text)}: format the column as text"
    )


def parse_csv_floor(text: str, field: str) -> int:
    """Parse the number of a floor."""
    try:
        return int(text)
    except ValueError:
        raise MalformedInput(field, f"{quote_input(text)} is not a whole number") from None


def parse_csv_meters(text: str, field: str) -> float:
    """Parse meters. A comma is a decimal point: spreadsheet programs of many countries write one."""
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise MalformedInput(field, f"{quote_input(text)} is not a number of meters")
    return value


def _iterate_rows(text: str, faults: list[LineFault]) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not blank, with the number of its first line. Add wrong quotes to `faults`."""
    header = text.partition("\n")[0]
    separator = ";" if header.count(";") > header.count(",") else ","
    separator_line = _SEPARATOR_LINE.match(text)
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=separator_line[1] if separator_line else separator,
        strict=True,
    )
    if separator_line:
        next(reader)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as exc:
            faults.append(LineFault(line, f"is not CSV: {exc}; later lines were not checked"))
            return
        if any(each.strip() for each in cells):
            yield line, cells


def _check_header(names: list[str], columns: CsvColumns) -> Iterator[str]:
    """Yield the mistakes in the names of the columns."""
    listed = ", ".join(columns.named)
    missing = [each for each in columns.required if each not in names]
    if missing:
        yield f"has no column {missing[0]}: the first line names the columns, {listed}"
        return
    for index, name in enumerate(names):
        if name not in {*columns.named, *columns.ignored}:
            yield f"the column {quote_input(name)} is not one of {listed}"
        elif name in names[:index]:
            yield f"the column {name} is there twice"
