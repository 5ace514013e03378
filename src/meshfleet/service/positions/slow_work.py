"""Runs computations that take seconds on a large site: few at a time, and equal ones once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_MAX_RUNNING: Final = 2
"""Maximum number of computations at the same time: the other worker threads remain for quick requests."""

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class SlowWork:
    """Runs slow computations in worker threads. All methods are called in the thread of the event loop."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_MAX_RUNNING)
        self._shared: dict[Hashable, asyncio.Task[object]] = {}

    async def run(
        self, function: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs
    ) -> _Result:
        """Call a function in a thread as soon as there is a free slot. Return its result."""
        await self._slots.acquire()
        work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
        # The slot is free when the thread ends, which it does not when the client leaves.
        work.add_done_callback(lambda _: self._slots.release())
        return await asyncio.shield(work)

    async def share(
        self, function: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs
    ) -> _Result:
        """Return the result of `run`. If an equal call is waiting or running already, return its result."""
        key = (function, args, frozenset(kwargs.items()))
        work = self._shared.get(key)
        if work is None:
            work = asyncio.create_task(self.run(function, *args, **kwargs), name="positions.slow_work")
            self._shared[key] = work
            work.add_done_callback(lambda _: self._shared.pop(key))
        # The key contains the function, so the result is its result.
        return cast("_Result", await asyncio.shield(work))
