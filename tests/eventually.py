"""Wait for what another task, thread or program does, by asking for it again and again."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Final, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Result = TypeVar("Result")

TIMEOUT_SECONDS: Final = 60.0
"""Seconds after which it never happens. Generous, as machines are busy: only a failing test takes them."""

RETRY_TIMEOUTS: Final = (0.2, 1.0, 5.0)
"""Seconds after which a test lets the code give up waiting for a silent peer.

A machine may stall until such a limit is over before anything was sent: then the test tries the next one.
"""

_PROBE_INTERVALS: Final = (0.002, 0.1)
"""Seconds between two probes, at first and at most: what takes long is often asked of a busy service."""


def eventually(
    probe: Callable[[], Result | None], what: str = "it", *, patience: float = TIMEOUT_SECONDS
) -> Result:
    """Call a probe until its answer is true, and return that. An assertion that fails means: not yet."""
    until, pause = time.monotonic() + patience, _PROBE_INTERVALS[0]
    while True:
        found, failure = None, None
        try:
            if found := probe():
                return found
        except AssertionError as exc:
            failure = exc
        if time.monotonic() > until:
            raise AssertionError(_failure_message(what, patience, found)) from failure
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
    """Do the same without holding up the event loop. The probe may be a coroutine function."""
    until, pause = time.monotonic() + patience, _PROBE_INTERVALS[0]
    while True:
        found, failure = None, None
        try:
            answer = probe()
            if found := await answer if inspect.isawaitable(answer) else answer:
                return found
        except AssertionError as exc:
            failure = exc
        if time.monotonic() > until:
            raise AssertionError(_failure_message(what, patience, found)) from failure
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, _PROBE_INTERVALS[1])


def _failure_message(what: str, patience: float, found: object) -> str:
    return f"{what} did not happen within {patience:g} s; the last answer was {found!r}"
