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
from meshfleet.errors import Fault, InvalidRequest, WireError, path
from meshfleet.service.devices import keys
from meshfleet.service.devices.choosing import choose
from meshfleet.service.devices.model import Filter, Order
from meshfleet.service.devices.selection import select_by
from meshfleet.wire.ids import mac_number, mac_of, parse_device_id
from meshfleet.wire.rest import parse_label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.wire.rest import TargetFilter, Targets

Value = TypeVar("Value")

PAGE: Final = 5000
"""Devices of one read."""

_TOLD: Final = 20
"""Mistakes of one kind that are told; whoever made a thousand knows by then."""

_KNOWN: Final = "SELECT id FROM device WHERE id IN numbers"


async def resolve(database: Database, targets: Targets) -> array[int]:
    """The numbers of all devices that are meant, in their order."""
    found = array("q")
    if targets.device_ids is not UNSET:
        found.extend(await _by_id(database, targets.device_ids))
    for number in await database.read(_labels, () if targets.labels is UNSET else targets.labels):
        await _walk(database, found, _labelled, number)
    if targets.filter is not UNSET:
        await _by_filter(database, _chosen(targets.filter), found)
    if targets.all:
        await _by_filter(database, Filter(), found)
    if not found:
        raise InvalidRequest([Fault("targets", "selects no device")])
    return array("q", sorted(set(found)))


def pages(numbers: array[int], size: int = PAGE) -> Iterator[array[int]]:
    """Some of them after others."""
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


async def _walk(
    database: Database,
    found: array[int],
    read: Callable[[Connection, Value, int], Sequence[int]],
    what: Value,
) -> None:
    """Read one page after another, each behind the last device of the one before."""
    after = -1
    while True:
        page = await database.read(read, what, after)
        found.extend(page)
        if len(page) < PAGE:
            return
        after = page[-1]


async def _by_id(database: Database, texts: Sequence[str]) -> array[int]:
    """Devices by their ids, all of which must be known."""
    numbers, wrong = array("q"), list[Fault]()
    for place, text in enumerate(texts):
        try:
            numbers.append(mac_number(mac_of(parse_device_id(text, f"targets.deviceIds[{place}]"))))
        except WireError as exc:
            wrong.append(Fault(exc.field, exc.reason))
    if not wrong:
        known = {each for page in pages(numbers) for each in await database.read(_known, page)}
        wrong = [
            Fault(f"targets.deviceIds[{place}]", "there is no such device")
            for place, number in enumerate(numbers)
            if number not in known
        ]
    if wrong:
        raise InvalidRequest(wrong[:_TOLD])
    return numbers


def _known(connection: Connection, numbers: Sequence[int]) -> list[int]:
    return [row[0] for row in bulk.pick(connection, _KNOWN, numbers)]


def _labels(connection: Connection, texts: Sequence[str]) -> list[int]:
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
        raise InvalidRequest(wrong[:_TOLD])
    return numbers


def _labelled(connection: Connection, number: int, after: int) -> Sequence[int]:
    """Devices that have a label."""
    columns = device_label.c
    query = select(columns.device).where(columns.label == number, columns.device > after)
    return connection.scalars(query.order_by(columns.device).limit(PAGE)).all()


def _chosen(asked: TargetFilter) -> Filter:
    """A filter as the list of devices has it; one that lets everybody through is a mistake (rest-117)."""
    labels = [asked.label] if isinstance(asked.label, str) else _given(asked.label)
    connected = _given(asked.connected)
    try:
        chosen = choose(
            label=labels,
            connected=None if connected is None else str(connected),
            model_number=_given(asked.model_number),
            firmware_version=_given(asked.firmware_version),
            hardware_version=_given(asked.hardware_version),
            friendly_name=_given(asked.friendly_name) or None,
            gateway=_given(asked.gateway),
            ids=_given(asked.ids),
        )
    except InvalidRequest as exc:
        faults = [Fault(path("targets.filter", each.field), each.message) for each in exc.faults]
        raise InvalidRequest(faults) from None
    if chosen == Filter():
        raise InvalidRequest([Fault("targets.filter", 'is empty; every device is meant by "all": true')])
    return chosen


def _given(value: Value | UnsetType) -> Value | None:
    return None if value is UNSET else value


async def _by_filter(database: Database, chosen: Filter, found: array[int]) -> None:
    await _walk(database, found, _filtered, chosen)


def _filtered(connection: Connection, chosen: Filter, after: int) -> list[int]:
    """Devices that meet a filter."""
    selection = select_by(connection, chosen)
    if selection is None:
        return []
    rows = keys.find(connection, selection, Order(), after=None if after < 0 else (after,), limit=PAGE)
    return [int(row[-1]) for row in rows]
