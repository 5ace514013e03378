"""Availability of the fleet as REST shows it, and the changes behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from sqlalchemy import select, tuple_

from meshfleet.db import bulk
from meshfleet.db.tables import connectivity, device
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.rest.availability import AvailabilityPoint, FleetConnectivityChange
from meshfleet.service.availability.recorder import HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

_SELECT_HOURS: Final = (
    "SELECT hour, known_ms, device_ms, online_ms, devices_end, online_end FROM availability"
    " WHERE hour >= ? AND hour < ? ORDER BY hour"
)
# With the conditions of their partial indexes, and integers that both databases divide without a rest.
_COUNT_ALARMS: Final = (
    "SELECT (time - ?) / ?, count(*) FROM alarm_event"
    " WHERE kind IN ('opened', 'reopened') AND time >= ? AND time < ? GROUP BY 1"
)
_COUNT_JOBS: Final = (
    "SELECT (started_at - ?) / ?, count(*) FROM job WHERE started_at >= ? AND started_at < ? GROUP BY 1"
)


class AvailabilityRange(NamedTuple):
    """Whole hours from `start` to `end`, in points of `width`; all in Unix milliseconds."""

    start: int
    end: int
    width: int

    @classmethod
    def divide(cls, since: int, until: int, *, parts: int) -> AvailabilityRange:
        """Return the hours of which a time is part, in at most so many parts of equal length."""
        start = since - since % HOUR_MS
        hours = -(-(until - start) // HOUR_MS)
        width = -(-hours // parts)
        return cls(start, start + -(-hours // width) * width * HOUR_MS, width * HOUR_MS)


class _Hour(NamedTuple):
    """Row of the table `availability`."""

    hour: int
    known_ms: int
    device_ms: int
    online_ms: int
    devices_end: int
    online_end: int


def load_availability(
    connection: Connection, times: AvailabilityRange, *, now: int
) -> list[AvailabilityPoint]:
    """Load how many devices were online. Time of which nothing is recorded is unknown."""
    hours: dict[int, list[_Hour]] = {}
    for row in bulk.query_rows(connection, _SELECT_HOURS, (times.start, times.end)):
        each = _Hour(*row)
        hours.setdefault((each.hour - times.start) // times.width, []).append(each)
    values = (times.start, times.width, times.start, times.end)
    alarms = dict(map(tuple, bulk.query_rows(connection, _COUNT_ALARMS, values)))
    jobs = dict(map(tuple, bulk.query_rows(connection, _COUNT_JOBS, values)))
    return [
        _build_point(
            start,
            min(start + times.width, max(now, start)),
            times.width,
            hours.get(number, []),
            alarms=alarms.get(number, 0),
            jobs=jobs.get(number, 0),
        )
        for number, start in enumerate(range(times.start, times.end, times.width))
    ]


def _build_point(  # noqa: PLR0913 # keyword-only after the hours
    start: int, passed: int, width: int, hours: Sequence[_Hour], *, alarms: int, jobs: int
) -> AvailabilityPoint:
    """Build a point of the time from `start`, which has lasted until `passed`."""
    known_ms = sum(each.known_ms for each in hours)
    device_ms = sum(each.device_ms for each in hours)
    last = hours[-1] if known_ms else None
    return AvailabilityPoint(
        start=format_millis(start),
        end=format_millis(start + width),
        known=round(min(1.0, known_ms / (passed - start)), 4) if passed > start else 0.0,
        online=round(sum(each.online_ms for each in hours) / device_ms, 5) if device_ms else None,
        devices=None if last is None else last.devices_end,
        offline=None if last is None else last.devices_end - last.online_end,
        alarms=alarms,
        jobs=jobs,
    )


class FleetConnectivityListing(Struct, frozen=True, kw_only=True):
    """Query of the changes of connections; a page token is valid only for an equal query."""

    since: int
    until: int


class ConnectivityPosition(NamedTuple):
    """Position in the list of changes, which begins with the newest."""

    time: int
    id: int


def list_fleet_connectivity(
    connection: Connection,
    query: FleetConnectivityListing,
    *,
    before: ConnectivityPosition | None,
    limit: int,
) -> list[tuple[ConnectivityPosition, FleetConnectivityChange]]:
    """List up to `limit` changes of the connections of all devices, the newest first."""
    columns = connectivity.c
    statement = (
        select(connectivity, device.c.name)
        .outerjoin(device, device.c.id == columns.device)
        .where(columns.time >= query.since, columns.time < query.until)
        .order_by(columns.time.desc(), columns.id.desc())
        .limit(limit)
    )
    if before is not None:
        statement = statement.where(tuple_(columns.time, columns.id) < tuple_(*before))
    return [
        (
            ConnectivityPosition(row.time, row.id),
            FleetConnectivityChange(
                device=to_device_id(mac_from_int(row.device)),
                name=row.name,
                time=format_millis(row.time),
                connected=row.connected,
                cause=row.cause,
                gateway=mac_from_int(row.gateway) if row.gateway else None,
            ),
        )
        for row in connection.execute(statement)
    ]
