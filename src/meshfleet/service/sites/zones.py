"""Database functions for zones: create, list, change and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from meshfleet.db.database import is_duplicate_error
from meshfleet.db.tables import site, zone
from meshfleet.errors import Conflict, Fault, InvalidRequest, NotFound, UnknownSite, ZoneExists
from meshfleet.rest.sites import Polygon, Zone, format_site_id, format_zone_id
from meshfleet.service.audit import log as audit
from meshfleet.service.sites.parameters import check_inside
from meshfleet.service.sites.store import check_site_exists, generate_id, load_boxes

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from meshfleet.service.actor import Actor
    from meshfleet.service.sites.parameters import ZoneDescription

MAX_ZONES: Final = 200
"""Maximum number of zones of a site: every position is compared with all of them."""

_POLYGON: Final = msgspec.json.Decoder(Polygon)


def insert_zone(connection: Connection, number: int, new: ZoneDescription, *, by: Actor, now: int) -> Zone:
    """Create a zone on a site (rest-255).

    Raise `UnknownSite`, `ZoneExists` for a second zone of this name, `InvalidRequest` if the zone is not on a
    floor, or `Conflict` if there are too many.
    """
    _lock_site(connection, number)
    if connection.execute(select(func.count()).where(zone.c.site == number)).scalar_one() >= MAX_ZONES:
        raise Conflict(f"a site can have at most {MAX_ZONES} zones")
    _check_on_floor(connection, number, new)
    zone_id = generate_id()
    _write(connection, insert(zone).values(id=zone_id, site=number, **_build_columns(new)), new)
    _audit_change(connection, "create", number, zone_id, by=by, now=now, name=new.name, floor=new.floor)
    return load_zone(connection, number, zone_id)


def list_zones(connection: Connection, number: int, *, after: str, limit: int) -> list[Zone]:
    """List up to `limit` zones of a site by name, starting after the comparable name `after`.

    Raise `UnknownSite` if the site does not exist.
    """
    check_site_exists(connection, number)
    query = select(zone).where(zone.c.site == number, zone.c.name_key > after)
    return [_build_zone(row) for row in connection.execute(query.order_by(zone.c.name_key).limit(limit))]


def load_zone(connection: Connection, number: int, zone_id: int) -> Zone:
    """Load a zone of a site. Raise `NotFound` if the site has no such zone."""
    row = connection.execute(select(zone).where(zone.c.id == zone_id, zone.c.site == number)).first()
    if row is None:
        raise NotFound("zone not found")
    return _build_zone(row)


def replace_zone(  # noqa: PLR0913 # the last two are keyword-only
    connection: Connection, number: int, zone_id: int, new: ZoneDescription, *, by: Actor, now: int
) -> Zone:
    """Change the name, floor and area of a zone. Raise the errors of `insert_zone` and `load_zone`."""
    _lock_site(connection, number)
    before = load_zone(connection, number, zone_id)
    _check_on_floor(connection, number, new)
    _write(connection, update(zone).where(zone.c.id == zone_id).values(_build_columns(new)), new)
    renamed = {} if before.name == new.name else {"before": before.name}
    _audit_change(
        connection, "change", number, zone_id, by=by, now=now, name=new.name, floor=new.floor, **renamed
    )
    return load_zone(connection, number, zone_id)


def delete_zone(connection: Connection, number: int, zone_id: int, *, by: Actor, now: int) -> None:
    """Delete a zone of a site. Raise `NotFound` if the site has no such zone."""
    _lock_site(connection, number)
    before = load_zone(connection, number, zone_id)
    connection.execute(delete(zone).where(zone.c.id == zone_id))
    _audit_change(connection, "delete", number, zone_id, by=by, now=now, name=before.name)


def _lock_site(connection: Connection, number: int) -> None:
    """Lock a site until the transaction ends: its floors stay, and its zones are counted correctly."""
    query = select(site.c.id).where(site.c.id == number).with_for_update()
    if connection.execute(query).first() is None:
        raise UnknownSite("site not found")


def _check_on_floor(connection: Connection, number: int, new: ZoneDescription) -> None:
    """Raise `InvalidRequest` if a zone is not on a floor of the site."""
    boxes = load_boxes(connection, number)
    faults: list[Fault] = []
    if new.floor not in boxes:
        known = ", ".join(map(str, sorted(boxes)))
        faults.append(Fault("floor", f"the site has no floor {new.floor}, but {known}"))
    else:
        check_inside(new.polygon, boxes[new.floor], "polygon", faults)
    if faults:
        raise InvalidRequest(faults)


def _write(connection: Connection, statement: Any, new: ZoneDescription) -> None:
    """Insert or update a zone. Raise `ZoneExists` if another zone of the site has its name."""
    try:
        connection.execute(statement)
    except IntegrityError as exc:
        if not is_duplicate_error(exc):
            raise
        raise ZoneExists(f"the site has another zone {new.name!r}") from None


def _build_columns(new: ZoneDescription) -> dict[str, Any]:
    return {
        "floor": new.floor,
        "name": new.name,
        "name_key": new.name_key,
        "polygon": msgspec.json.encode(new.polygon).decode(),
    }


def _build_zone(row: Row[Any]) -> Zone:
    return Zone(
        id=format_zone_id(row.id), name=row.name, floor=row.floor, polygon=_POLYGON.decode(row.polygon)
    )


def _audit_change(  # noqa: PLR0913 # the last two are keyword-only
    connection: Connection, action: str, number: int, zone_id: int, *, by: Actor, now: int, **detail: Any
) -> None:
    audit.record_change(
        connection,
        by,
        f"zone.{action}",
        format_zone_id(zone_id),
        now=now,
        site=format_site_id(number),
        **detail,
    )
