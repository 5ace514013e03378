"""The devices that a filter selects, counted."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace
from sqlalchemy import func, select

from meshfleet.db.tables import device, device_label, label
from meshfleet.errors import TooManyAttempts
from meshfleet.protocol.ids import format_model_number
from meshfleet.rest.devices import Share, Summary
from meshfleet.service.devices.filter_sql import resolve_filter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, Select

    from meshfleet.db import Database
    from meshfleet.service.devices.filter_sql import ResolvedFilter
    from meshfleet.service.devices.model import DeviceFilter


def count_devices(connection: Connection, device_filter: DeviceFilter) -> Summary:
    """Count them, now (rest-42)."""
    connected, models, firmware = Counter[bool](), Counter[str](), Counter[str]()
    labels: dict[str, int] = {}
    selection = resolve_filter(connection, device_filter)
    if selection is not None:
        for is_connected, model, version, number in connection.execute(_group_query(selection)):
            connected[is_connected] += number
            models[format_model_number(model)] += number
            firmware[version] += number
        labels = dict(connection.execute(_label_query(selection)).all())
    return Summary(
        total=connected.total(),
        connected=connected[True],
        disconnected=connected[False],
        models=_to_shares(models),
        firmware=_to_shares(firmware),
        labels=_to_shares(labels),
        exact=True,
    )


def count_connected_devices(connection: Connection) -> tuple[int, int]:
    """How many devices are connected, and how many are not."""
    query = select(device.c.connected, func.count()).group_by(device.c.connected)
    found = {bool(is_connected): number for is_connected, number in connection.execute(query)}
    return found.get(True, 0), found.get(False, 0)


def _group_query(selection: ResolvedFilter) -> Select[bool, int, str, int]:
    """All but the labels in one pass: there are far fewer groups than devices."""
    groups = (device.c.connected, device.c.model, device.c.firmware)
    return select(*groups, func.count()).where(*selection.conditions()).group_by(*groups)


def _label_query(selection: ResolvedFilter) -> Select[str, int]:
    counted = select(device_label.c.label, func.count().label("number")).group_by(device_label.c.label)
    if conditions := list(selection.conditions()):
        counted = counted.where(device_label.c.device.in_(select(device.c.id).where(*conditions)))
    numbers = counted.subquery()
    return select(label.c.text, numbers.c.number).join_from(label, numbers, label.c.id == numbers.c.label)


def _to_shares(counts: Mapping[str, int]) -> list[Share]:
    """The largest first."""
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [Share(value=value, count=number) for value, number in ordered]


# Counting the devices that a filter selects, without counting a large fleet again and again.

_SLOW_SECONDS: Final = 0.05
"""Seconds from which on counting is worth remembering."""

_CACHE_SECONDS: Final = 10.0
"""Seconds for which figures are told again; they then say that they are not exact."""

_MAX_CACHED: Final = 100
_MAX_RUNNING: Final = 20


class _CachedSummary(NamedTuple):
    summary: Summary
    until: float


class SummaryCache:
    """Counts. Who asks for the same at the same time gets the same answer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached: OrderedDict[DeviceFilter, _CachedSummary] = OrderedDict()
        self._running: dict[DeviceFilter, asyncio.Task[Summary]] = {}
        # One after the other: counting must not take all the threads that read.
        self._count_lock = asyncio.Lock()

    async def get(self, device_filter: DeviceFilter) -> Summary:
        """The devices that a filter selects, counted now or some seconds ago (rest-42)."""
        known = self._cached.get(device_filter)
        if known is not None and asyncio.get_running_loop().time() < known.until:
            return replace(known.summary, exact=False)
        if device_filter not in self._running and len(self._running) >= _MAX_RUNNING:
            raise TooManyAttempts(1)
        if device_filter not in self._running:
            self._running[device_filter] = asyncio.create_task(
                self._count(device_filter), name="devices.count"
            )
        # Shielded: who goes away does not take the answer from the others.
        return await asyncio.shield(self._running[device_filter])

    async def _count(self, device_filter: DeviceFilter) -> Summary:
        clock = asyncio.get_running_loop().time
        try:
            async with self._count_lock:
                started = clock()
                counted = await self._database.read(count_devices, device_filter)
        finally:
            del self._running[device_filter]
        if clock() - started > _SLOW_SECONDS:
            self._cached[device_filter] = _CachedSummary(counted, clock() + _CACHE_SECONDS)
            if len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        return counted
