"""Database functions for the places of devices, and for the geometry of sites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import asdict
from sqlalchemy import delete, insert, select

from meshfleet.db.tables import device, place, site
from meshfleet.errors import Fault, InvalidRequest, NotFound, UnknownDevice, UnknownSite
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.rest.devices import Place
from meshfleet.rest.sites import SitePlace, format_site_id
from meshfleet.service.audit import log as audit
from meshfleet.service.sites.geometry import Anchor, SiteGeometry
from meshfleet.service.sites.parameters import check_on_floor
from meshfleet.service.sites.store import begin_change, check_site_exists, load_boxes, load_floor_geometry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.protocol.ids import DeviceId
    from meshfleet.service.actor import Actor

_NUMBERS_PER_QUERY: Final = 500
"""Maximum number of devices in one query."""
_MAX_NAMED: Final = 5
"""Maximum number of devices that an error message names."""


def set_place(connection: Connection, number: int, anchor: Anchor, *, by: Actor, now: int) -> Place:
    """Set the place of a device on a site (rest-90).

    Raise `UnknownDevice`, `UnknownSite`, or `InvalidRequest` if the place is not on a floor of the site.
    """
    _set_places(connection, number, {"": anchor}, by=by, now=now)
    return load_place(connection, anchor.device)


def set_places(connection: Connection, number: int, anchors: Sequence[Anchor], *, by: Actor, now: int) -> int:
    """Set the places of devices on a site, all or none, and return their number (rest-254).

    Raise `UnknownDevice`, `UnknownSite`, or `InvalidRequest` with the faults of all places.
    """
    by_field = {f"places[{index}].": each for index, each in enumerate(anchors)}
    _set_places(connection, number, by_field, by=by, now=now)
    return len(anchors)


def delete_place(connection: Connection, number: int, *, by: Actor, now: int) -> None:
    """Remove the place of a device, which is given as the number of its MAC (rest-90).

    Raise `UnknownDevice`, or `NotFound` if the device has no place.
    """
    _lock_devices(connection, [number])
    before = load_place(connection, number)
    begin_change(connection, [_load_places(connection, [number])[number].site])
    connection.execute(delete(place).where(place.c.device == number))
    audit.record_change(connection, by, "place.remove", _to_target(number), now=now, **asdict(before))


def load_place(connection: Connection, number: int) -> Place:
    """Load the place of a device. Raise `UnknownDevice`, or `NotFound` if the device has no place."""
    found = _load_places(connection, [number]).get(number)
    if found is not None:
        return Place(site=format_site_id(found.site), floor=found.floor, x=found.x, y=found.y)
    if connection.execute(select(device.c.id).where(device.c.id == number)).first() is None:
        raise UnknownDevice(f"device {_to_target(number)} not found")
    raise NotFound(f"device {_to_target(number)} has no place")


def list_places(connection: Connection, number: int, *, after: int, limit: int) -> list[SitePlace]:
    """List up to `limit` devices with a place on a site, sorted by device, starting after `after`.

    Raise `UnknownSite` if the site does not exist.
    """
    check_site_exists(connection, number)
    query = (
        select(place, device.c.name)
        .join(device, device.c.id == place.c.device)
        .where(place.c.site == number, place.c.device > after)
        .order_by(place.c.device)
        .limit(limit)
    )
    return [
        SitePlace(
            device=_to_target(row.device),
            name=row.name,
            floor=row.floor,
            x=row.x,
            y=row.y,
            set_at=format_millis(row.set_at),
        )
        for row in connection.execute(query)
    ]


def load_site_geometry(connection: Connection, number: int) -> SiteGeometry:
    """Load the floors and anchors of a site. Raise `UnknownSite` if it does not exist."""
    revision = connection.execute(select(site.c.revision).where(site.c.id == number)).scalar()
    if revision is None:
        raise UnknownSite("site not found")
    columns = place.c
    query = select(columns.device, columns.floor, columns.x, columns.y).where(columns.site == number)
    anchors = tuple(Anchor(*row) for row in connection.execute(query.order_by(columns.device)))
    return SiteGeometry(number, revision, load_floor_geometry(connection, number), anchors)


def load_site_revisions(connection: Connection) -> dict[int, int]:
    """Load the revisions of all sites, by number of the site."""
    revisions: dict[int, int] = dict(connection.execute(select(site.c.id, site.c.revision)).all())
    return revisions


def load_device_names(connection: Connection, numbers: Sequence[int]) -> dict[int, str]:
    """Load the names of devices. Devices that are not in the registry are left out."""
    names: dict[int, str] = {}
    for start in range(0, len(numbers), _NUMBERS_PER_QUERY):
        chunk = numbers[start : start + _NUMBERS_PER_QUERY]
        names.update(
            connection.execute(select(device.c.id, device.c.name).where(device.c.id.in_(chunk))).all()
        )
    return names


def load_anchor_sites(connection: Connection) -> dict[int, int]:
    """Load the number of the site of every device with a place."""
    sites: dict[int, int] = dict(connection.execute(select(place.c.device, place.c.site)).all())
    return sites


class _StoredPlace(NamedTuple):
    """Place of a device, as in the database."""

    site: int
    floor: int
    x: float
    y: float


def _set_places(
    connection: Connection, number: int, anchors: Mapping[str, Anchor], *, by: Actor, now: int
) -> None:
    """Set places of devices. The keys of `anchors` precede the names of fields in errors.

    A place that does not change keeps its time, and is not recorded in the audit log.
    """
    devices = sorted(each.device for each in anchors.values())
    _lock_devices(connection, devices)
    before = _load_places(connection, devices)
    begin_change(connection, {number, *(each.site for each in before.values())})
    _check_on_floors(connection, number, anchors)
    after = {each.device: _StoredPlace(number, each.floor, each.x, each.y) for each in anchors.values()}
    changed = [each for each in devices if after[each] != before.get(each)]
    if not changed:
        return
    connection.execute(delete(place).where(place.c.device.in_(changed)))
    rows = [{"device": each, **after[each]._asdict(), "set_at": now} for each in changed]
    connection.execute(insert(place), rows)
    details = [
        (_to_target(each), {**after[each]._asdict(), "site": format_site_id(number)}) for each in changed
    ]
    audit.record_details(connection, by, "place.set", details, now=now)


def _lock_devices(connection: Connection, devices: Sequence[int]) -> None:
    """Lock devices until the transaction ends, so that no other changes their places or deletes them.

    Raise `UnknownDevice` with the first devices that do not exist.
    """
    query = select(device.c.id).where(device.c.id.in_(devices)).order_by(device.c.id)
    existing = set(connection.execute(query.with_for_update(key_share=True)).scalars())
    missing = [_to_target(each) for each in devices if each not in existing]
    if missing:
        more = f" and {len(missing) - _MAX_NAMED} others" if len(missing) > _MAX_NAMED else ""
        raise UnknownDevice(f"device not found: {', '.join(missing[:_MAX_NAMED])}{more}")


def _load_places(connection: Connection, devices: Sequence[int]) -> dict[int, _StoredPlace]:
    """Load the places of devices, by device. Leave out devices without a place."""
    columns = place.c
    query = select(columns.device, columns.site, columns.floor, columns.x, columns.y)
    rows = connection.execute(query.where(columns.device.in_(devices)))
    return {number: _StoredPlace(*values) for number, *values in rows}


def _check_on_floors(connection: Connection, number: int, anchors: Mapping[str, Anchor]) -> None:
    """Raise `InvalidRequest` with all places that are not on a floor of the site."""
    boxes = load_boxes(connection, number)
    faults: list[Fault] = []
    for prefix, anchor in anchors.items():
        check_on_floor(boxes, anchor.floor, anchor.x, anchor.y, field=prefix, faults=faults)
    if faults:
        raise InvalidRequest(faults)


def _to_target(number: int) -> DeviceId:
    """Return the device id of a MAC as a number: the target of rows in the audit log."""
    return to_device_id(mac_from_int(number))
