"""Which devices are meant: all that any part of `targets` selects, each once (rest-116).

They are found in many short reads: a fleet is large, and nobody else shall wait for it.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import UNSET, UnsetType
from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import device_label, label
from meshfleet.errors import Fault, InvalidRequest, join_field_path
from meshfleet.errors.protocol import WireError
from meshfleet.protocol.ids import mac_to_int, parse_device_id, to_mac
from meshfleet.rest import parse_label
from meshfleet.service.devices import page_query
from meshfleet.service.devices.filter_sql import resolve_filter
from meshfleet.service.devices.model import DeviceFilter, SortOrder
from meshfleet.service.devices.parameters import parse_device_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.rest import TargetFilter, Targets

Value = TypeVar("Value")

DEVICES_PER_PAGE: Final = 5000
"""Devices of one read."""

_MAX_FAULTS: Final = 20
"""Mistakes of one kind that are told; whoever made a thousand knows by then."""

_KNOWN_DEVICES: Final = "SELECT id FROM device WHERE id IN numbers"


async def resolve_targets(database: Database, targets: Targets) -> array[int]:
    """The numbers of all devices that are meant, in their order."""
    found = array("q")
    if targets.device_ids is not UNSET:
        found.extend(await _find_by_id(database, targets.device_ids))
    for number in await database.read(_find_labels, () if targets.labels is UNSET else targets.labels):
        await _read_pages(database, found, _list_labeled_devices, number)
    if targets.filter is not UNSET:
        await _find_by_filter(database, _parse_filter(targets.filter), found)
    if targets.all:
        await _find_by_filter(database, DeviceFilter(), found)
    if not found:
        raise InvalidRequest([Fault("targets", "selects no device")])
    return array("q", sorted(set(found)))


def split_pages(numbers: array[int], size: int = DEVICES_PER_PAGE) -> Iterator[array[int]]:
    """Some of them after others."""
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


async def _read_pages(
    database: Database,
    found: array[int],
    read: Callable[[Connection, Value, int], Sequence[int]],
    criterion: Value,
) -> None:
    """Read one page after another, each behind the last device of the one before."""
    after = -1
    while True:
        page = await database.read(read, criterion, after)
        found.extend(page)
        if len(page) < DEVICES_PER_PAGE:
            return
        after = page[-1]


async def _find_by_id(database: Database, texts: Sequence[str]) -> array[int]:
    """Devices by their ids, all of which must be known."""
    numbers, wrong = array("q"), list[Fault]()
    for place, text in enumerate(texts):
        try:
            numbers.append(mac_to_int(to_mac(parse_device_id(text, f"targets.deviceIds[{place}]"))))
        except WireError as exc:
            wrong.append(Fault(exc.field, exc.reason))
    if not wrong:
        known = {
            each for page in split_pages(numbers) for each in await database.read(_list_known_devices, page)
        }
        wrong = [
            Fault(f"targets.deviceIds[{place}]", "there is no such device")
            for place, number in enumerate(numbers)
            if number not in known
        ]
    if wrong:
        raise InvalidRequest(wrong[:_MAX_FAULTS])
    return numbers


def _list_known_devices(connection: Connection, numbers: Sequence[int]) -> list[int]:
    return [row[0] for row in bulk.query_in(connection, _KNOWN_DEVICES, numbers)]


def _find_labels(connection: Connection, texts: Sequence[str]) -> list[int]:
    """The numbers of labels, all of which must be known."""
    numbers, wrong = list[int](), list[Fault]()
    for place, text in enumerate(texts):
        field = f"targets.labels[{place}]"
        try:
            found = connection.execute(
                select(label.c.id).where(label.c.text == parse_label(text, field))
            ).scalar()
        except WireError as exc:
            wrong.append(Fault(exc.field, exc.reason))
            continue
        if found is None:
            wrong.append(Fault(field, "there is no such label"))
        else:
            numbers.append(found)
    if wrong:
        raise InvalidRequest(wrong[:_MAX_FAULTS])
    return numbers


def _list_labeled_devices(connection: Connection, number: int, after: int) -> Sequence[int]:
    """Devices that have a label."""
    columns = device_label.c
    query = select(columns.device).where(columns.label == number, columns.device > after)
    return connection.scalars(query.order_by(columns.device).limit(DEVICES_PER_PAGE)).all()


def _parse_filter(target_filter: TargetFilter) -> DeviceFilter:
    """A filter as the list of devices has it; one that lets everybody through is a mistake (rest-117)."""
    labels = [target_filter.label] if isinstance(target_filter.label, str) else _given(target_filter.label)
    connected = _given(target_filter.connected)
    try:
        chosen = parse_device_filter(
            label=labels,
            connected=None if connected is None else str(connected),
            model_number=_given(target_filter.model_number),
            firmware_version=_given(target_filter.firmware_version),
            hardware_version=_given(target_filter.hardware_version),
            friendly_name=_given(target_filter.friendly_name) or None,
            gateway=_given(target_filter.gateway),
            ids=_given(target_filter.ids),
        )
    except InvalidRequest as exc:
        faults = [Fault(join_field_path("targets.filter", each.field), each.message) for each in exc.faults]
        raise InvalidRequest(faults) from None
    if chosen == DeviceFilter():
        raise InvalidRequest([Fault("targets.filter", 'is empty; every device is meant by "all": true')])
    return chosen


def _given(value: Value | UnsetType) -> Value | None:
    return None if value is UNSET else value


async def _find_by_filter(database: Database, chosen: DeviceFilter, found: array[int]) -> None:
    await _read_pages(database, found, _list_filtered_devices, chosen)


def _list_filtered_devices(connection: Connection, chosen: DeviceFilter, after: int) -> list[int]:
    """Devices that meet a filter."""
    selection = resolve_filter(connection, chosen)
    if selection is None:
        return []
    rows = page_query.find_page_keys(
        connection, selection, SortOrder(), after=None if after < 0 else (after,), limit=DEVICES_PER_PAGE
    )
    return [int(row[-1]) for row in rows]
