"""Database functions for labels and their devices: create, attach, detach, delete and list labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from meshfleet.db.tables import device, device_label, label
from meshfleet.errors import Conflict, NotFound
from meshfleet.protocol.ids import mac_from_int, mac_to_int, to_device_id
from meshfleet.rest.devices import Label
from meshfleet.service.audit import log as audit
from meshfleet.service.devices import listing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlalchemy import Connection, Row, Table

    from meshfleet.protocol.ids import Mac
    from meshfleet.rest.devices import Device
    from meshfleet.service.actor import Actor

_MAX_ATTEMPTS: Final = 3
"""Maximum attempts to create a label that other transactions keep deleting."""


def add_label(connection: Connection, text: str, devices: Collection[Mac], *, by: Actor, now: int) -> Label:
    """Create a label unless it exists, and attach the label to devices (rest-58 to rest-60).

    Raise `NotFound` if one of the devices does not exist.
    """
    label_ids = add_labels(connection, {text: devices}, by=by, now=now)
    return _load_label(connection, label_ids[text])


def add_labels(
    connection: Connection, devices_by_label: Mapping[str, Collection[Mac]], *, by: Actor, now: int
) -> dict[str, int]:
    """Create the labels that do not exist, attach each label to its devices, and return the label ids.

    The number of statements does not depend on that of labels: meanwhile no report can be committed. Raise
    `NotFound` if one of the devices does not exist.
    """
    label_ids = _lock_or_insert_labels(connection, devices_by_label, by=by, now=now)
    _lock_devices(connection, {mac for devices in devices_by_label.values() for mac in devices})
    attachments = [(label_ids[text], mac) for text, devices in devices_by_label.items() for mac in devices]
    _attach_labels_to_devices(connection, attachments, label_ids, by=by, now=now)
    return label_ids


def attach_label(connection: Connection, text: str, mac: Mac, *, by: Actor, now: int) -> Device:
    """Attach a label to a device. Create the label if it does not exist (rest-62)."""
    _lock_devices(connection, [mac])
    label_ids = _lock_or_insert_labels(connection, [text], by=by, now=now)
    _attach_labels_to_devices(connection, [(label_ids[text], mac)], label_ids, by=by, now=now)
    return listing.load_device(connection, mac)


def detach_label(connection: Connection, text: str, mac: Mac, *, by: Actor, now: int) -> Device:
    """Remove a label from a device (rest-63, rest-64). Raise `NotFound` if the label is not attached."""
    _lock_devices(connection, [mac])
    label_id = select(label.c.id).where(label.c.text == text).scalar_subquery()
    is_attached = (device_label.c.label == label_id) & (device_label.c.device == mac_to_int(mac))
    if not connection.execute(delete(device_label).where(is_attached)).rowcount:
        raise NotFound("the device does not have this label")
    audit.record_change(connection, by, "device.unlabel", to_device_id(mac), now=now, label=text)
    return listing.load_device(connection, mac)


def delete_label(connection: Connection, text: str, *, by: Actor, now: int) -> None:
    """Delete a label and remove it from all devices (rest-65). Raise `NotFound` if the label is unknown."""
    label_id = connection.execute(select(label.c.id).where(label.c.text == text).with_for_update()).scalar()
    if label_id is None:
        raise NotFound("label not found")
    count = _load_label(connection, label_id).device_count
    connection.execute(delete(label).where(label.c.id == label_id))
    audit.record_change(connection, by, "label.remove", text, now=now, devices=count)


def list_labels(connection: Connection, *, after: str, limit: int) -> list[Label]:
    """Return up to `limit` labels in alphabetical order, starting after the label `after` (rest-61)."""
    query = _SELECT_LABELS.where(label.c.text > after).order_by(label.c.text).limit(limit)
    return [Label(label=text, device_count=count) for text, count in connection.execute(query)]


_SELECT_LABELS: Final = select(
    label.c.text,
    select(func.count())
    .select_from(device_label)
    .where(device_label.c.label == label.c.id)
    .scalar_subquery(),
)


def _load_label(connection: Connection, label_id: int) -> Label:
    text, count = connection.execute(_SELECT_LABELS.where(label.c.id == label_id)).one()
    return Label(label=text, device_count=count)


def _lock_or_insert_labels(
    connection: Connection, texts: Iterable[str], *, by: Actor, now: int
) -> dict[str, int]:
    """Return the ids of labels. Create the labels that do not exist.

    Lock the labels, so that they cannot be deleted during this transaction. Raise `Conflict` if other
    transactions keep deleting one of them.
    """
    label_ids: dict[str, int] = {}
    missing = set(texts)
    for _ in range(_MAX_ATTEMPTS):
        query = select(label.c.text, label.c.id).where(label.c.text.in_(missing)).order_by(label.c.text)
        found = connection.execute(query.with_for_update(read=True, key_share=True))
        label_ids |= {text: label_id for text, label_id in found}  # noqa: C416 # rows
        missing -= label_ids.keys()
        if not missing:
            return label_ids
        rows = [{"text": text, "created_at": now} for text in sorted(missing)]
        created = [each.text for each in _insert_missing_rows(connection, label, rows)]
        audit.record_changes(connection, by, "label.create", created, now=now)
    raise Conflict("the label is being removed by other requests; try again")


def _attach_labels_to_devices(
    connection: Connection,
    attachments: Iterable[tuple[int, Mac]],
    label_ids: Mapping[str, int],
    *,
    by: Actor,
    now: int,
) -> None:
    """Attach labels, by id, to the devices that do not have them, and audit each new attachment."""
    rows = [
        {"label": label_id, "device": device_id}
        for label_id, device_id in sorted({(label_id, mac_to_int(mac)) for label_id, mac in attachments})
    ]
    texts = {label_id: text for text, label_id in label_ids.items()}
    details = [
        (to_device_id(mac_from_int(each.device)), {"label": texts[each.label]})
        for each in _insert_missing_rows(connection, device_label, rows)
    ]
    audit.record_details(connection, by, "device.label", details, now=now)


def _insert_missing_rows(
    connection: Connection, table: Table, rows: Sequence[dict[str, Any]]
) -> Sequence[Row[Any]]:
    """Insert the rows that do not exist yet, and return the inserted rows."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    query = dialect.insert(table).on_conflict_do_nothing().returning(*table.columns)
    return connection.execute(query, rows).all() if rows else ()


def _lock_devices(connection: Connection, devices: Collection[Mac]) -> None:
    """Lock devices, so that they cannot be removed during this transaction.

    Raise `NotFound` if one of the devices does not exist.
    """
    device_ids = sorted({mac_to_int(mac) for mac in devices})
    query = select(device.c.id).where(device.c.id.in_(device_ids)).order_by(device.c.id)
    existing = set(connection.execute(query.with_for_update(read=True, key_share=True)).scalars())
    if missing := [each for each in device_ids if each not in existing]:
        raise listing.build_device_not_found(mac_from_int(missing[0]))
