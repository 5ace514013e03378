"""Counting the devices that a filter selects, without counting a large fleet again and again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.errors import TooManyAttempts
from meshfleet.service.devices import summary

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.devices.model import Filter
    from meshfleet.wire.rest import Summary

_SLOW: Final = 0.05
"""Seconds from which on counting is worth remembering."""

_FRESH: Final = 10.0
"""Seconds for which figures are told again; they then say that they are not exact."""

_REMEMBERED: Final = 100
_WAITING: Final = 20


class _Counted(NamedTuple):
    summary: Summary
    until: float


class Counting:
    """Counts. Who asks for the same at the same time gets the same answer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counted: OrderedDict[Filter, _Counted] = OrderedDict()
        self._running: dict[Filter, asyncio.Task[Summary]] = {}
        # One after the other: counting must not take all the threads that read.
        self._turn = asyncio.Lock()

    async def count(self, chosen: Filter) -> Summary:
        """The devices that a filter selects, counted now or some seconds ago (rest-42)."""
        known = self._counted.get(chosen)
        if known is not None and asyncio.get_running_loop().time() < known.until:
            return replace(known.summary, exact=False)
        if chosen not in self._running and len(self._running) >= _WAITING:
            raise TooManyAttempts(1)
        if chosen not in self._running:
            self._running[chosen] = asyncio.create_task(self._count(chosen), name="devices.count")
        # Shielded: who goes away does not take the answer from the others.
        return await asyncio.shield(self._running[chosen])

    async def _count(self, chosen: Filter) -> Summary:
        clock = asyncio.get_running_loop().time
        try:
            async with self._turn:
                started = clock()
                counted = await self._database.read(summary.count, chosen)
        finally:
            del self._running[chosen]
        if clock() - started > _SLOW:
            self._counted[chosen] = _Counted(counted, clock() + _FRESH)
            if len(self._counted) > _REMEMBERED:
                self._counted.popitem(last=False)
        return counted
