"""Survey points as CSV: a line per point, with the readings of all anchors in one cell (rest-267)."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

from meshfleet.csv_format import encode_csv
from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedInput
from meshfleet.rest.survey import NewSurveyReading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.rest.survey import SurveyReading, SurveyRecord

SURVEY_COLUMNS: Final = ("id", "device", "floor", "x", "y", "from", "to", "createdAt", "readings")


def encode_survey_header() -> bytes:
    """Encode the line with the names of the columns."""
    return encode_csv([SURVEY_COLUMNS])


def encode_survey_rows(records: Iterable[SurveyRecord]) -> bytes:
    """Encode survey points as CSV, one line per point."""
    return encode_csv(map(_to_cells, records))


def parse_readings(text: str, field: str) -> tuple[NewSurveyReading, ...]:
    """Parse a cell with readings: `anchor:rssi:count`, separated by spaces. Raise `MalformedInput`."""
    return tuple(_parse_reading(each, field) for each in text.split())


def _parse_reading(text: str, field: str) -> NewSurveyReading:
    try:
        anchor, rssi, count = text.split(":")
        reading = NewSurveyReading(anchor=anchor.lower(), rssi=float(rssi), count=int(count))
    except ValueError:
        reading = None
    if reading is None or not isfinite(reading.rssi):
        reason = f"{quote_input(text)} is not anchor:rssi:count, such as ca5bda1a0002:-61.5:12"
        raise MalformedInput(field, reason)
    return reading


def _to_cells(record: SurveyRecord) -> tuple[object, ...]:
    return (
        *(record.id, record.device, record.floor, record.x, record.y),
        *(record.since, record.until, record.created_at),
        " ".join(_format_readings(record.readings)),
    )


def _format_readings(readings: Iterable[SurveyReading]) -> Iterator[str]:
    for each in readings:
        yield f"{each.anchor}:{each.rssi:g}:{each.count}"
