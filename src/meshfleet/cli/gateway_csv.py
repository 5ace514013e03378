"""Reads CSV files with gateways, and writes CSV files with the credentials of gateways."""

from __future__ import annotations

import csv
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import click

from meshfleet.cli.csv_files import CsvColumns, parse_csv_mac, raise_line_faults, read_csv_rows
from meshfleet.errors.protocol import LineFault
from meshfleet.rest.gateways import MAX_BATCH_LABELS
from meshfleet.rest.inputs import parse_friendly_name, parse_new_label

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from meshfleet.cli.csv_files import CsvRow
    from meshfleet.protocol.ids import Mac
    from meshfleet.rest.gateways import GatewayClaim

_CREDENTIAL_COLUMNS: Final = ("mac", "username", "password", "host", "port", "tls")
_COLUMNS: Final = CsvColumns(
    named=("mac", "name", "labels"), required=("mac",), ignored=frozenset(_CREDENTIAL_COLUMNS)
)
_LABEL_SEPARATOR: Final = ";"
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
        raise_line_faults(self.name, self.faults, outcome)


def read_gateway_file(path: Path) -> GatewayFile:
    """Read a CSV file with gateways. Mistakes are in the result, and raise nothing.

    The columns are `mac` and optionally `name` and `labels`, in any order. The other columns of a
    `CredentialsFile` are ignored, so that such a file can be read too.
    """
    file = GatewayFile(str(path), [], [])
    first_lines: dict[Mac, int] = {}
    for row in read_csv_rows(path, _COLUMNS, file.faults):
        found = _parse_row(row)
        if found is None:
            continue
        first = first_lines.setdefault(found.mac, row.line)
        if first != row.line:
            row.add_fault(f"mac: {found.mac} is also in line {first}")
        file.gateways.append(found)
    if not file.gateways and not file.faults:
        file.faults.append(LineFault(1, "there are no gateways after the names of the columns"))
    return file


def _parse_row(row: CsvRow) -> GatewayLine | None:
    """Parse a row to a gateway; None if the MAC is wrong."""
    mac = row.parse_required("mac", parse_csv_mac)
    name = row.parse(parse_friendly_name, row.values["name"]) if row.values.get("name") else None
    texts = [each for each in row.values.get("labels", "").split(_LABEL_SEPARATOR) if each.strip()]
    if len(texts) > MAX_BATCH_LABELS:
        row.add_fault(f"labels: a gateway can get at most {MAX_BATCH_LABELS} labels")
    labels = [row.parse(_parse_csv_label, each) for each in texts]
    if mac is None:
        return None
    return GatewayLine(row.line, mac, name, tuple(dict.fromkeys(each for each in labels if each is not None)))


def _parse_csv_label(text: str) -> str:
    return parse_new_label(text, "labels")


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
