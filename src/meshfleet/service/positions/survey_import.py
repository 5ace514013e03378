"""Imports survey points into a site, all of them or none (rest-268).

A point that the site has already is left as it is. So an import can be repeated, and a file can be imported
that was exported from the same site.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import insert, select

from meshfleet.db.tables import place, survey_point
from meshfleet.errors import Conflict, Fault
from meshfleet.rest.sites import format_site_id
from meshfleet.rest.survey import MAX_SURVEY_POINTS
from meshfleet.service.audit import log as audit
from meshfleet.service.positions.survey_parameters import NOT_RECEIVED, PointKey, raise_faults
from meshfleet.service.positions.survey_store import encode_levels
from meshfleet.service.sites.parameters import check_on_floor
from meshfleet.service.sites.store import begin_change, check_site_exists, generate_id, load_boxes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.actor import Actor
    from meshfleet.service.positions.positions import PositionFinder
    from meshfleet.service.positions.survey_parameters import ImportedPoint
    from meshfleet.service.sites.geometry import Box


class SurveyedSite(NamedTuple):
    """Floors, anchors and survey points of a site, which imported points are compared with."""

    boxes: Mapping[int, Box]
    """Rectangles of the floors by number of the floor."""
    anchors: frozenset[int]
    keys_by_id: Mapping[int, PointKey]
    """Survey points of the site by id."""


def load_surveyed_site(connection: Connection, number: int) -> SurveyedSite:
    """Load the floors, anchors and survey points of a site. Raise `UnknownSite` if it does not exist."""
    check_site_exists(connection, number)
    columns = survey_point.c
    query = select(
        *(columns.id, columns.device, columns.floor, columns.x, columns.y, columns.since, columns.until)
    )
    return SurveyedSite(
        load_boxes(connection, number),
        frozenset(connection.execute(select(place.c.device).where(place.c.site == number)).scalars()),
        {
            row.id: PointKey(row.device, row.floor, round(row.x, 3), round(row.y, 3), row.since, row.until)
            for row in connection.execute(query.where(columns.site == number))
        },
    )


def select_new_points(
    points: Sequence[ImportedPoint], site: SurveyedSite, faults: list[Fault]
) -> list[ImportedPoint]:
    """Return the points that a site does not have yet. Add the faults of all of them to `faults`."""
    keys_by_id = dict(site.keys_by_id)
    keys = set(keys_by_id.values())
    chosen = []
    for point in points:
        if point.id is not None and keys_by_id.setdefault(point.id, point.key) != point.key:
            text = "is the id of a survey point with another device, place or time; withdraw that one first"
            faults.append(Fault(f"{point.field}id", text))
        elif point.key not in keys:
            keys.add(point.key)
            chosen.append(point)
            key = point.key
            check_on_floor(site.boxes, key.floor, key.x, key.y, field=point.field, faults=faults)
            if point.levels is not None and site.anchors.isdisjoint(point.levels):
                faults.append(Fault(f"{point.field}readings", "has no device with a place on this site"))
    return chosen


async def add_kept_readings(
    points: Sequence[ImportedPoint], number: int, positions: PositionFinder, faults: list[Fault]
) -> list[ImportedPoint]:
    """Return points with the readings that the service has kept, if they have none of their own.

    Add a fault for each device that no anchor of the site has received, and leave its point out.
    """
    complete = []
    for point in points:
        if point.levels is not None:
            complete.append(point)
            continue
        window = await positions.windows.load_window(point.key.device, point.key.since, point.key.until)
        if window is None or window.site != number:
            faults.append(Fault(f"{point.field}device", NOT_RECEIVED))
        else:
            complete.append(point._replace(levels=dict(window.levels)))
    return complete


def insert_points(
    connection: Connection, number: int, points: Sequence[ImportedPoint], *, by: Actor, now: int
) -> int:
    """Store the points that a site does not have yet, and return their number.

    Raise `UnknownSite`, `InvalidRequest` if one is wrong, or `Conflict` if there would be too many.
    """
    begin_change(connection, [number])
    site = load_surveyed_site(connection, number)
    faults: list[Fault] = []
    chosen = select_new_points(points, site, faults)
    raise_faults(faults)
    if len(site.keys_by_id) + len(chosen) > MAX_SURVEY_POINTS:
        raise Conflict(
            f"a site can have at most {MAX_SURVEY_POINTS} survey points; it has {len(site.keys_by_id)}, and"
            f" {len(chosen)} are new; withdraw old ones"
        )
    rows = [
        {
            "id": generate_id(),
            "site": number,
            **point.key._asdict(),
            "levels": encode_levels(point.levels or {}),
            "created_at": point.created_at,
            "created_by": by.display_name,
        }
        for point in chosen
    ]
    if rows:
        connection.execute(insert(survey_point), rows)
        audit.record_change(connection, by, "survey.import", format_site_id(number), now=now, added=len(rows))
    return len(rows)
