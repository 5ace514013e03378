"""How a simulation is doing: live on a terminal, as lines elsewhere."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct, json
from msgspec.structs import asdict
from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.gateway import Fleet

_SHOWN_EVERY: Final = 0.5
_PRINTED_EVERY: Final = 10.0
"""Seconds."""


class Figures(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a fleet has done so far, and how fast it does it now."""

    seconds: float
    """Since all gateways were connected."""
    gateways: int
    connected: int
    reports: int
    reports_per_second: float
    requests: int
    dropped: int
    """Messages that were given up because the broker was away for too long."""
    cpu_micros_per_report: float
    trouble: str
    """Why one of the gateways is not connected, if that is so."""


class Watch:
    """Takes figures of a fleet; speeds are those since the last time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._began = self._last = time.monotonic()
        self._reports = fleet.reports
        self._cpu = time.process_time()

    def figures(self) -> Figures:
        """Look at the fleet."""
        now, reports, cpu = time.monotonic(), self._fleet.reports, time.process_time()
        made, elapsed, used = reports - self._reports, now - self._last, cpu - self._cpu
        self._last, self._reports, self._cpu = now, reports, cpu
        uplinks = self._fleet.uplinks
        return Figures(
            seconds=round(now - self._began, 1),
            gateways=len(uplinks),
            connected=sum(uplink.is_connected for uplink in uplinks),
            reports=reports,
            reports_per_second=round(made / elapsed, 1) if elapsed else 0.0,
            requests=sum(uplink.received for uplink in uplinks),
            dropped=sum(uplink.dropped for uplink in uplinks),
            cpu_micros_per_report=round(used / made * 1e6, 1) if made else 0.0,
            trouble=next((uplink.trouble for uplink in uplinks if not uplink.is_connected), ""),
        )


async def watch(fleet: Fleet, *, seconds: float | None, as_json: bool) -> None:
    """Show how a fleet is doing, for so many seconds or for ever."""
    if sys.stdout.isatty() and not as_json:
        await _watch_live(fleet, seconds)
        return
    await fleet.is_complete.wait()
    watch = Watch(fleet)
    async for _ in _looks(_PRINTED_EVERY, seconds):
        click.echo(_line(watch.figures(), as_json=as_json))


def _line(figures: Figures, *, as_json: bool) -> str:
    if as_json:
        return json.encode(figures).decode()
    trouble = f"; {figures.trouble}" if figures.trouble else ""
    return (
        f"{figures.seconds:.0f} s: {figures.connected} of {figures.gateways} gateways, "
        f"{figures.reports} reports ({figures.reports_per_second:.0f}/s), "
        f"{figures.requests} requests{trouble}"
    )


async def _watch_live(fleet: Fleet, seconds: float | None) -> None:
    with Live(_table(Watch(fleet).figures()), transient=False) as live:
        while not await _completed(fleet):
            live.update(_table(Watch(fleet).figures()))
        watch = Watch(fleet)
        async for _ in _looks(_SHOWN_EVERY, seconds):
            live.update(_table(watch.figures()))


async def _completed(fleet: Fleet) -> bool:
    """Wait a little for all gateways to be connected; whether they are."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_SHOWN_EVERY):
            await fleet.is_complete.wait()
    return fleet.is_complete.is_set()


def _table(figures: Figures) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in asdict(figures).items():
        if name != "trouble" or value:
            table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int | float) else value)
    return table


async def _looks(every: float, seconds: float | None) -> AsyncIterator[None]:
    """Wait for the next look, and for the last one at the end."""
    end = inf if seconds is None else time.monotonic() + seconds
    left = inf
    while left > every:
        left = max(0.0, end - time.monotonic())
        await asyncio.sleep(min(every, left))
        yield
