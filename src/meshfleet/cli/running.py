"""Running a fleet of emulated gateways from the command line until somebody stops it."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
import httpx

from meshfleet.errors import FleetError
from meshfleet.gateway import Fleet
from meshfleet.link import Options
from meshfleet.link.tls import context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from meshfleet.gateway.online.pace import Pace

    _Work = Callable[[], Coroutine[Any, Any, None]]


_SPARE_FILES: Final = 200
"""Files that a process opens besides its connections."""


def allow_connections(number: int) -> None:
    """See to it that the system lets us open so many, or say what to do."""
    try:
        import resource  # noqa: PLC0415 # not there on Windows, which has no such limit
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _SPARE_FILES
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise click.ClickException(
            f"{number} connections need {wanted} open files; the system allows {hard} (ulimit -Hn)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def log_to_terminal(level: int) -> None:
    """Show what the programs that run for long have to say."""
    logging.basicConfig(format="%(levelname)s %(message)s", level=level)


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
        with suppress(_Stopped):
            await _alone(_together(fleet, partial(fill, fleet, http), partial(watch, fleet)))


class _Stopped(Exception):  # it ends a group of tasks, and is no error
    """Time to go."""


async def _together(fleet: Fleet, fill: _Work, watch: _Work) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_until(_signalled))
        tasks.create_task(_until(watch))
        await fill()
        await fleet.run()


async def _until(work: _Work) -> None:
    await work()
    raise _Stopped


async def _signalled() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: there Ctrl-C raises KeyboardInterrupt
            loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


async def _alone(group: Awaitable[None]) -> None:
    """Raise one error instead of a group of them; thousands of gateways may have the same."""
    try:
        await group
    except BaseExceptionGroup as errors:
        unexpected = errors.split((_Stopped, FleetError))[1]
        if unexpected is not None:
            raise
        reasons = errors.subgroup(FleetError) or errors
        raise _first(reasons) from None


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
