"""Finds the target devices of a job by ids, labels or filter; each device counts once (rest-116).

Devices are loaded page by page in short reads, so that a large fleet does not block other readers.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import UNSET, UnsetType
from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import device_label, label
from meshfleet.errors import Fault, InvalidRequest, join_field_path
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.ids import mac_to_int, parse_device_id, to_mac
from meshfleet.rest.inputs import parse_label
from meshfleet.service.devices import page_query
from meshfleet.service.devices.filter_sql import resolve_filter
from meshfleet.service.devices.model import DeviceFilter, SortOrder
from meshfleet.service.devices.parameters import parse_device_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.rest.job_requests import TargetFilter, Targets

Value = TypeVar("Value")

DEVICES_PER_PAGE: Final = 5000
"""Maximum number of devices that are read in one transaction."""

_MAX_FAULTS: Final = 20
"""Maximum number of reported faults in the device ids or in the labels of a request."""

_KNOWN_DEVICES: Final = "SELECT id FROM device WHERE id IN numbers"


async def resolve_targets(database: Database, targets: Targets) -> array[int]:
    """Return all target devices of a job as sorted integers. Raise `InvalidRequest` if there are none."""
    found = array("q")
    if targets.device_ids is not UNSET:
        found.extend(await _find_devices_by_id(database, targets.device_ids))
    for number in await database.read(_find_label_ids, () if targets.labels is UNSET else targets.labels):
        found.extend(await read_device_pages(database, _list_labeled_devices, number))
    if targets.filter is not UNSET:
        found.extend(await read_device_pages(database, _list_filtered_devices, _parse_filter(targets.filter)))
    if targets.all:
        found.extend(await read_device_pages(database, _list_filtered_devices, DeviceFilter()))
    if not found:
        raise InvalidRequest([Fault("targets", "selects no devices")])
    return array("q", sorted(set(found)))


def split_pages(numbers: array[int], size: int = DEVICES_PER_PAGE) -> Iterator[array[int]]:
    """Split an array into pages of `size` elements."""
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


async def read_device_pages(
    database: Database, read: Callable[[Connection, Value, int], Sequence[int]], criterion: Value
) -> array[int]:
    """Call `read` for one page of devices after another, and return the devices of all pages.

    `read` gets the criterion and the last device of the previous page, and returns the sorted devices of the
    next page: `DEVICES_PER_PAGE` devices, or fewer on the last page.
    """
    found = array("q")
    while True:
        page = await database.read(read, criterion, found[-1] if found else -1)
        found.extend(page)
        if len(page) < DEVICES_PER_PAGE:
            return found


async def _find_devices_by_id(database: Database, device_ids: Sequence[str]) -> array[int]:
    """Return devices by device id. Raise `InvalidRequest` if an id is malformed or not in the registry."""
    numbers, faults = array("q"), list[Fault]()
    for index, device_id in enumerate(device_ids):
        try:
            numbers.append(mac_to_int(to_mac(parse_device_id(device_id, f"targets.deviceIds[{index}]"))))
        except MalformedInput as exc:
            faults.append(Fault(exc.field, exc.reason))
    if not faults:
        known = {
            each for page in split_pages(numbers) for each in await database.read(_list_known_devices, page)
        }
        faults = [
            Fault(f"targets.deviceIds[{index}]", "device not found")
            for index, number in enumerate(numbers)
            if number not in known
        ]
    if faults:
        raise InvalidRequest(faults[:_MAX_FAULTS])
    return numbers


def _list_known_devices(connection: Connection, numbers: Sequence[int]) -> list[int]:
    """Return those of the devices that are in the registry."""
    return [row[0] for row in bulk.query_in(connection, _KNOWN_DEVICES, numbers)]


def _find_label_ids(connection: Connection, labels: Sequence[str]) -> list[int]:
    """Return the database ids of labels. Raise `InvalidRequest` if a label is malformed or unknown."""
    numbers, faults = list[int](), list[Fault]()
    for index, text in enumerate(labels):
        field = f"targets.labels[{index}]"
        try:
            found = connection.execute(
                select(label.c.id).where(label.c.text == parse_label(text, field))
            ).scalar()
        except MalformedInput as exc:
            faults.append(Fault(exc.field, exc.reason))
            continue
        if found is None:
            faults.append(Fault(field, "label not found"))
        else:
            numbers.append(found)
    if faults:
        raise InvalidRequest(faults[:_MAX_FAULTS])
    return numbers


def _list_labeled_devices(connection: Connection, label_id: int, after: int) -> Sequence[int]:
    """Return a page of devices that have a label and follow the device `after`."""
    columns = device_label.c
    query = select(columns.device).where(columns.label == label_id, columns.device > after)
    return connection.scalars(query.order_by(columns.device).limit(DEVICES_PER_PAGE)).all()


def _parse_filter(target_filter: TargetFilter) -> DeviceFilter:
    """Parse `targets.filter`, which has the same fields as the filter of the device list.

    Raise `InvalidRequest` if the filter is invalid or empty (rest-117).
    """
    labels = (
        [target_filter.label] if isinstance(target_filter.label, str) else _get_optional(target_filter.label)
    )
    connected = _get_optional(target_filter.connected)
    try:
        device_filter = parse_device_filter(
            label=labels,
            connected=None if connected is None else str(connected),
            model_number=_get_optional(target_filter.model_number),
            firmware_version=_get_optional(target_filter.firmware_version),
            hardware_version=_get_optional(target_filter.hardware_version),
            friendly_name=_get_optional(target_filter.friendly_name) or None,
            gateway=_get_optional(target_filter.gateway),
            ids=_get_optional(target_filter.ids),
        )
    except InvalidRequest as exc:
        faults = [Fault(join_field_path("targets.filter", each.field), each.message) for each in exc.faults]
        raise InvalidRequest(faults) from None
    if device_filter == DeviceFilter():
        raise InvalidRequest(
            [Fault("targets.filter", 'must not be empty; use "all": true to select every device')]
        )
    return device_filter


def _get_optional(value: Value | UnsetType) -> Value | None:
    return None if value is UNSET else value


def _list_filtered_devices(connection: Connection, device_filter: DeviceFilter, after: int) -> list[int]:
    """Return a page of devices that match a filter and follow the device `after`."""
    selection = resolve_filter(connection, device_filter)
    if selection is None:
        return []
    rows = page_query.find_page_keys(
        connection, selection, SortOrder(), after=None if after < 0 else (after,), limit=DEVICES_PER_PAGE
    )
    return [int(row[-1]) for row in rows]
