"""The time, as the service knows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

Now = Callable[[], int]
"""Tells the time in milliseconds since 1970."""

_TOLERANCE_MS: Final = 1000
"""Milliseconds by which two clocks that go alike may differ: each is read in its own moment, and rounded."""


def now() -> int:
    """The time of this machine."""
    return time.time_ns() // 1_000_000


def read_ticks() -> float:
    """Read the seconds that have passed since some fixed moment, those of a suspended machine included.

    Only Linux has such a clock. Elsewhere the time of a suspension is missing, and the clock of the machine
    seems to be set ahead by it.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class Moment(NamedTuple):
    """A point in time by two clocks: one by which things wait, and one which people read."""

    steady: int
    wall: int


class SteadyClock:
    """A clock that does not jump: what waits for an hour waits for an hour, whoever sets the machine's clock.

    It begins with the time of the machine, and goes on by itself, also while the machine is suspended: what
    expires, or is delayed for an hour, does not last longer because a lid was closed in between. The clocks
    of jobs are the exception. A suspension is an outage to them, which the job engine adds to their waiting
    (see `job_engine.alive_at`).
    """

    def __init__(self, now: Now, tick: Callable[[], float] = read_ticks) -> None:
        self._now = now
        self._tick = tick
        self._start = now() - int(tick() * 1000)

    def __call__(self) -> int:
        """The time in milliseconds since 1970."""
        return self._start + int(self._tick() * 1000)

    def to_wall_time(self, at: int) -> int:
        """What the clock of the machine will show at a time of this one, unless it is set again."""
        ahead = self._now() - self()
        return at if abs(ahead) < _TOLERANCE_MS else at + ahead


steady: Final = SteadyClock(now)
"""The one of this program, by which its jobs wait."""
