"""The tables of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from meshfleet.db.tables import device, device_label, label
from meshfleet.errors import Conflict, NotFound
from meshfleet.protocol.ids import mac_from_int, mac_to_int, to_device_id
from meshfleet.rest import Label
from meshfleet.service.audit import log as audit
from meshfleet.service.devices import listing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection, Row, Table

    from meshfleet.protocol.ids import Mac
    from meshfleet.rest import Device
    from meshfleet.service.actor import Actor

_MAX_ATTEMPTS: Final = 3
"""For a label that is removed by somebody else whenever we have just made it."""


def add_label(connection: Connection, text: str, devices: Collection[Mac], *, by: Actor, now: int) -> Label:
    """Make a label, if it is new, and put it on devices, all of which must be known (rest-58 to rest-60)."""
    number = _lock_or_insert_label(connection, text, by=by, now=now)
    _lock_devices(connection, devices)
    _attach_to_devices(connection, number, text, devices, by=by, now=now)
    return _load_label(connection, number)


def attach_label(connection: Connection, text: str, mac: Mac, *, by: Actor, now: int) -> Device:
    """Put a label on a device; it is made if it is new (rest-62)."""
    _lock_devices(connection, [mac])
    _attach_to_devices(
        connection, _lock_or_insert_label(connection, text, by=by, now=now), text, [mac], by=by, now=now
    )
    return listing.load_device(connection, mac)


def detach_label(connection: Connection, text: str, mac: Mac, *, by: Actor, now: int) -> Device:
    """Take a label off a device (rest-63, rest-64)."""
    _lock_devices(connection, [mac])
    number = select(label.c.id).where(label.c.text == text).scalar_subquery()
    mine = (device_label.c.label == number) & (device_label.c.device == mac_to_int(mac))
    if not connection.execute(delete(device_label).where(mine)).rowcount:
        raise NotFound("the device does not have this label")
    audit.record_change(connection, by, "device.unlabel", to_device_id(mac), now=now, label=text)
    return listing.load_device(connection, mac)


def delete_label(connection: Connection, text: str, *, by: Actor, now: int) -> None:
    """Remove a label from everything (rest-65)."""
    found = connection.execute(select(label.c.id).where(label.c.text == text).with_for_update()).scalar()
    if found is None:
        raise NotFound("there is no such label")
    count = _load_label(connection, found).device_count
    connection.execute(delete(label).where(label.c.id == found))
    audit.record_change(connection, by, "label.remove", text, now=now, devices=count)


def list_labels(connection: Connection, *, after: str, limit: int) -> list[Label]:
    """Some of them, in the order of their letters, behind that one (rest-61)."""
    query = _SELECT_LABELS.where(label.c.text > after).order_by(label.c.text).limit(limit)
    return [Label(label=text, device_count=count) for text, count in connection.execute(query)]


_SELECT_LABELS: Final = select(
    label.c.text,
    select(func.count())
    .select_from(device_label)
    .where(device_label.c.label == label.c.id)
    .scalar_subquery(),
)


def _load_label(connection: Connection, number: int) -> Label:
    text, count = connection.execute(_SELECT_LABELS.where(label.c.id == number)).one()
    return Label(label=text, device_count=count)


def _lock_or_insert_label(connection: Connection, text: str, *, by: Actor, now: int) -> int:
    """The number of a label, which stays until we are done."""
    wanted = select(label.c.id).where(label.c.text == text).with_for_update(read=True, key_share=True)
    for _ in range(_MAX_ATTEMPTS):
        found: int | None = connection.execute(wanted).scalar()
        if found is not None:
            return found
        if _insert_new(connection, label, [{"text": text, "created_at": now}]):
            audit.record_change(connection, by, "label.create", text, now=now)
    raise Conflict("somebody keeps removing this label")


def _attach_to_devices(  # noqa: PLR0913 # by name
    connection: Connection, number: int, text: str, devices: Collection[Mac], *, by: Actor, now: int
) -> None:
    rows = [{"label": number, "device": mac_to_int(mac)} for mac in sorted(set(devices))]
    new = _insert_new(connection, device_label, rows) if rows else []
    targets = [to_device_id(mac_from_int(each.device)) for each in new]
    audit.record_changes(connection, by, "device.label", targets, now=now, label=text)


def _insert_new(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> Sequence[Row[Any]]:
    """Add rows, and tell which of them were not there already."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    query = dialect.insert(table).values(rows).on_conflict_do_nothing().returning(*table.columns)
    return connection.execute(query).all()


def _lock_devices(connection: Connection, devices: Collection[Mac]) -> None:
    """See to it that they are known, and stay so until we are done."""
    numbers = sorted({mac_to_int(mac) for mac in devices})
    query = select(device.c.id).where(device.c.id.in_(numbers)).order_by(device.c.id)
    known = set(connection.execute(query.with_for_update(read=True, key_share=True)).scalars())
    if unknown := [number for number in numbers if number not in known]:
        raise listing.device_not_found(mac_from_int(unknown[0]))
