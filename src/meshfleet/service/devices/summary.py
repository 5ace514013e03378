"""Counts devices by connectivity, model, firmware and label, and caches the counts."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace
from sqlalchemy import Connection, Select, func, select

from meshfleet.db.tables import device, device_label, label
from meshfleet.errors import TooManyAttempts
from meshfleet.protocol.ids import format_model_number
from meshfleet.rest.devices import Share, Summary
from meshfleet.service.devices.filter_sql import ResolvedFilter, resolve_filter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.db import Database
    from meshfleet.service.devices.model import DeviceFilter


def count_devices(connection: Connection, device_filter: DeviceFilter) -> Summary:
    """Count the devices that match a filter, by connectivity, model, firmware and label (rest-42)."""
    connected, models, firmware = Counter[bool](), Counter[str](), Counter[str]()
    labels: dict[str, int] = {}
    selection = resolve_filter(connection, device_filter)
    if selection is not None:
        for is_connected, model, version, count in connection.execute(_build_group_query(selection)):
            connected[is_connected] += count
            models[format_model_number(model)] += count
            firmware[version] += count
        labels = dict(connection.execute(_build_label_query(selection)).all())
    return Summary(
        total=connected.total(),
        connected=connected[True],
        disconnected=connected[False],
        models=_build_shares(models),
        firmware=_build_shares(firmware),
        labels=_build_shares(labels),
        exact=True,
    )


class ConnectivityCounts(NamedTuple):
    """Number of connected and of disconnected devices."""

    connected: int
    disconnected: int


def count_connected_devices(connection: Connection) -> ConnectivityCounts:
    """Count all connected and all disconnected devices."""
    query = select(device.c.connected, func.count()).group_by(device.c.connected)
    counts = {bool(is_connected): count for is_connected, count in connection.execute(query)}
    return ConnectivityCounts(counts.get(True, 0), counts.get(False, 0))


def _build_group_query(selection: ResolvedFilter) -> Select[bool, int, str, int]:
    """Return one SQL query for the counts by connectivity, model and firmware.

    The caller adds up the groups of the query, which are far fewer than devices.
    """
    groups = (device.c.connected, device.c.model, device.c.firmware)
    return select(*groups, func.count()).where(*selection.build_conditions()).group_by(*groups)


def _build_label_query(selection: ResolvedFilter) -> Select[str, int]:
    counted = select(device_label.c.label, func.count().label("number")).group_by(device_label.c.label)
    if conditions := list(selection.build_conditions()):
        counted = counted.where(device_label.c.device.in_(select(device.c.id).where(*conditions)))
    counts = counted.subquery()
    return select(label.c.text, counts.c.number).join_from(label, counts, label.c.id == counts.c.label)


def _build_shares(counts: Mapping[str, int]) -> list[Share]:
    """Convert counts by value to REST items, sorted by count with the highest first."""
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [Share(value=value, count=count) for value, count in ordered]


# Cache of counts, so that a large fleet is not counted for every request.

_SLOW_SECONDS: Final = 0.05
"""Seconds that counting devices must take for the summary to be cached."""

_CACHE_SECONDS: Final = 10.0
"""Seconds for which a summary is cached. A cached summary is returned with `exact` False."""

_MAX_CACHED_SUMMARIES: Final = 100
_MAX_RUNNING_COUNTS: Final = 20
"""Maximum number of filters for which devices are counted or wait to be counted."""


class _CachedSummary(NamedTuple):
    summary: Summary
    expires_at: float
    """Time of the event loop in seconds at which the summary is dropped."""


class SummaryCache:
    """Counts the devices that match a filter, and caches slow counts. Equal requests share one count."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached: OrderedDict[DeviceFilter, _CachedSummary] = OrderedDict()
        self._running: dict[DeviceFilter, asyncio.Task[Summary]] = {}
        # One count at a time: counting must not occupy all reader threads.
        self._count_lock = asyncio.Lock()

    async def get_summary(self, device_filter: DeviceFilter) -> Summary:
        """Return the summary of the devices that match a filter, counted now or some seconds ago (rest-42).

        Raise `TooManyAttempts` if devices are being counted for too many other filters.
        """
        cached = self._cached.get(device_filter)
        if cached is not None and asyncio.get_running_loop().time() < cached.expires_at:
            return replace(cached.summary, exact=False)
        if device_filter not in self._running and len(self._running) >= _MAX_RUNNING_COUNTS:
            raise TooManyAttempts(1, "devices are being counted for too many other filters")
        if device_filter not in self._running:
            self._running[device_filter] = asyncio.create_task(
                self._count_devices(device_filter), name="devices.count"
            )
        # Shielded: a client that disconnects must not cancel the count for the others.
        return await asyncio.shield(self._running[device_filter])

    async def _count_devices(self, device_filter: DeviceFilter) -> Summary:
        """Count the devices that match a filter, after other running counts. Cache a slow result."""
        clock = asyncio.get_running_loop().time
        try:
            async with self._count_lock:
                started_at = clock()
                summary = await self._database.read(count_devices, device_filter)
        finally:
            del self._running[device_filter]
        if clock() - started_at > _SLOW_SECONDS:
            self._cached[device_filter] = _CachedSummary(summary, clock() + _CACHE_SECONDS)
            if len(self._cached) > _MAX_CACHED_SUMMARIES:
                self._cached.popitem(last=False)
        return summary
