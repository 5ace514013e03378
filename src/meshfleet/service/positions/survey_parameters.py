"""Parses bodies that describe survey points. The errors name all faults, not only the first one."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import Fault, InvalidRequest
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.ids import mac_to_int, parse_device_id, parse_mac, to_mac
from meshfleet.protocol.times import parse_millis
from meshfleet.rest.survey import (
    MAX_SURVEY_COUNT,
    MAX_SURVEY_POINTS,
    MAX_SURVEY_READINGS,
    MAX_SURVEY_RSSI,
    MIN_SURVEY_RSSI,
)
from meshfleet.service.http.query import QueryReader
from meshfleet.service.positions.reading_store import AnchorLevel
from meshfleet.service.sites.parameters import parse_survey_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.rest.survey import NewSurveyPoint, NewSurveyReading, NewSurveyRecord

NOT_RECEIVED: Final = "was not received by an anchor of this site in this time"
"""Fault of a device without readings for a survey point."""

_MAX_FAULTS: Final = 100
"""Maximum number of faults that an error names. Clients show no more, and a body can have a million."""

_DEFAULT_MS: Final = 60_000
_MAX_MS: Final = 3_600_000
_FUTURE_MS: Final = 60_000
"""Milliseconds by which times may be ahead: clocks of computers differ."""


class PointKey(NamedTuple):
    """Device, place and time of a survey point. No two points of an import agree in all of them.

    Coordinates are in meters, exact to a millimeter: spreadsheet programs drop later digits.
    """

    device: int
    floor: int
    x: float
    y: float
    since: int
    until: int


class ImportedPoint(NamedTuple):
    """Survey point of an import. Times are Unix times in milliseconds."""

    field: str
    """Path of the point in the body, which precedes the names of its fields in errors."""
    id: int | None
    key: PointKey
    created_at: int
    levels: dict[int, AnchorLevel] | None
    """Readings by anchor; None for those that the service has kept."""


class SurveyTime(NamedTuple):
    """Device and time range of a new survey point."""

    device: int
    since: int
    until: int


def parse_survey_point(body: NewSurveyPoint, now: int) -> SurveyTime:
    """Parse the device and the time range of a survey point. Raise `InvalidRequest` with all faults."""
    reader = QueryReader()
    parsed = _read_survey_time(reader, body, "", now)
    reader.raise_faults()
    return parsed


def parse_survey_batch(
    records: Sequence[NewSurveyRecord], now: int, faults: list[Fault]
) -> list[ImportedPoint]:
    """Parse the points of an import. Add the faults of all points to `faults`; wrong points are left out.

    Raise `InvalidRequest` if there are no points, too many, or too many faults.
    """
    if not 1 <= len(records) <= MAX_SURVEY_POINTS:
        raise InvalidRequest([Fault("points", f"must have 1 to {MAX_SURVEY_POINTS} points")])
    points = []
    for index, record in enumerate(records):
        reader = QueryReader()
        point = _read_record(reader, record, f"points[{index}].", now)
        if reader.faults:
            faults += reader.faults
        else:
            points.append(point)
        if len(faults) > _MAX_FAULTS:
            raise_faults(faults)
    return points


def raise_faults(faults: Sequence[Fault]) -> None:
    """Raise `InvalidRequest` with the first faults in the points of an import, if there are any."""
    if len(faults) > _MAX_FAULTS:
        faults = [*faults[: _MAX_FAULTS - 1], Fault("points", "more faults follow; correct these first")]
    if faults:
        raise InvalidRequest(faults)


def _read_record(reader: QueryReader, body: NewSurveyRecord, field: str, now: int) -> ImportedPoint:
    number = reader.read(_parse_id, body.id, f"{field}id", default=None)
    parsed = _read_survey_time(reader, body, field, now)
    created_at = reader.read(parse_millis, body.created_at, f"{field}createdAt", default=now)
    _check_past(reader, created_at, f"{field}createdAt", now)
    levels = None
    if body.readings is not None:
        for name, text in (("from", body.since), ("to", body.until)):
            if text is None:
                reader.faults.append(Fault(f"{field}{name}", "is missing; readings need it"))
        levels = _read_levels(reader, body.readings, f"{field}readings")
    key = PointKey(parsed.device, body.floor, round(body.x, 3), round(body.y, 3), parsed.since, parsed.until)
    return ImportedPoint(field, number, key, created_at, levels)


def _read_survey_time(
    reader: QueryReader, body: NewSurveyPoint | NewSurveyRecord, field: str, now: int
) -> SurveyTime:
    device = reader.read(_parse_device, body.device, f"{field}device", default=0)
    until = reader.read(parse_millis, body.until, f"{field}to", default=now)
    since = reader.read(parse_millis, body.since, f"{field}from", default=until - _DEFAULT_MS)
    if not reader.faults and not 0 < until - since <= _MAX_MS:
        reader.faults.append(Fault(f"{field}from", "must be before to, by at most an hour"))
    _check_past(reader, until, f"{field}to", now)
    return SurveyTime(device, since, until)


def _check_past(reader: QueryReader, time: int, field: str, now: int) -> None:
    if time > now + _FUTURE_MS:
        reader.faults.append(Fault(field, "must not be in the future"))


def _read_levels(
    reader: QueryReader, readings: Sequence[NewSurveyReading], field: str
) -> dict[int, AnchorLevel]:
    """Return the readings of a point by anchor."""
    levels: dict[int, AnchorLevel] = {}
    if not 1 <= len(readings) <= MAX_SURVEY_READINGS:
        reader.faults.append(Fault(field, f"must have 1 to {MAX_SURVEY_READINGS} readings"))
        return levels
    for index, each in enumerate(readings):
        prefix = f"{field}[{index}]."
        anchor = reader.read(_parse_anchor, each.anchor, f"{prefix}anchor", default=None)
        if not isfinite(each.rssi) or not MIN_SURVEY_RSSI <= each.rssi <= MAX_SURVEY_RSSI:
            reader.faults.append(
                Fault(f"{prefix}rssi", f"must be from {MIN_SURVEY_RSSI} to {MAX_SURVEY_RSSI}")
            )
        if not 1 <= each.count <= MAX_SURVEY_COUNT:
            reader.faults.append(Fault(f"{prefix}count", f"must be from 1 to {MAX_SURVEY_COUNT}"))
        if anchor in levels:
            reader.faults.append(Fault(f"{prefix}anchor", f"{each.anchor} is there twice"))
        elif anchor is not None:
            levels[anchor] = AnchorLevel(each.rssi, each.count)
    return levels


def _parse_id(text: str, field: str) -> int:
    number = parse_survey_number(text)
    if number is None:
        raise MalformedInput(field, "must be survey- and 16 hex digits, as in an export")
    return number


def _parse_device(text: str, field: str) -> int:
    return mac_to_int(to_mac(parse_device_id(text, field)))


def _parse_anchor(text: str, field: str) -> int:
    return mac_to_int(parse_mac(text, field))
