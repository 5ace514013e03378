"""Database functions for the visits of devices to zones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sqlalchemy import delete, insert, or_, select, tuple_, update

from meshfleet.db.tables import device, zone, zone_visit
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.rest.positions import ZoneVisit
from meshfleet.rest.sites import Polygon
from meshfleet.service.positions.zone_presence import Stay
from meshfleet.service.sites.zones import load_zone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.positions.zone_presence import ZoneChange

_POLYGON: Final = msgspec.json.Decoder(Polygon)
_MAX_DELETED: Final = 1000
"""Maximum number of visits that are deleted in one transaction."""


class ZoneArea(NamedTuple):
    """Area of a zone."""

    zone: int
    site: int
    floor: int
    polygon: Polygon


class VisitPosition(NamedTuple):
    """Position in the list of visits to a zone, which is sorted by time of entry and id."""

    entered_at: int
    id: int


def load_areas(connection: Connection) -> list[ZoneArea]:
    """Load the areas of all zones."""
    columns = zone.c
    query = select(columns.id, columns.site, columns.floor, columns.polygon).order_by(columns.id)
    return [ZoneArea(*row[:3], _POLYGON.decode(row.polygon)) for row in connection.execute(query)]


def load_stays(connection: Connection) -> dict[Stay, int]:
    """Load the devices that are in zones, with the time of their entry."""
    columns = zone_visit.c
    query = select(columns.zone, columns.device, columns.entered_at).where(columns.left_at.is_(None))
    return {Stay(row.zone, row.device): row.entered_at for row in connection.execute(query)}


def write_changes(connection: Connection, changes: Sequence[ZoneChange]) -> list[ZoneChange]:
    """Store entries and departures. Return those that are stored.

    A change is not stored if its zone or device was deleted, and a departure not without its entry.
    """
    devices = sorted({each.stay.device for each in changes})
    zones = sorted({each.stay.zone for each in changes})
    # Locked, so that they are not deleted before the visits are committed.
    known_zones = select(zone.c.id).where(zone.c.id.in_(zones)).order_by(zone.c.id)
    known_devices = select(device.c.id).where(device.c.id.in_(devices)).order_by(device.c.id)
    existing_zones = set(connection.execute(known_zones.with_for_update(key_share=True)).scalars())
    existing = set(connection.execute(known_devices.with_for_update(key_share=True)).scalars())
    written = []
    for change in changes:
        if change.stay.zone not in existing_zones or change.stay.device not in existing:
            continue
        columns = zone_visit.c
        is_open = (
            (columns.zone == change.stay.zone)
            & (columns.device == change.stay.device)
            & columns.left_at.is_(None)
        )
        if change.left_at is not None:
            departure = update(zone_visit).where(is_open).values(left_at=change.left_at)
            if not connection.execute(departure).rowcount:
                continue
        elif connection.execute(select(columns.id).where(is_open)).first() is None:
            values = change.stay._asdict() | {"entered_at": change.entered_at, "left_at": None}
            connection.execute(insert(zone_visit).values(values))
        written.append(change)
    return written


def delete_ended_visits(connection: Connection, before: int) -> None:
    """Delete visits that ended before a Unix time in milliseconds; at most 1,000 per call."""
    columns = zone_visit.c
    ended = select(columns.id).where(columns.left_at < before).order_by(columns.left_at).limit(_MAX_DELETED)
    connection.execute(delete(zone_visit).where(columns.id.in_(ended.scalar_subquery())))


def list_visits(  # noqa: PLR0913 # keyword-only
    connection: Connection,
    site: int,
    zone_id: int,
    *,
    since: int,
    until: int,
    before: VisitPosition | None,
    limit: int,
) -> list[tuple[VisitPosition, ZoneVisit]]:
    """List up to `limit` visits to a zone that overlap a time range, the newest first.

    Raise `NotFound` if the site has no such zone.
    """
    load_zone(connection, site, zone_id)
    columns = zone_visit.c
    query = (
        select(zone_visit)
        .where(
            columns.zone == zone_id,
            columns.entered_at < until,
            or_(columns.left_at.is_(None), columns.left_at > since),
        )
        .order_by(columns.entered_at.desc(), columns.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(tuple_(columns.entered_at, columns.id) < tuple_(*before))
    return [
        (
            VisitPosition(row.entered_at, row.id),
            ZoneVisit(
                device=to_device_id(mac_from_int(row.device)),
                entered_at=format_millis(row.entered_at),
                left_at=None if row.left_at is None else format_millis(row.left_at),
                dwell_seconds=None if row.left_at is None else (row.left_at - row.entered_at) / 1000,
            ),
        )
        for row in connection.execute(query)
    ]
