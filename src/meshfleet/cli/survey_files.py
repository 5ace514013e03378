"""Reads files with survey points, one JSON object per line, and adds the points to a site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meshfleet.cli.csv_files import raise_line_faults
from meshfleet.client.arguments import normalize_device_id, normalize_time
from meshfleet.errors import InvalidRequest
from meshfleet.errors.protocol import LineFault, MalformedInput
from meshfleet.rest.bodies import decode_body
from meshfleet.rest.positions import NewSurveyPoint

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.client import Fleet

_ANY_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class SurveyLine(NamedTuple):
    """Survey point in a file, and the number of its line, from 1."""

    line: int
    point: NewSurveyPoint


async def import_survey(fleet: Fleet, site: str, path: Path) -> int:
    """Add the survey points of a file to a site, and return their number.

    Raise `ClickException` with all wrong lines before anything is added, and with all lines that the service
    refuses after the others were added.
    """
    faults: list[LineFault] = []
    lines = read_survey_lines(path, faults)
    raise_line_faults(str(path), faults, "no survey point was added, as lines are wrong:")
    for line, point in lines:
        try:
            await fleet.sites.add_survey_point(
                site, point.device, point.floor, point.x, point.y, since=point.since, until=point.until
            )
        except InvalidRequest as exc:
            faults.append(LineFault(line, str(exc)))
    added = len(lines) - len(faults)
    raise_line_faults(str(path), faults, f"{added} of {len(lines)} survey points are added, not these:")
    return added


def read_survey_lines(path: Path, faults: list[LineFault]) -> list[SurveyLine]:
    """Read the survey points in a file. Add mistakes to `faults`; wrong lines are left out.

    Blank lines, and other JSON objects that an emulated gateway prints, are no mistakes.
    """
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            if _is_other_object(line):
                continue
            point = decode_body(NewSurveyPoint, line)
            normalize_device_id(point.device)
            for field, time in (("from", point.since), ("to", point.until)):
                if time is not None:
                    normalize_time(time, field)
        except MalformedInput as exc:
            faults.append(LineFault(number, f"{exc.field}: {exc.reason}"))
        else:
            found.append(SurveyLine(number, point))
    if not found and not faults:
        faults.append(LineFault(1, "there are no survey points"))
    return found


def _is_other_object(line: bytes) -> bool:
    """Return whether a line is a JSON object without a floor, such as the address of a gateway."""
    try:
        return "floor" not in _ANY_OBJECT.decode(line)
    except msgspec.DecodeError:
        return False
