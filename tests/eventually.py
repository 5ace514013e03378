"""Waiting for the effect of another task, thread or program by polling."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Final, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Result = TypeVar("Result")

TIMEOUT_SECONDS: Final = 60.0
"""Seconds after which the condition counts as never met. Long, because machines may be busy: only a
failing test takes that long."""

RETRY_TIMEOUTS: Final = (0.2, 1.0, 5.0)
"""Timeouts in seconds that a test passes to code that waits for a silent peer.

A machine may stall for the whole timeout before anything was sent: then the test tries the next one.
"""

_PROBE_INTERVALS: Final = (0.002, 0.1)
"""Seconds between two polls, at first and at most: a long wait is often for a busy service."""


def eventually(
    probe: Callable[[], Result | None], what: str = "it", *, patience: float = TIMEOUT_SECONDS
) -> Result:
    """Call a probe until its result is true, and return that result. A failed assertion means: not yet."""
    deadline, pause = time.monotonic() + patience, _PROBE_INTERVALS[0]
    while True:
        result, failure = None, None
        try:
            if result := probe():
                return result
        except AssertionError as exc:
            failure = exc
        if time.monotonic() > deadline:
            raise AssertionError(_failure_message(what, patience, result)) from failure
        time.sleep(pause)
        pause = min(1.5 * pause, _PROBE_INTERVALS[1])


@overload
async def eventually_async(
    probe: Callable[[], Awaitable[Result | None]], what: str = ..., *, patience: float = ...
) -> Result: ...
@overload
async def eventually_async(
    probe: Callable[[], Result | None], what: str = ..., *, patience: float = ...
) -> Result: ...
async def eventually_async(
    probe: Callable[[], object], what: str = "it", *, patience: float = TIMEOUT_SECONDS
) -> object:
    """Do the same as `eventually` without blocking the loop. The probe may be a coroutine function."""
    deadline, pause = time.monotonic() + patience, _PROBE_INTERVALS[0]
    while True:
        result, failure = None, None
        try:
            value = probe()
            if result := await value if inspect.isawaitable(value) else value:
                return result
        except AssertionError as exc:
            failure = exc
        if time.monotonic() > deadline:
            raise AssertionError(_failure_message(what, patience, result)) from failure
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, _PROBE_INTERVALS[1])


def _failure_message(what: str, patience: float, result: object) -> str:
    return f"{what} did not happen within {patience:g} s; the last result was {result!r}"
