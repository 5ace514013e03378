"""Shutdown of long-running commands."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from meshfleet.cli.hangup import take_pending_hangup
from meshfleet.errors import FleetError

AsyncWork = Callable[[], Coroutine[Any, Any, None]]


class _StopRequested(Exception):  # not an error: it ends a task group
    """Raised in a task to stop all other tasks of its task group."""


async def run_until_stopped(work: AsyncWork, on_hangup: Callable[[], None] | None = None) -> None:
    """Run `work` to its end, or cancel `work` on SIGINT or SIGTERM.

    On SIGHUP, call `on_hangup`; if it is None, SIGHUP ends the process. If `work` fails with several
    `FleetError`s, only the first is raised: thousands of gateways may fail for the same reason. So is
    `OutputClosed`, with which click ends the program.
    """
    with _handling_hangups(on_hangup):
        try:
            async with asyncio.TaskGroup() as tasks:
                signal_task = tasks.create_task(stop_after(_wait_for_signal))
                await work()
                signal_task.cancel()
        except BaseExceptionGroup as errors:
            unexpected = errors.split((_StopRequested, FleetError, OutputClosed))[1]
            if unexpected is not None:
                raise
            reasons = errors.subgroup((FleetError, OutputClosed))
            if reasons is not None:
                raise first_error(reasons) from None


class OutputClosed(BrokenPipeError):
    """Raised if the program that reads the standard output has closed it, as `head` does."""


@contextmanager
def _handling_hangups(on_hangup: Callable[[], None] | None) -> Iterator[None]:
    """Call `on_hangup` on SIGHUP in the `with` block, and at once if SIGHUP was remembered before."""
    if on_hangup is None or not hasattr(signal, "SIGHUP"):  # Windows has no SIGHUP
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    if take_pending_hangup():
        on_hangup()
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        # A hangup would end the process while it stops. Python resets its own handlers before its end.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


async def stop_after(work: AsyncWork) -> None:
    """Run `work` to its end, then stop all other tasks of the task group that runs this coroutine."""
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
    """Return the first error of a group that may contain nested groups."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def end_on_signals() -> Iterator[threading.Event]:
    """End the `with` block with `SystemExit` on SIGINT or SIGTERM, so that unfinished files are removed.

    Yield an event that is set on these signals. Functions written in C check the event, because the exception
    does not pass through them.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals are handled elsewhere
        yield stop
        return

    def end(number: int, _frame: object) -> NoReturn:
        stop.set()
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
