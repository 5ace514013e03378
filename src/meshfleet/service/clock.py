"""The time, as the service knows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

Now = Callable[[], int]
"""Tells the time in milliseconds since 1970."""

_SAME: Final = 1000
"""Milliseconds by which two clocks that go alike may differ: each is read in its own moment, and rounded."""


def now() -> int:
    """The time of this machine."""
    return time.time_ns() // 1_000_000


class Moment(NamedTuple):
    """A point in time by two clocks: one by which things wait, and one which people read."""

    steady: int
    wall: int


class Steady:
    """A clock that does not jump: what waits for an hour waits for an hour, whoever sets the machine's clock.

    It begins with the time of the machine, and goes on by itself.
    """

    def __init__(self, now: Now, tick: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._tick = tick
        self._start = now() - int(tick() * 1000)

    def __call__(self) -> int:
        """The time in milliseconds since 1970."""
        return self._start + int(self._tick() * 1000)

    def on_the_wall(self, at: int) -> int:
        """What the clock of the machine will show at a time of this one, unless it is set again."""
        ahead = self._now() - self()
        return at if abs(ahead) < _SAME else at + ahead


steady: Final = Steady(now)
"""The one of this program, by which its jobs wait."""
