"""Watching a job: by live events, and by asking now and then, for events may not get through."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from meshfleet.client.rest.live import listen
from meshfleet.errors import ServiceRefused, ServiceUnreachable, TooManyAttempts, Unavailable
from meshfleet.wire import rest
from meshfleet.wire.rest import Job, JobState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from meshfleet.client.rest.desk import Desk
    from meshfleet.client.rest.events import Event

FINISHED: Final = frozenset({JobState.COMPLETED, JobState.CANCELED})

_LISTENING: Final = 5.0
_ALONE: Final = 1.0
"""Seconds between two questions, with live events and without."""


async def watch(desk: Desk, job: str) -> AsyncGenerator[Job, None]:
    """A job as it is now, and again whenever it has changed, until it is over."""
    path = rest.job_path(job)
    ear = _Ear(listen(desk, "job", jobs=job))
    told: Job | None = None
    try:
        ear.listen()
        found = await desk.get(rest.Job, path)
        while True:
            if found != told:
                told = found
                yield found
            if found.state in FINISHED:
                return
            found = await ear.next() or await desk.get(rest.Job, path)
    finally:
        await ear.close()


class _Ear:
    """Hears events of a job, as long as there are any."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events
        self._next: asyncio.Task[Event] | None = None
        self._is_deaf = False

    def listen(self) -> None:
        """Wait for the next event from now on."""
        if self._next is None and not self._is_deaf:
            self._next = asyncio.ensure_future(anext(self._events))

    async def next(self) -> Job | None:
        """The next that is told of the job; None: it is time to ask."""
        self.listen()
        if self._next is None:
            await asyncio.sleep(_ALONE)
            return None
        done, _ = await asyncio.wait([self._next], timeout=_LISTENING)
        if not done:
            return None
        event, self._next = self._next, None
        try:
            data = event.result().data
        except (ServiceRefused, ServiceUnreachable, TooManyAttempts, Unavailable, StopAsyncIteration):
            self._is_deaf = True  # whoever is asked tells what is wrong, if it is more than that
            return None
        return data if isinstance(data, Job) else None

    async def close(self) -> None:
        """Let go."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
        await self._events.aclose()
