"""Shutdown of long-running commands."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from meshfleet.errors import FleetError

AsyncWork = Callable[[], Coroutine[Any, Any, None]]


class _StopRequested(Exception):  # not an error: it ends a task group
    """Raised in a task to stop all other tasks of its task group."""


async def run_until_stopped(work: AsyncWork, on_hangup: Callable[[], None] | None = None) -> None:
    """Run `work` until it is done, or cancel it on SIGINT or SIGTERM.

    On SIGHUP, call `on_hangup`; without it, the signal ends the process. Of a group of `FleetError`s only the
    first is raised: thousands of gateways may fail for the same reason.
    """
    if on_hangup is not None:
        with suppress(NotImplementedError, AttributeError):  # Windows has no SIGHUP
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        async with asyncio.TaskGroup() as tasks:
            signal_task = tasks.create_task(stop_after(_wait_for_signal))
            await work()
            signal_task.cancel()
    except BaseExceptionGroup as errors:
        unexpected = errors.split((_StopRequested, FleetError))[1]
        if unexpected is not None:
            raise
        reasons = errors.subgroup(FleetError)
        if reasons is not None:
            raise first_error(reasons) from None


async def stop_after(work: AsyncWork) -> None:
    """Run `work` until it is done, then stop all other tasks of the task group."""
    await work()
    raise _StopRequested


async def _wait_for_signal() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # on Windows Ctrl-C raises KeyboardInterrupt
            loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, which may contain other groups."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
