"""Simulated seconds and the time on the wall.

Reports carry wall-clock time however fast the simulated world runs (gateway-42), so there is one place where
one becomes the other.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf, nan
from typing import TYPE_CHECKING

from meshfleet.protocol.times import from_millis

if TYPE_CHECKING:
    from datetime import datetime


# What will happen when, in simulated seconds. Nobody waits here: whoever has the time runs what is due.

if TYPE_CHECKING:
    from collections.abc import Callable

    ScheduledCallback = Callable[[float], None]
    """Gets the moment for which it was planned."""


class SimulationScheduler:
    """Deeds in the order of their time; those of the same moment in the order in which they were planned."""

    __slots__ = ("_callbacks", "_order", "now")

    def __init__(self) -> None:
        self._callbacks: list[tuple[float, int, ScheduledCallback]] = []
        self._order = count()
        self.now = 0.0
        """The moment that is being lived."""

    def at(self, t: float, callback: ScheduledCallback) -> None:
        """Plan a deed; what should have happened already happens now."""
        heappush(self._callbacks, (max(t, self.now), next(self._order), callback))

    def after(self, seconds: float, callback: ScheduledCallback) -> None:
        """Plan a deed for later."""
        self.at(self.now + seconds, callback)

    @property
    def next_due(self) -> float:
        """When the next deed is due."""
        return self._callbacks[0][0] if self._callbacks else inf

    def run(self, until: float) -> None:
        """Live up to a moment."""
        deeds = self._callbacks
        while deeds and deeds[0][0] <= until:
            t, _, deed = heappop(deeds)
            self.now = t
            deed(t)
        self.now = max(self.now, until)


class SimulatedClock:
    """`origin` is the wall-clock time, in milliseconds since 1970, at simulated second 0."""

    __slots__ = ("_last", "_origin", "_since", "speed")

    def __init__(self, origin: int, speed: float = 1.0) -> None:
        if not speed > 0:
            raise ValueError("a world that does not move cannot be simulated")
        self._origin: float = origin
        self._since = 0.0
        self.speed = speed
        self._last = (nan, from_millis(0))

    def wall_millis(self, t: float) -> int:
        """The wall-clock time of a simulated moment, in milliseconds."""
        return int(self._origin + (t - self._since) * 1000.0 / self.speed)

    def wall_time(self, t: float) -> datetime:
        """The same as a time; most reports are made at the moment of the one before."""
        if self._last[0] != t:
            self._last = (t, from_millis(self.wall_millis(t)))
        return self._last[1]

    def simulated_time(self, millis: float) -> float:
        """The simulated moment of a wall-clock time."""
        return self._since + (millis - self._origin) * self.speed / 1000.0

    def wall_seconds(self, seconds: float) -> float:
        """How long simulated seconds last on the wall."""
        return seconds / self.speed

    def rebase(self, t: float, millis: float, speed: float) -> None:
        """From this moment on, which is that time on the wall, run at another speed."""
        self._since, self._origin, self.speed = t, millis, speed
        self._last = (nan, self._last[1])
