"""Runs a fleet of emulated gateways until stopped, and prints statistics of the fleet."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

import click
import httpx
from msgspec import Struct, field, json
from msgspec.structs import asdict
from rich.live import Live
from rich.table import Table

from meshfleet.cli.shutdown import run_until_stopped, stop_after
from meshfleet.emulator import EmulatedFleet, ReportMode
from meshfleet.mqtt.client import MqttOptions
from meshfleet.tls import create_tls_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from meshfleet.cli.shutdown import AsyncWork
    from meshfleet.emulator.runtime.simulation_pace import SimulationPace

mode_option = click.option(
    "--mode",
    type=click.Choice([each.value for each in ReportMode]),
    default="raw",
    show_default=True,
    help="Format of the values in reports: raw (hex) or decoded (JSON).",
)

# --- Statistics: a live table on a terminal, else lines ---

_REFRESH_SECONDS: Final = 0.5
"""Seconds between two updates of the statistics on a terminal."""
_PRINT_SECONDS: Final = 10.0
"""Seconds between two lines of statistics, if the output is not a terminal."""


class FleetStats(Struct, frozen=True, kw_only=True, rename="camel"):
    """Statistics of an emulated fleet: totals since the start, and rates since the previous statistics."""

    seconds: float
    """Seconds since all gateways were connected."""
    gateways: int
    connected: int
    reports: int
    reports_per_second: float
    requests: int
    dropped: int
    """Number of MQTT messages dropped because the broker was unreachable for too long."""
    cpu_micros_per_report: float
    problem: str = field(name="trouble")
    """Reason why one of the gateways is not connected; empty if all gateways are connected."""


class FleetStatsSampler:
    """Collects statistics of an emulated fleet. Rates are averages since the previous call of `sample`."""

    def __init__(self, fleet: EmulatedFleet) -> None:
        self._fleet = fleet
        self._started_at = self._last_sampled_at = time.monotonic()
        self._reports = fleet.report_count
        self._cpu = time.process_time()

    def sample(self) -> FleetStats:
        """Return the current statistics, and start a new interval for the rates."""
        now, reports, cpu = time.monotonic(), self._fleet.report_count, time.process_time()
        new_reports, elapsed, cpu_used = (
            reports - self._reports,
            now - self._last_sampled_at,
            cpu - self._cpu,
        )
        self._last_sampled_at, self._reports, self._cpu = now, reports, cpu
        uplinks = self._fleet.uplinks
        return FleetStats(
            seconds=round(now - self._started_at, 1),
            gateways=len(uplinks),
            connected=sum(uplink.is_connected for uplink in uplinks),
            reports=reports,
            reports_per_second=round(new_reports / elapsed, 1) if elapsed else 0.0,
            requests=sum(uplink.received for uplink in uplinks),
            dropped=sum(uplink.dropped for uplink in uplinks),
            cpu_micros_per_report=round(cpu_used / new_reports * 1e6, 1) if new_reports else 0.0,
            problem=next((uplink.disconnect_reason for uplink in uplinks if not uplink.is_connected), ""),
        )


async def print_fleet_stats(fleet: EmulatedFleet, *, seconds: float | None, as_json: bool) -> None:
    """Print statistics of an emulated fleet periodically, for `seconds`, or forever if `seconds` is None."""
    if sys.stdout.isatty() and not as_json:
        await _render_live(fleet, seconds)
        return
    await fleet.all_connected.wait()
    sampler = FleetStatsSampler(fleet)
    async for _ in _intervals(_PRINT_SECONDS, seconds):
        click.echo(_format_line(sampler.sample(), as_json=as_json))


def _format_line(stats: FleetStats, *, as_json: bool) -> str:
    if as_json:
        return json.encode(stats).decode()
    problem = f"; {stats.problem}" if stats.problem else ""
    return (
        f"{stats.seconds:.0f} s: {stats.connected} of {stats.gateways} gateways, "
        f"{stats.reports} reports ({stats.reports_per_second:.0f}/s), "
        f"{stats.requests} requests{problem}"
    )


async def _render_live(fleet: EmulatedFleet, seconds: float | None) -> None:
    with Live(_build_table(FleetStatsSampler(fleet).sample()), transient=False) as live:
        while not await _wait_until_connected(fleet):
            live.update(_build_table(FleetStatsSampler(fleet).sample()))
        sampler = FleetStatsSampler(fleet)
        async for _ in _intervals(_REFRESH_SECONDS, seconds):
            live.update(_build_table(sampler.sample()))


async def _wait_until_connected(fleet: EmulatedFleet) -> bool:
    """Wait at most `_REFRESH_SECONDS` for all gateways. Return whether all gateways are connected."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_REFRESH_SECONDS):
            await fleet.all_connected.wait()
    return fleet.all_connected.is_set()


def _build_table(stats: FleetStats) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in asdict(stats).items():
        if name != "problem" or value:
            table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int | float) else value)
    return table


async def _intervals(interval: float, seconds: float | None) -> AsyncIterator[None]:
    """Yield every `interval` seconds until `seconds` have passed; without end if `seconds` is None."""
    end = inf if seconds is None else time.monotonic() + seconds
    remaining = inf
    while remaining > interval:
        remaining = max(0.0, end - time.monotonic())
        await asyncio.sleep(min(interval, remaining))
        yield


async def run_emulated_fleet(
    pace: SimulationPace,
    tls_ca: Path | None,
    populate: Callable[[EmulatedFleet, httpx.AsyncClient], Coroutine[Any, Any, None]],
    monitor: Callable[[EmulatedFleet], Coroutine[Any, Any, None]],
) -> None:
    """Run an emulated fleet with the gateways that `populate` adds.

    Stop when `monitor` returns, or on SIGINT or SIGTERM.
    """
    tls = None if tls_ca is None else create_tls_context(authorities=tls_ca)
    async with httpx.AsyncClient(verify=True if tls is None else tls) as http:
        fleet = EmulatedFleet(pace, http=http, options=MqttOptions(tls=tls))
        await run_until_stopped(
            partial(_run_with_monitor, fleet, partial(populate, fleet, http), partial(monitor, fleet))
        )


async def _run_with_monitor(fleet: EmulatedFleet, populate: AsyncWork, monitor: AsyncWork) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stop_after(monitor))
        await populate()
        await fleet.run()
