"""Database functions for survey points and for stored calibrations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import delete, func, insert, select, tuple_

from meshfleet.db.tables import calibration, device, site, survey_point
from meshfleet.errors import Conflict, Fault, InvalidRequest, NotFound, UnknownDevice
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.rest.sites import format_site_id
from meshfleet.rest.survey import (
    MAX_SURVEY_POINTS,
    SurveyPoint,
    SurveyReading,
    SurveyRecord,
    format_survey_id,
)
from meshfleet.service.audit import log as audit
from meshfleet.service.positions.reading_store import AnchorLevel, DeviceMinute
from meshfleet.service.sites.parameters import check_on_floor
from meshfleet.service.sites.store import begin_change, check_site_exists, generate_id, load_boxes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.service.actor import Actor
    from meshfleet.service.sites.geometry import Box

_encode = msgspec.msgpack.Encoder().encode
_decode_levels = msgspec.msgpack.Decoder(dict[int, AnchorLevel]).decode
_decode_minutes = msgspec.msgpack.Decoder(list[DeviceMinute]).decode


class SurveyPosition(NamedTuple):
    """Position in the list of survey points, which is sorted by creation time and id."""

    created_at: int
    id: int


class StoredSurveyPoint(NamedTuple):
    """Survey point with its readings."""

    device: int
    floor: int
    x: float
    y: float
    created_at: int
    levels: dict[int, AnchorLevel]


class NewPoint(NamedTuple):
    """Survey point to store. Times are Unix times in milliseconds."""

    device: int
    floor: int
    x: float
    y: float
    since: int
    until: int
    levels: dict[int, AnchorLevel]


def encode_levels(levels: Mapping[int, AnchorLevel]) -> bytes:
    """Encode the readings of a survey point for the database."""
    return _encode(levels)


def insert_point(connection: Connection, number: int, point: NewPoint, *, by: Actor, now: int) -> SurveyPoint:
    """Store a survey point of a site.

    Raise `UnknownSite`, `UnknownDevice`, `InvalidRequest` if the point is not on a floor, or `Conflict` if
    there are too many.
    """
    begin_change(connection, [number])
    check_point_on_floor(load_boxes(connection, number), point.floor, point.x, point.y)
    if connection.execute(select(device.c.id).where(device.c.id == point.device)).first() is None:
        raise UnknownDevice("device not found")
    count = select(func.count()).where(survey_point.c.site == number)
    if connection.execute(count).scalar_one() >= MAX_SURVEY_POINTS:
        raise Conflict(f"a site can have at most {MAX_SURVEY_POINTS} survey points; withdraw old ones")
    point_id = generate_id()
    values = point._asdict() | {"levels": encode_levels(point.levels)}
    connection.execute(
        insert(survey_point).values(
            id=point_id, site=number, created_at=now, created_by=by.display_name, **values
        )
    )
    audit.record_change(
        connection,
        by,
        "survey.add",
        format_site_id(number),
        now=now,
        device=to_device_id(mac_from_int(point.device)),
        floor=point.floor,
        x=point.x,
        y=point.y,
    )
    return load_point(connection, number, point_id)


def check_point_on_floor(boxes: Mapping[int, Box], floor: int, x: float, y: float) -> None:
    """Raise `InvalidRequest` with all faults if a place is not on one of the floors of a site."""
    faults: list[Fault] = []
    check_on_floor(boxes, floor, x, y, field="", faults=faults)
    if faults:
        raise InvalidRequest(faults)


def load_point(connection: Connection, number: int, point_id: int) -> SurveyPoint:
    """Load a survey point of a site. Raise `NotFound` if the site has no such point."""
    query = select(survey_point).where(survey_point.c.id == point_id, survey_point.c.site == number)
    row = connection.execute(query).first()
    if row is None:
        raise NotFound("survey point not found")
    return _to_body(row)


def list_points(
    connection: Connection, number: int, *, after: SurveyPosition | None, limit: int
) -> list[tuple[SurveyPosition, SurveyPoint]]:
    """List up to `limit` survey points of a site with their positions. Raise `UnknownSite`."""
    rows = _load_rows(connection, number, after=after, limit=limit)
    return [(SurveyPosition(row.created_at, row.id), _to_body(row)) for row in rows]


def list_records(
    connection: Connection, number: int, *, after: SurveyPosition | None, limit: int
) -> list[tuple[SurveyPosition, SurveyRecord]]:
    """List up to `limit` survey points of a site with their readings. Raise `UnknownSite`."""
    rows = _load_rows(connection, number, after=after, limit=limit)
    return [(SurveyPosition(row.created_at, row.id), _to_record(row)) for row in rows]


def _load_rows(
    connection: Connection, number: int, *, after: SurveyPosition | None, limit: int
) -> Sequence[Row[Any]]:
    check_site_exists(connection, number)
    columns = survey_point.c
    query = select(survey_point).where(columns.site == number).order_by(columns.created_at, columns.id)
    if after is not None:
        query = query.where(tuple_(columns.created_at, columns.id) > tuple_(*after))
    return connection.execute(query.limit(limit)).all()


def delete_point(connection: Connection, number: int, point_id: int, *, by: Actor, now: int) -> None:
    """Withdraw a survey point. Raise `NotFound` if the site has no such point."""
    point = load_point(connection, number, point_id)
    begin_change(connection, [number])
    connection.execute(delete(survey_point).where(survey_point.c.id == point_id))
    audit.record_change(
        connection,
        by,
        "survey.remove",
        format_site_id(number),
        now=now,
        x=point.x,
        y=point.y,
        floor=point.floor,
    )


def load_points(connection: Connection, number: int) -> list[StoredSurveyPoint]:
    """Load all survey points of a site with their readings."""
    columns = survey_point.c
    query = select(columns.device, columns.floor, columns.x, columns.y, columns.created_at, columns.levels)
    rows = connection.execute(query.where(columns.site == number))
    return [StoredSurveyPoint(*row[:5], _decode_levels(row.levels)) for row in rows]


def load_calibration(connection: Connection, number: int) -> list[DeviceMinute]:
    """Load the minutes with which a site was calibrated last."""
    query = select(calibration.c.fingerprints).where(calibration.c.site == number)
    data = connection.execute(query).scalar()
    return [] if data is None else _decode_minutes(data)


def save_calibration(
    connection: Connection, number: int, minutes: Sequence[DeviceMinute], *, now: int
) -> None:
    """Store the minutes with which a site was calibrated, unless the site has been deleted."""
    if connection.execute(select(site.c.id).where(site.c.id == number)).first() is None:
        return
    connection.execute(delete(calibration).where(calibration.c.site == number))
    connection.execute(insert(calibration).values(site=number, made_at=now, fingerprints=_encode(minutes)))


def load_products(connection: Connection, devices: Collection[int]) -> dict[int, int]:
    """Load a number for the product of each device that has reported its model."""
    products: dict[int, int] = {}
    numbers = sorted(devices)
    for start in range(0, len(numbers), _NUMBERS_PER_QUERY):
        query = select(device.c.id, device.c.model, device.c.variant).where(
            device.c.id.in_(numbers[start : start + _NUMBERS_PER_QUERY]), device.c.model != 0
        )
        products.update({row.id: row.model << 8 | row.variant for row in connection.execute(query)})
    return products


_NUMBERS_PER_QUERY: Final = 500


def _to_body(row: Row[Any]) -> SurveyPoint:
    return SurveyPoint(
        id=format_survey_id(row.id),
        device=to_device_id(mac_from_int(row.device)),
        floor=row.floor,
        x=row.x,
        y=row.y,
        since=format_millis(row.since),
        until=format_millis(row.until),
        anchors=len(_decode_levels(row.levels)),
        created_at=format_millis(row.created_at),
        created_by=row.created_by,
    )


def _to_record(row: Row[Any]) -> SurveyRecord:
    readings = [
        SurveyReading(anchor=mac_from_int(anchor), rssi=round(level.rssi, 2), count=level.count)
        for anchor, level in sorted(_decode_levels(row.levels).items())
    ]
    return SurveyRecord(
        id=format_survey_id(row.id),
        device=to_device_id(mac_from_int(row.device)),
        floor=row.floor,
        x=row.x,
        y=row.y,
        since=format_millis(row.since),
        until=format_millis(row.until),
        created_at=format_millis(row.created_at),
        readings=readings,
    )
