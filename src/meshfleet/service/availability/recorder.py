"""Records how many devices are online, hour by hour, from the numbers that the fleet count keeps.

Nothing is counted: each look adds the time since the previous look, times the numbers of devices at that
time, to the row of its hour. Time in which the connections were not known is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.tables import availability
from meshfleet.service.devices.fleet_count import FleetCount, load_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

HOUR_MS: Final = 3_600_000

_MAX_GAP_MS: Final = 60_000
"""Milliseconds between two looks from which on the time between them counts as unknown."""

_SELECT_LAST: Final = (
    "SELECT ended_at, devices_end, online_end FROM availability WHERE hour <= ? ORDER BY hour DESC LIMIT 1"
)
_ADD: Final = (
    "UPDATE SET known_ms = availability.known_ms + excluded.known_ms,"
    " device_ms = availability.device_ms + excluded.device_ms,"
    " online_ms = availability.online_ms + excluded.online_ms, ended_at = excluded.ended_at,"
    " devices_end = excluded.devices_end, online_end = excluded.online_end"
)
_DELETE_OLD: Final = "DELETE FROM availability WHERE hour < ?"


class _Span(NamedTuple):
    """Part of an hour, in Unix milliseconds."""

    start: int
    end: int

    @property
    def hour(self) -> int:
        return self.start - self.start % HOUR_MS


class AvailabilityRecorder:
    """Adds the time since the last look to the hours of which it is part, and deletes old hours."""

    def __init__(self, retention_ms: int | None) -> None:
        """Create a recorder. None keeps the hours forever."""
        self.retention_ms = retention_ms
        self._hour: int | None = None
        """Hour of the last look."""

    def record(self, connection: Connection, now: int, *, is_known: bool) -> None:
        """Record the numbers of devices at a time. `is_known` is whether their connections are known now."""
        count = load_count(connection)
        last = bulk.query_rows(connection, _SELECT_LAST, (now,))
        rows = []
        if last and is_known and 0 <= now - last[0][0] <= _MAX_GAP_MS:
            ended_at, *before = last[0]
            rows = [_build_row(span, FleetCount(*before)) for span in _split_into_hours(ended_at, now)]
        hour = now - now % HOUR_MS
        # The numbers of now belong to the present hour, also if none of the past time does.
        rows.append((hour, 0, 0, 0, now, *count))
        for row in rows:  # one by one: no two rows of a statement may have the same hour
            bulk.upsert_rows(connection, availability, [row], on_conflict=_ADD)
        if hour != self._hour and self.retention_ms is not None:
            bulk.execute_one(connection, _DELETE_OLD, (now - self.retention_ms,))
        self._hour = hour


def _build_row(span: _Span, count: FleetCount) -> tuple[int, ...]:
    length = span.end - span.start
    return span.hour, length, length * count.devices, length * count.connected, span.end, *count


def _split_into_hours(start: int, end: int) -> Iterator[_Span]:
    while start < end:
        stop = min(end, start - start % HOUR_MS + HOUR_MS)
        yield _Span(start, stop)
        start = stop
