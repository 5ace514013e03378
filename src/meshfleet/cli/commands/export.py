"""`meshfleet export`: save the samples of all devices to files, one directory for each day."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from meshfleet.cli.arguments import PAST_TIME, sample_filter_options
from meshfleet.cli.device_filters import DEVICE_FILTER, FILTER_NAMES, build_device_filters
from meshfleet.cli.output import json_option, print_json
from meshfleet.cli.sample_files import FILE_TYPES, SampleFile, import_pyarrow, to_row
from meshfleet.cli.service_access import call_service
from meshfleet.errors import ServiceRefused, ServiceUnreachable
from meshfleet.protocol.times import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.client import Fleet
    from meshfleet.client.rest.devices import DeviceFilters

_ROWS_PER_WRITE: Final = 2_000
_ROWS_PER_FILE: Final = 5_000_000
"""Number of rows after which the next file of the same day begins."""


class _Span(NamedTuple):
    """Part of a day, from `since` to before `until`."""

    since: datetime
    until: datetime


@click.command
@click.option(
    "--from",
    "since",
    type=PAST_TIME,
    required=True,
    help="Export samples from this time on: 2026-11-15T10:00:00Z, or an age such as 90s, 15m, 2h, 7d.",
)
@click.option(
    "--to",
    "until",
    type=PAST_TIME,
    help="Export samples before this time: 2026-11-15T10:00:00Z, or an age such as 90s, 15m, 2h, 7d."
    "  [default: now]",
)
@click.option(
    "--filter",
    "filters",
    type=DEVICE_FILTER,
    multiple=True,
    help=f"Export only devices that match NAME=VALUE; if repeated, those that match all filters."
    f" Names: {FILTER_NAMES}.",
)
@sample_filter_options("Export")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(list(FILE_TYPES)),
    default="parquet",
    show_default=True,
    help="Format of the files. Parquet needs the package pyarrow.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory for the files; it is created if it does not exist.",
)
@json_option
def export(  # noqa: PLR0913 # the options of the command
    *,
    since: datetime,
    until: datetime | None,
    filters: tuple[tuple[str, object], ...],
    file_format: str,
    out: Path,
    as_json: bool,
    **sample_filters: Any,
) -> None:
    """Save the samples of all devices to files, as an admin.

    The files are date=YYYY-MM-DD/part-N.FORMAT below the directory --out, by the UTC day of the samples. The
    directory of a day appears only when it is complete.
    """
    if file_format == "parquet":
        import_pyarrow()  # before anything is written
    end = until or datetime.now(UTC)
    if since >= end:
        raise click.UsageError("--from must be before --to.")
    out.mkdir(parents=True, exist_ok=True)
    exporter = _Exporter(out, file_format, build_device_filters(filters), sample_filters)
    spans = list(_split_days(since, end))
    call_service(lambda fleet: exporter.run(fleet, spans, as_json=as_json))


class _Exporter:
    """Exports the samples of each day to its own directory, one day after the other."""

    def __init__(
        self, out: Path, file_format: str, devices: DeviceFilters | None, sample_filters: dict[str, Any]
    ) -> None:
        self._out = out
        self._format = file_format
        self._devices = devices
        self._sample_filters = sample_filters

    async def run(self, fleet: Fleet, spans: list[_Span], *, as_json: bool) -> None:
        for span in spans:
            if (folder := self._folder(span)).exists():
                raise click.ClickException(
                    f"{folder} exists already: choose another directory, or delete that one"
                )
        total = 0
        for span in spans:
            try:
                count = await self._export_day(fleet, span)
            except (ServiceUnreachable, ServiceRefused) as exc:
                raise click.ClickException(
                    f"{exc}; earlier days are complete, go on with --from {format_time(span.since)}"
                ) from exc
            total += count
            if as_json:
                print_json({"day": f"{span.since:%Y-%m-%d}", "samples": count})
            else:
                click.echo(f"{span.since:%Y-%m-%d}  {count:,} samples")
        if not as_json:
            click.echo(f"Written {total:,} samples to {self._out}")

    def _folder(self, span: _Span) -> Path:
        return self._out / f"date={span.since:%Y-%m-%d}"

    async def _export_day(self, fleet: Fleet, span: _Span) -> int:
        """Export a day to a directory with a temporary name, and rename the directory when it is complete.

        Return the number of samples. Without samples there is no directory.
        """
        unfinished = self._out / f".{self._folder(span).name}.unfinished"
        if unfinished.exists():  # of an export that was killed
            shutil.rmtree(unfinished)
        unfinished.mkdir()
        try:
            count = await self._write_part_files(fleet, span, unfinished)
            if count:
                unfinished.rename(self._folder(span))
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return count

    async def _write_part_files(self, fleet: Fleet, span: _Span, folder: Path) -> int:
        parts = _PartWriter(folder, self._format)
        samples = fleet.samples.export(
            self._devices, since=span.since, until=span.until, **self._sample_filters
        )
        try:
            rows = []
            async for sample in samples:
                rows.append(to_row(sample))
                if len(rows) >= _ROWS_PER_WRITE:
                    parts.write(rows)
                    rows = []
            parts.write(rows)
        finally:
            parts.close()
        return parts.row_count


class _PartWriter:
    """Writes the files of one day, `part-0`, `part-1` and so on. Without rows, no file is created."""

    def __init__(self, folder: Path, file_format: str) -> None:
        self._folder = folder
        self._format = file_format
        self._file: SampleFile | None = None
        self.row_count = 0

    def write(self, rows: list[Any]) -> None:
        if not rows:
            return
        if self._file is None:
            number = self.row_count // _ROWS_PER_FILE
            self._file = FILE_TYPES[self._format](self._folder / f"part-{number}.{self._format}")
        self._file.write(rows)
        before, self.row_count = self.row_count, self.row_count + len(rows)
        if before // _ROWS_PER_FILE != self.row_count // _ROWS_PER_FILE:
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _split_days(since: datetime, until: datetime) -> Iterator[_Span]:
    """Split a time range at each midnight UTC into parts of one day."""
    start, end = since.astimezone(UTC), until.astimezone(UTC)
    while start < end:
        midnight = datetime.combine(start.date() + timedelta(days=1), time(), UTC)
        yield _Span(start, min(midnight, end))
        start = midnight
