"""Programs that run until somebody stops them."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from meshfleet.errors import FleetError

AsyncWork = Callable[[], Coroutine[Any, Any, None]]


def log_to_terminal(level: int) -> None:
    """Show what the programs that run for long have to say."""
    # What clients do wrong is theirs to see; uvicorn would let anybody write into our log.
    logging.getLogger("uvicorn.error").setLevel(max(level, logging.ERROR))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=level)


class _StopRequested(Exception):  # it ends a group of tasks, and is no error
    """Time to go."""


async def run_until_stopped(work: AsyncWork) -> None:
    """Do some work, until it is done or a signal comes, which cancels it.

    Raises one error of ours instead of a group of them: thousands of gateways may have the same.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            signalled = tasks.create_task(stop_after(_wait_for_signal))
            await work()
            signalled.cancel()
    except BaseExceptionGroup as errors:
        unexpected = errors.split((_StopRequested, FleetError))[1]
        if unexpected is not None:
            raise
        reasons = errors.subgroup(FleetError)
        if reasons is not None:
            raise _first_error(reasons) from None


async def stop_after(work: AsyncWork) -> None:
    """Do some work; the end of it stops all that runs beside it in a group of tasks."""
    await work()
    raise _StopRequested


async def _wait_for_signal() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: there Ctrl-C raises KeyboardInterrupt
            loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def _first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
