"""The devices that a filter selects, counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from meshfleet.db.tables import device, device_label, label
from meshfleet.service.devices.selection import select_by
from meshfleet.wire.ids import model_number
from meshfleet.wire.rest.devices import Share, Summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, Select

    from meshfleet.service.devices.model import Filter
    from meshfleet.service.devices.selection import Selection


def count(connection: Connection, chosen: Filter) -> Summary:
    """Count them, now (rest-42)."""
    connected, models, firmware = Counter[bool](), Counter[str](), Counter[str]()
    labels: dict[str, int] = {}
    selection = select_by(connection, chosen)
    if selection is not None:
        for is_connected, model, version, number in connection.execute(_groups(selection)):
            connected[is_connected] += number
            models[model_number(model)] += number
            firmware[version] += number
        labels = dict(connection.execute(_labels(selection)).all())
    return Summary(
        total=connected.total(),
        connected=connected[True],
        disconnected=connected[False],
        models=_shares(models),
        firmware=_shares(firmware),
        labels=_shares(labels),
        exact=True,
    )


def connected(connection: Connection) -> tuple[int, int]:
    """How many devices are connected, and how many are not."""
    query = select(device.c.connected, func.count()).group_by(device.c.connected)
    found = {bool(is_connected): number for is_connected, number in connection.execute(query)}
    return found.get(True, 0), found.get(False, 0)


def _groups(selection: Selection) -> Select[bool, int, str, int]:
    """All but the labels in one pass: there are far fewer groups than devices."""
    groups = (device.c.connected, device.c.model, device.c.firmware)
    return select(*groups, func.count()).where(*selection.conditions()).group_by(*groups)


def _labels(selection: Selection) -> Select[str, int]:
    counted = select(device_label.c.label, func.count().label("number")).group_by(device_label.c.label)
    if conditions := list(selection.conditions()):
        counted = counted.where(device_label.c.device.in_(select(device.c.id).where(*conditions)))
    numbers = counted.subquery()
    return select(label.c.text, numbers.c.number).join_from(label, numbers, label.c.id == numbers.c.label)


def _shares(counts: Mapping[str, int]) -> list[Share]:
    """The largest first."""
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [Share(value=value, count=number) for value, number in ordered]
