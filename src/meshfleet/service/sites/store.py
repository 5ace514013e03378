"""Database functions for sites and their floors: create, list, change and delete."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET
from sqlalchemy import delete, func, insert, select, tuple_, update

from meshfleet.db.tables import floor, place, plan, site, survey_point, zone
from meshfleet.errors import UnknownSite
from meshfleet.rest.sites import Floor, Polygon, Site, format_site_id
from meshfleet.service.audit import log as audit
from meshfleet.service.sites.floor_use import check_floors_free
from meshfleet.service.sites.geometry import Box, FloorGeometry
from meshfleet.service.sites.plans import build_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.rest.sites import Plan
    from meshfleet.service.actor import Actor
    from meshfleet.service.sites.parameters import NamedFloor, SiteDescription

_ID_BITS: Final = 63
"""Random bits of the id of a site or zone: as many as both databases can store in one number."""

POLYGONS: Final = msgspec.json.Decoder(tuple[Polygon, ...])


class SitePosition(NamedTuple):
    """Position in the list of sites, which is sorted by creation time and id."""

    created_at: int
    id: int


class SiteSlice(NamedTuple):
    """Page of the list of sites."""

    sites: list[Site]
    end: SitePosition | None
    """Position of the last site of the page; None if no sites follow."""


def generate_id() -> int:
    """Generate the id of a site or zone: a random number that no client can guess or has seen before."""
    return secrets.randbits(_ID_BITS)


def insert_site(connection: Connection, new: SiteDescription, *, by: Actor, now: int) -> Site:
    """Create a site (rest-248)."""
    number = generate_id()
    connection.execute(insert(site).values(id=number, name=new.name, created_at=now, revision=1))
    _insert_floors(connection, number, new.floors)
    audit.record_change(
        connection, by, "site.create", format_site_id(number), now=now, name=new.name, floors=len(new.floors)
    )
    return load_site(connection, number)


def list_sites(connection: Connection, *, after: SitePosition | None, limit: int) -> SiteSlice:
    """Load up to `limit` sites in the order of their creation, without the walkable areas of floors.

    These areas can be large: a page of sites would not fit into memory.
    """
    query = select(site).order_by(site.c.created_at, site.c.id).limit(limit + 1)
    if after is not None:
        query = query.where(tuple_(site.c.created_at, site.c.id) > tuple_(*after))
    rows = connection.execute(query).all()
    shown = rows[:limit]
    floors = _load_floors(connection, [row.id for row in shown], with_walkable=False)
    sites = [Site(id=format_site_id(row.id), name=row.name, floors=floors.get(row.id, [])) for row in shown]
    end = SitePosition(shown[-1].created_at, shown[-1].id) if len(rows) > limit else None
    return SiteSlice(sites, end)


def load_site(connection: Connection, number: int) -> Site:
    """Load a site with its floors. Raise `UnknownSite` if it does not exist."""
    name = connection.execute(select(site.c.name).where(site.c.id == number)).scalar()
    if name is None:
        raise UnknownSite("site not found")
    floors = _load_floors(connection, [number], with_walkable=True)
    return Site(id=format_site_id(number), name=name, floors=floors.get(number, []))


def replace_site(connection: Connection, number: int, new: SiteDescription, *, by: Actor, now: int) -> Site:
    """Change the name and the floors of a site. Floors that stay keep their plans (rest-250).

    Raise `FloorInUse` if a floor with places, zones or survey points would be removed, or if some would be
    outside.
    """
    begin_change(connection, [number])
    before = load_site(connection, number)
    kept = {each.geometry.floor: each for each in new.floors}
    existing = {each.floor for each in before.floors}
    check_floors_free(
        connection,
        number,
        {each: kept[each].geometry.box if each in kept else None for each in existing},
    )
    connection.execute(update(site).where(site.c.id == number).values(name=new.name))
    connection.execute(delete(floor).where(floor.c.site == number, floor.c.floor.not_in(kept)))
    for each in new.floors:
        if each.geometry.floor in existing:
            is_floor = (floor.c.site == number) & (floor.c.floor == each.geometry.floor)
            connection.execute(update(floor).where(is_floor).values(_build_columns(each)))
    _insert_floors(connection, number, [each for each in new.floors if each.geometry.floor not in existing])
    renamed = {} if new.name == before.name else {"before": before.name}
    audit.record_change(
        connection,
        by,
        "site.change",
        format_site_id(number),
        now=now,
        name=new.name,
        floors=len(new.floors),
        **renamed,
    )
    return load_site(connection, number)


def delete_site(connection: Connection, number: int, *, by: Actor, now: int) -> None:
    """Delete a site with everything on it: floors, plans, places, zones with visits, and survey points.

    The audit log has how many there were (rest-250).
    """
    begin_change(connection, [number])
    name = connection.execute(select(site.c.name).where(site.c.id == number)).scalar()
    counts = {
        key: connection.execute(select(func.count()).where(table.c.site == number)).scalar()
        for key, table in (("places", place), ("zones", zone), ("surveyPoints", survey_point))
    }
    connection.execute(delete(site).where(site.c.id == number))
    audit.record_change(connection, by, "site.delete", format_site_id(number), now=now, name=name, **counts)


def begin_change(connection: Connection, sites: Iterable[int]) -> None:
    """Lock sites until the transaction ends, and increase their revisions.

    Sites are locked in ascending order, so that two changes do not wait for each other. Raise `UnknownSite`
    if one of the sites does not exist.
    """
    for number in sorted(set(sites)):
        change = update(site).where(site.c.id == number).values(revision=site.c.revision + 1)
        if not connection.execute(change).rowcount:
            raise UnknownSite("site not found")


def check_site_exists(connection: Connection, number: int) -> None:
    """Raise `UnknownSite` if a site does not exist."""
    if connection.execute(select(site.c.id).where(site.c.id == number)).first() is None:
        raise UnknownSite("site not found")


def load_floor_geometry(connection: Connection, number: int) -> tuple[FloorGeometry, ...]:
    """Load the rectangles and walkable areas of the floors of a site, in ascending order."""
    query = select(floor).where(floor.c.site == number).order_by(floor.c.floor)
    return tuple(
        FloorGeometry(
            row.floor,
            Box(row.min_x, row.min_y, row.max_x, row.max_y),
            None if row.walkable is None else POLYGONS.decode(row.walkable),
        )
        for row in connection.execute(query)
    )


def load_boxes(connection: Connection, number: int) -> dict[int, Box]:
    """Load the rectangles of the floors of a site, by number of the floor."""
    columns = floor.c
    query = select(columns.floor, columns.min_x, columns.min_y, columns.max_x, columns.max_y)
    return {each: Box(*edges) for each, *edges in connection.execute(query.where(columns.site == number))}


def _load_floors(
    connection: Connection, sites: Sequence[int], *, with_walkable: bool
) -> dict[int, list[Floor]]:
    """Load the floors of sites with their plans, by number of the site and in ascending order."""
    plans = {
        (row.site, row.floor): build_plan(row)
        for row in connection.execute(select(plan).where(plan.c.site.in_(sites)))
    }
    columns = [each for each in floor.columns if with_walkable or each.name != "walkable"]
    query = select(*columns).where(floor.c.site.in_(sites)).order_by(floor.c.site, floor.c.floor)
    floors: dict[int, list[Floor]] = {}
    for row in connection.execute(query):
        found = _build_floor(row, plans.get((row.site, row.floor)), with_walkable=with_walkable)
        floors.setdefault(row.site, []).append(found)
    return floors


def _build_floor(row: Row[Any], floor_plan: Plan | None, *, with_walkable: bool) -> Floor:
    walkable = row.walkable if with_walkable else None
    return Floor(
        floor=row.floor,
        name=row.name,
        min_x=row.min_x,
        min_y=row.min_y,
        max_x=row.max_x,
        max_y=row.max_y,
        walkable=(None if walkable is None else POLYGONS.decode(walkable)) if with_walkable else UNSET,
        plan=floor_plan,
    )


def _insert_floors(connection: Connection, number: int, floors: Sequence[NamedFloor]) -> None:
    if floors:
        rows = [{"site": number, "floor": each.geometry.floor, **_build_columns(each)} for each in floors]
        connection.execute(insert(floor), rows)


def _build_columns(described: NamedFloor) -> dict[str, Any]:
    """Return the columns of a floor that users can change."""
    walkable = described.geometry.walkable
    return {
        "name": described.name,
        **described.geometry.box._asdict(),
        "walkable": None if walkable is None else msgspec.json.encode(walkable).decode(),
    }
