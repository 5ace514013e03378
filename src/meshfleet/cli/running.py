"""Running a fleet of emulated gateways from the command line until somebody stops it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx

from meshfleet.cli.stopping import stop_after, until_stopped
from meshfleet.gateway import Fleet
from meshfleet.link import Options
from meshfleet.link.tls import context

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from meshfleet.cli.stopping import Work
    from meshfleet.gateway.online.pace import Pace


async def run_fleet(
    pace: Pace,
    tls_ca: Path | None,
    fill: Callable[[Fleet, httpx.AsyncClient], Coroutine[Any, Any, None]],
    watch: Callable[[Fleet], Coroutine[Any, Any, None]],
) -> None:
    """Fill a fleet and run it until `watch` returns or a signal comes."""
    tls = None if tls_ca is None else context(authorities=tls_ca)
    async with httpx.AsyncClient(verify=True if tls is None else tls) as http:
        fleet = Fleet(pace, http=http, options=Options(tls=tls))
        await until_stopped(partial(_together, fleet, partial(fill, fleet, http), partial(watch, fleet)))


async def _together(fleet: Fleet, fill: Work, watch: Work) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stop_after(watch))
        await fill()
        await fleet.run()
