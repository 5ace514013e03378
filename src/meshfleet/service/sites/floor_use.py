"""Finds what is on floors: a floor is not removed or made smaller while something on it would be lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from sqlalchemy import or_, select

from meshfleet.db.tables import place, survey_point, zone
from meshfleet.errors import FloorInUse, quote_name
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.rest.sites import PLACE_SLACK, Polygon
from meshfleet.rest.survey import format_survey_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Column, Connection

    from meshfleet.service.sites.geometry import Box

_MAX_NAMED: Final = 5
"""Maximum number of devices, zones or survey points of a floor that an error message names."""

_POLYGON: Final = msgspec.json.Decoder(Polygon)


def check_floors_free(connection: Connection, number: int, floors: Mapping[int, Box | None]) -> None:
    """Raise `FloorInUse` if something on a floor would be lost; the error counts and names it (rest-250).

    `floors` has the new rectangle of each floor of a site, or None for a floor to remove. The rectangle may
    leave places, zones and survey points outside by at most `PLACE_SLACK`.
    """
    problems = [
        f"floor {floor} {'is in use by' if box is None else 'would become too small for'} {lost}"
        for floor, box in sorted(floors.items())
        if (lost := _describe_lost(connection, number, floor, box))
    ]
    if problems:
        raise FloorInUse(f"{'; '.join(problems)}; move or remove them first")


def _describe_lost(connection: Connection, number: int, floor: int, box: Box | None) -> str:
    """Return how many places, zones and survey points are on a floor and not in a rectangle, and their names.

    Return an empty string if there are none.
    """
    devices = _list_outside(connection, place.c.device, number, floor, box)
    points = _list_outside(connection, survey_point.c.id, number, floor, box)
    names: dict[str, Sequence[str]] = {
        "places": [to_device_id(mac_from_int(each)) for each in devices],
        "zones": _list_zones_outside(connection, number, floor, box),
        "survey points": [format_survey_id(each) for each in points],
    }
    return ", ".join(f"{kind}: {len(each)} ({_join_names(each)})" for kind, each in names.items() if each)


def _list_outside(
    connection: Connection, column: Column[int], number: int, floor: int, box: Box | None
) -> Sequence[int]:
    """Return the ids of the places or survey points on a floor that are outside a rectangle."""
    columns = column.table.c
    query = select(column).where(columns.site == number, columns.floor == floor).order_by(column)
    if box is not None:
        query = query.where(
            or_(
                columns.x < box.min_x - PLACE_SLACK,
                columns.x > box.max_x + PLACE_SLACK,
                columns.y < box.min_y - PLACE_SLACK,
                columns.y > box.max_y + PLACE_SLACK,
            )
        )
    return connection.execute(query).scalars().all()


def _list_zones_outside(connection: Connection, number: int, floor: int, box: Box | None) -> list[str]:
    """Return the names of the zones on a floor with a corner outside a rectangle."""
    query = select(zone.c.name, zone.c.polygon).where(zone.c.site == number, zone.c.floor == floor)
    return [
        quote_name(row.name)
        for row in connection.execute(query.order_by(zone.c.name_key))
        if box is None or not all(box.contains(*corner) for corner in _POLYGON.decode(row.polygon))
    ]


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} others" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
