"""Reads CSV files with gateways, and writes CSV files with the credentials of gateways."""

from __future__ import annotations

import csv
import io
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

import click

from meshfleet.cli.options import parse_any_mac
from meshfleet.cli.terminal import to_printable
from meshfleet.errors import quote_input
from meshfleet.errors.protocol import LineFault, MalformedInput
from meshfleet.rest.gateways import MAX_BATCH_LABELS
from meshfleet.rest.inputs import parse_friendly_name, parse_new_label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from meshfleet.protocol.ids import Mac
    from meshfleet.rest.gateways import GatewayClaim

Text = TypeVar("Text", bound=str)

_COLUMNS: Final = ("mac", "name", "labels")
_CREDENTIAL_COLUMNS: Final = ("mac", "username", "password", "host", "port", "tls")
_KNOWN_COLUMNS: Final = {*_COLUMNS, *_CREDENTIAL_COLUMNS}
_SEPARATOR_LINE: Final = re.compile(r"sep=([\t !#-~])(?:\n|$)", re.IGNORECASE)
"""First line with which a file tells Excel the separator of its columns."""
_LABEL_SEPARATOR: Final = ";"
_MAC_SEPARATORS: Final = re.compile(r"[\s.]")
_CHANGED_BY_EXCEL: Final = re.compile(r"[0-9.,]+e\+[0-9]+", re.IGNORECASE)
"""Number such as 2,0E+10: a spreadsheet program may have changed a MAC to such a number."""
_OWNER_ONLY: Final = 0o600


class GatewayLine(NamedTuple):
    """Gateway in a CSV file."""

    line: int
    """Number of the first line of the gateway, from 1."""
    mac: Mac
    name: str | None
    labels: tuple[str, ...]


class GatewayFile(NamedTuple):
    """Content of a CSV file: the gateways with a valid MAC, and the mistakes in all lines."""

    name: str
    gateways: list[GatewayLine]
    faults: list[LineFault]

    def raise_faults(self, outcome: str) -> None:
        """Raise `ClickException` with all mistakes in the order of their lines, if there are any.

        The text begins with `outcome`, which says what the command did not do.
        """
        if not self.faults:
            return
        lines = [f"{self.name}:{fault.line}: {fault.reason}" for fault in sorted(self.faults)]
        raise click.ClickException("\n".join(map(to_printable, [outcome, *lines])))


def read_gateway_file(path: Path) -> GatewayFile:
    """Read a CSV file with gateways. Mistakes are in the result, and raise nothing.

    The columns are `mac` and optionally `name` and `labels`, in any order. The other columns of a
    `CredentialsFile` are ignored, so that such a file can be read too. Columns are separated by `,`, by `;`
    as in files of Excel in many countries, or by the character in a first line such as `sep=;`.
    """
    file = GatewayFile(str(path), [], [])
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw[: exc.start].count(b"\n") + 1
        file.faults.append(LineFault(line, "is not UTF-8: save the file as CSV UTF-8"))
        return file
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    rows = _iterate_rows(text, file.faults)
    header_line, header = next(rows, (1, []))
    columns = [each.strip().lower() for each in header]
    if header_faults := list(_check_header(columns)):
        file.faults.extend(LineFault(header_line, each) for each in header_faults)
        return file
    first_lines: dict[Mac, int] = {}
    for line, cells in rows:
        parser = _RowParser(line, file.faults)
        found = parser.parse(columns, cells)
        if found is None:
            continue
        first = first_lines.setdefault(found.mac, line)
        if first != line:
            file.faults.append(LineFault(line, f"mac: {found.mac} is also in line {first}"))
        file.gateways.append(found)
    if not file.gateways and not file.faults:
        file.faults.append(LineFault(1, "there are no gateways after the names of the columns"))
    return file


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


