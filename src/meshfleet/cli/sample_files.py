"""Writes exported samples to files: Parquet, CSV or JSON lines, all with the same columns."""

from __future__ import annotations

import csv
import shlex
import sys
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

import click
import msgspec
from msgspec import Struct

from meshfleet.csv_format import escape_formula
from meshfleet.protocol.times import to_millis

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from meshfleet.client import ExportedSample

_ROWS_PER_GROUP: Final = 20_000
"""Number of rows that are written to a Parquet file at once, and are in memory until then."""

_encode_lines = msgspec.json.Encoder().encode_lines


class SampleRow(Struct, frozen=True, kw_only=True):
    """Row of a file with exported samples. `docs/guides/export.md` describes the columns."""

    time: str
    corrected_time: str | None
    device: str
    name: str
    """Name of the device."""
    gateway: str
    kind: str
    identifier: str
    """Name of the identifier, or its hex id if it has no name."""
    value_double: float | None
    """Value, if it is a number or boolean; true is 1 and false is 0."""
    value_text: str | None
    """Value as JSON, if it is neither a number nor a boolean."""
    raw: str | None
    seq: int | None
    clock: str | None
    error: int | None
    error_ext: int | None
    ext: str | None


def to_row(sample: ExportedSample) -> SampleRow:
    """Convert an exported sample to a row of a file."""
    value = sample.value
    is_number = isinstance(value, int | float)
    return SampleRow(
        time=sample.time,
        corrected_time=None if sample.corrected_time is msgspec.UNSET else sample.corrected_time,
        device=sample.device,
        name=sample.device_name,
        gateway=sample.gateway,
        kind=sample.kind,
        identifier=sample.name or sample.identifier or "",
        value_double=float(value) if is_number else None,
        value_text=None if is_number or value is None else _to_json(value),
        raw=sample.raw,
        seq=sample.seq,
        clock=sample.clock,
        error=sample.error,
        error_ext=sample.error_ext,
        ext=None if sample.ext is None else _to_json(sample.ext),
    )


class SampleFile(Protocol):
    """File to which rows of samples are appended. The file is complete only after `close`."""

    def write(self, rows: Sequence[SampleRow]) -> None:
        """Append rows to the file, perhaps later: some formats collect rows in memory."""

    def close(self) -> None:
        """Write the rows that are still in memory, and close the file."""


class _JsonLinesFile:
    """File with one JSON object per row."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")

    def write(self, rows: Sequence[SampleRow]) -> None:
        self._file.write(_encode_lines(rows))

    def close(self) -> None:
        self._file.close()


class _CsvFile:
    """CSV file. Names of devices that spreadsheet programs would take for formulas are escaped."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("x", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow(SampleRow.__struct_fields__)

    def write(self, rows: Sequence[SampleRow]) -> None:
        safe_rows = (msgspec.structs.replace(row, name=escape_formula(row.name)) for row in rows)
        self._writer.writerows(map(msgspec.structs.astuple, safe_rows))

    def close(self) -> None:
        self._file.close()


class _ParquetFile:
    """Parquet file, written in groups of rows."""

    def __init__(self, path: Path) -> None:
        self._arrow, parquet = import_pyarrow()
        self._schema = _build_schema(self._arrow)
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[SampleRow] = []

    def write(self, rows: Sequence[SampleRow]) -> None:
        self._rows += rows
        if len(self._rows) >= _ROWS_PER_GROUP:
            self._write_group()

    def close(self) -> None:
        if self._rows:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        columns = [
            self._arrow.array(
                [_CONVERTERS.get(field.name, _keep)(getattr(row, field.name)) for row in self._rows],
                type=field.type,
            )
            for field in self._schema
        ]
        self._writer.write_batch(self._arrow.record_batch(columns, schema=self._schema))
        self._rows = []


FILE_TYPES: Final[Mapping[str, Callable[[Path], SampleFile]]] = {
    "parquet": _ParquetFile,
    "csv": _CsvFile,
    "jsonl": _JsonLinesFile,
}
"""Class of the file for each format. The name of a format is also the ending of the file name."""


def import_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and its Parquet module. Raise `ClickException` if pyarrow is not installed."""
    try:  # not at the top: an optional dependency, and 150 MB large
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as exc:
        raise click.ClickException(
            f"Parquet needs pyarrow, which is not installed: run {shlex.quote(sys.executable)} -m pip install"
            " pyarrow, or choose --format csv or jsonl"
        ) from exc


def _build_schema(arrow: Any) -> Any:
    text, time = arrow.string(), arrow.timestamp("ms", tz="UTC")
    # Few distinct values: a dictionary takes a fraction of the memory of readers.
    category = arrow.dictionary(arrow.int32(), arrow.string())
    required = {"time", "device", "name", "gateway", "kind", "identifier"}
    types = {
        "time": time,
        "corrected_time": time,
        "device": category,
        "name": category,
        "gateway": category,
        "kind": category,
        "identifier": category,
        "value_double": arrow.float64(),
        "raw": arrow.binary(),
        "seq": arrow.int32(),
        "clock": category,
        "error": arrow.int64(),
        "error_ext": arrow.int64(),
    }
    return arrow.schema(
        [
            arrow.field(name, types.get(name, text), nullable=name not in required)
            for name in SampleRow.__struct_fields__
        ]
    )


def _keep(value: object) -> object:
    return value


def _parse_time(text: str | None) -> int | None:
    return None if text is None else to_millis(datetime.fromisoformat(text))


def _parse_raw(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


_CONVERTERS: Final[Mapping[str, Callable[[Any], object]]] = {
    "time": _parse_time,
    "corrected_time": _parse_time,
    "raw": _parse_raw,
}
"""Function that converts a value of a row for Parquet, by column. Other columns are not converted."""


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
