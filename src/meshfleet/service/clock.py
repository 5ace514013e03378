"""Wall clock and monotonic clock of the service."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

Now = Callable[[], int]
"""Function that returns the current time in milliseconds, of the wall clock or a monotonic clock."""

_TOLERANCE_MS: Final = 1000
"""Differences of clocks below this many milliseconds are ignored: clocks are read one after the other."""


def now() -> int:
    """Return the wall-clock time of this machine as Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def read_ticks() -> float:
    """Return the seconds since an arbitrary fixed time, including time in which the machine was suspended.

    Only Linux has such a clock. On other systems suspended time is not counted: after a suspension the wall
    clock seems to have been set forward.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class ClockReading(NamedTuple):
    """A time on two clocks, in milliseconds: the monotonic clock for waiting, the wall clock for display."""

    monotonic: int
    wall: int


class MonotonicClock:
    """Monotonic clock in milliseconds: a wait of an hour lasts an hour, even if the wall clock is set.

    The clock starts at the wall-clock time and also advances while the machine is suspended, so that a
    suspension does not prolong expiries and delays. Job timers are the exception: the job runner treats a
    suspension as an outage and extends their deadlines (see `job_engine.alive_at`).
    """

    def __init__(self, now: Now, tick: Callable[[], float] = read_ticks) -> None:
        self._now = now
        self._tick = tick
        self._start = now() - int(tick() * 1000)

    def __call__(self) -> int:
        """Return the monotonic time in milliseconds since 1970, as if the wall clock had not been set."""
        return self._start + int(self._tick() * 1000)

    def to_wall_time(self, at: int) -> int:
        """Convert a time `at` of this clock to wall-clock time (Unix time in milliseconds)."""
        offset = self._now() - self()
        return at if abs(offset) < _TOLERANCE_MS else at + offset


monotonic: Final = MonotonicClock(now)
"""Monotonic clock of this process."""