def _check_header(columns: list[str]) -> Iterator[str]:
    """Yield the mistakes in the names of the columns."""
    if "mac" not in columns:
        yield f"has no column mac: the first line names the columns, {', '.join(_COLUMNS)}"
        return
    for index, name in enumerate(columns):
        if name not in _KNOWN_COLUMNS:
            yield f"the column {quote_input(name)} is not one of {', '.join(_COLUMNS)}"
        elif name in columns[:index]:
            yield f"the column {name} is there twice"


class _RowParser:
    """Parses a row of a CSV file, and adds each mistake in the row to `faults`."""

    def __init__(self, line: int, faults: list[LineFault]) -> None:
        self._line = line
        self._faults = faults

    def parse(self, columns: list[str], cells: list[str]) -> GatewayLine | None:
        """Parse the cells of a row to a gateway; None if the MAC is wrong."""
        if len(cells) > len(columns):
            self._add_fault(f"has {len(cells)} values for {len(columns)} columns")
        values = dict(zip(columns, (each.strip() for each in cells), strict=False))
        mac = self._parse_cell(_parse_csv_mac, values.get("mac", ""))
        name = self._parse_cell(parse_friendly_name, values["name"]) if values.get("name") else None
        texts = [each for each in values.get("labels", "").split(_LABEL_SEPARATOR) if each.strip()]
        if len(texts) > MAX_BATCH_LABELS:
            self._add_fault(f"labels: a gateway can get at most {MAX_BATCH_LABELS} labels")
        labels = [self._parse_cell(_parse_csv_label, each) for each in texts]
        if mac is None:
            return None
        return GatewayLine(
            self._line, mac, name, tuple(dict.fromkeys(each for each in labels if each is not None))
        )

    def _parse_cell(self, parse: Callable[[str], Text], text: str) -> Text | None:
        """Parse a text with the function `parse`. If the text is malformed, add a fault and return None."""
        try:
            return parse(text)
        except MalformedInput as exc:
            self._add_fault(f"{exc.field}: {exc.reason}")
            return None

    def _add_fault(self, reason: str) -> None:
        self._faults.append(LineFault(self._line, reason))


def _parse_csv_label(text: str) -> str:
    return parse_new_label(text, "labels")


def _parse_csv_mac(text: str) -> Mac:
    """Parse a MAC as printed on devices, as shown by other systems, or as a device id."""
    if not text:
        raise MalformedInput("mac", "is missing")
    try:
        return parse_any_mac(_MAC_SEPARATORS.sub("", text.lower().removeprefix("bmac-")))
    except MalformedInput:
        if not _CHANGED_BY_EXCEL.fullmatch(text):
            raise
    raise MalformedInput(
        "mac", f"a spreadsheet program made a number of it, {quote_input(text)}: format the column as text"
    )


# Credentials.


class CredentialsFile:
    """New CSV file with the credentials of gateways, which only the owner of the file can read."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raise `ClickException` if it exists, because its passwords may still be needed."""
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _OWNER_ONLY)
        except FileExistsError:
            raise click.ClickException(f"{path} exists already: give another file with --out") from None
        except OSError as exc:
            raise click.ClickException(f"{path} cannot be created: {exc.strerror}") from exc
        self.path = path
        self.count = 0
        """Number of gateways whose credentials are on the disk."""
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(_CREDENTIAL_COLUMNS)

    def add(self, claims: Iterable[GatewayClaim]) -> None:
        """Append the credentials of gateways, and return when they are on the disk."""
        count = 0
        for claim in claims:
            tls = "yes" if claim.broker.tls else "no"
            row = (claim.mac, claim.username, claim.password, claim.broker.host, claim.broker.port, tls)
            self._writer.writerow(row)
            count += 1
        self._file.flush()
        os.fsync(self._file.fileno())
        self.count += count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close the file, and delete it if it contains no credentials."""
        with suppress(OSError):  # `add` has failed with the same error; what it has counted is on the disk
            self._file.close()
        if not self.count:
            self.path.unlink(missing_ok=True)
