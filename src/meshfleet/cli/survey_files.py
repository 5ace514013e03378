"""Reads and writes files with survey points, and imports them into a site.

A file has a JSON object per line, as an emulated gateway prints them too, is one object with all points, as
the REST interface exports them, or is CSV.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meshfleet.cli.csv_files import (
    CsvColumns,
    parse_csv_floor,
    parse_csv_mac,
    parse_csv_meters,
    raise_line_faults,
    read_csv_rows,
)
from meshfleet.client.arguments import normalize_device_id, normalize_time
from meshfleet.errors import InvalidRequest
from meshfleet.errors.protocol import LineFault, MalformedInput
from meshfleet.protocol.ids import to_device_id
from meshfleet.rest.bodies import decode_body
from meshfleet.rest.survey import NewSurveyRecord
from meshfleet.service.positions.survey_csv import (
    SURVEY_COLUMNS,
    encode_survey_header,
    encode_survey_rows,
    parse_readings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from meshfleet.cli.csv_files import CsvRow
    from meshfleet.client import Fleet, SurveyCount, SurveyRecord
    from meshfleet.errors import Fault


class _ExportedPoints(msgspec.Struct):
    """Response of an export over REST. Each point is decoded by itself, so that all wrong ones are named."""

    points: list[msgspec.Raw]


_ANY_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EXPORT: Final = msgspec.json.Decoder(_ExportedPoints)
_ENCODER: Final = msgspec.json.Encoder()

_COLUMNS: Final = CsvColumns(
    named=tuple(map(str.lower, SURVEY_COLUMNS)), required=("device", "floor", "x", "y")
)
_POINT_FIELD: Final = re.compile(r"points\[(\d+)\]\.(.*)")
_OUTCOME: Final = "no survey point was added, as lines are wrong:"


class SurveyLine(NamedTuple):
    """Survey point in a file."""

    line: int
    """Number of its first line, from 1."""
    record: NewSurveyRecord
    path: str = ""
    """Path that precedes the names of its fields, in a file that may have many points in a line."""


def format_survey_json(records: Sequence[SurveyRecord]) -> bytes:
    """Format survey points as JSON, one per line."""
    return _ENCODER.encode_lines(records)


def format_survey_csv(records: Sequence[SurveyRecord]) -> bytes:
    """Format survey points as CSV."""
    return encode_survey_header() + encode_survey_rows(records)


async def import_survey(fleet: Fleet, site: str, path: Path) -> SurveyCount:
    """Add the survey points of a file to a site: all of them, or none.

    Raise `ClickException` with all wrong lines: those that cannot be read, or those that the service refuses.
    """
    faults: list[LineFault] = []
    lines = read_survey_file(path, faults)
    raise_line_faults(str(path), faults, _OUTCOME)
    try:
        return await fleet.sites.import_survey(site, [each.record for each in lines])
    except InvalidRequest as exc:
        raise_line_faults(str(path), [_find_line(each, lines) for each in exc.faults], _OUTCOME)
        raise


def read_survey_file(path: Path, faults: list[LineFault]) -> list[SurveyLine]:
    """Read the survey points in a file. Add mistakes to `faults`; wrong lines are left out."""
    content = path.read_bytes()
    if not content.lstrip().startswith((b"{", b"[")):
        found = list(_read_csv_lines(path, faults))
    elif (points := _decode_export(content)) is not None:
        found = list(_read_exported_points(content, points, faults))
    else:
        found = list(_read_json_lines(content, faults))
    if not found and not faults:
        faults.append(LineFault(1, "there are no survey points"))
    return found


def _decode_export(content: bytes) -> Sequence[msgspec.Raw] | None:
    """Return the points of an export over REST; None if the content is something else."""
    try:
        return _EXPORT.decode(content).points
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _read_exported_points(
    content: bytes, points: Sequence[msgspec.Raw], faults: list[LineFault]
) -> Iterator[SurveyLine]:
    """Yield the points of an export over REST, which may be on one line or on many."""
    line, counted, end = 1, 0, 0
    for index, point in enumerate(map(bytes, points)):
        start = content.index(point, end)
        line += content.count(b"\n", counted, start)
        counted, end = start, start + len(point)
        path = f"points[{index}]."
        if (record := _parse_json(point, line, faults, path)) is not None:
            yield SurveyLine(line, record, path)


def _read_json_lines(content: bytes, faults: list[LineFault]) -> Iterator[SurveyLine]:
    """Yield the points of a file with an object per line.

    Blank lines, and other JSON objects that an emulated gateway prints, are no mistakes.
    """
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or _is_other_object(line):
            continue
        if (record := _parse_json(line, number, faults)) is not None:
            yield SurveyLine(number, record)


def _parse_json(data: bytes, line: int, faults: list[LineFault], path: str = "") -> NewSurveyRecord | None:
    """Parse the JSON object of a point. If it is wrong, add a fault and return None."""
    try:
        record = decode_body(NewSurveyRecord, data)
        normalize_device_id(record.device)
        for field, time in (("from", record.since), ("to", record.until)):
            if time is not None:
                _check_time(time, field)
    except MalformedInput as exc:
        faults.append(LineFault(line, f"{path}{exc.field}: {exc.reason}"))
        return None
    return record


def _is_other_object(line: bytes) -> bool:
    """Return whether a line is a JSON object without a floor, such as the address of a gateway."""
    try:
        return "floor" not in _ANY_OBJECT.decode(line)
    except msgspec.DecodeError:
        return False


def _read_csv_lines(path: Path, faults: list[LineFault]) -> Iterator[SurveyLine]:
    for row in read_csv_rows(path, _COLUMNS, faults):
        record = _parse_row(row)
        if record is not None:
            yield SurveyLine(row.line, record)


def _parse_row(row: CsvRow) -> NewSurveyRecord | None:
    """Parse a row of CSV; None if a required cell is wrong."""
    mac = row.parse_required("device", parse_csv_mac)
    floor = row.parse_required("floor", parse_csv_floor)
    x, y = row.parse_required("x", parse_csv_meters), row.parse_required("y", parse_csv_meters)
    since, until = row.parse_optional("from", _check_time), row.parse_optional("to", _check_time)
    created_at = row.parse_optional("createdat", _check_time)
    readings = row.parse_optional("readings", parse_readings)
    if mac is None or floor is None or x is None or y is None:
        return None
    return NewSurveyRecord(
        id=row.values.get("id") or None,
        device=to_device_id(mac),
        floor=floor,
        x=x,
        y=y,
        since=since,
        until=until,
        created_at=created_at,
        readings=readings,
    )


def _check_time(text: str, field: str) -> str:
    normalize_time(text, field)
    return text


def _find_line(fault: Fault, lines: Sequence[SurveyLine]) -> LineFault:
    """Return a fault that the service has found in a point, with the line of the point."""
    match = _POINT_FIELD.fullmatch(fault.field)
    if match is None or int(match[1]) >= len(lines):
        return LineFault(1, f"{fault.field}: {fault.message}")
    point = lines[int(match[1])]
    return LineFault(point.line, f"{point.path}{match[2]}: {fault.message}")
