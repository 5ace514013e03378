"""Simulated time in seconds: scheduler of callbacks, and conversion to wall-clock time.

Reports contain wall-clock times at any speed of the simulation (gateway-42). Only `SimulatedClock` converts
between simulated time and wall-clock time.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf, nan
from typing import TYPE_CHECKING

from meshfleet.protocol.times import from_millis

if TYPE_CHECKING:
    from datetime import datetime


# Scheduled callbacks, in simulated seconds. Nothing waits here: the owner of the simulation calls `run`.

if TYPE_CHECKING:
    from collections.abc import Callable

    ScheduledCallback = Callable[[float], None]
    """Function that is called with the simulated time in seconds for which it was scheduled."""


class SimulationScheduler:
    """Queue of callbacks by simulated time; callbacks with equal time run in the order of scheduling."""

    __slots__ = ("_callbacks", "_order", "now")

    def __init__(self) -> None:
        self._callbacks: list[tuple[float, int, ScheduledCallback]] = []
        self._order = count()
        self.now = 0.0
        """Current simulated time in seconds; during `run`, the time of the running callback."""

    def at(self, sim_time: float, callback: ScheduledCallback) -> None:
        """Schedule a callback at a simulated time in seconds, or now if that time has passed."""
        heappush(self._callbacks, (max(sim_time, self.now), next(self._order), callback))

    def after(self, seconds: float, callback: ScheduledCallback) -> None:
        """Schedule a callback in this number of simulated seconds from now."""
        self.at(self.now + seconds, callback)

    @property
    def next_due(self) -> float:
        """Simulated time in seconds of the next callback; infinite if there is none."""
        return self._callbacks[0][0] if self._callbacks else inf

    def run(self, until: float) -> None:
        """Run all callbacks up to the simulated time `until`, including callbacks scheduled meanwhile."""
        callbacks = self._callbacks
        while callbacks and callbacks[0][0] <= until:
            sim_time, _, callback = heappop(callbacks)
            self.now = sim_time
            callback(sim_time)
        self.now = max(self.now, until)


class SimulatedClock:
    """Converts between simulated and wall-clock time.

    `origin` is the wall-clock time at simulated second 0, as Unix time in milliseconds. `speed` is the number
    of simulated seconds per second.
    """

    __slots__ = ("_base_millis", "_base_time", "_cached_time", "speed")

    def __init__(self, origin: int, speed: float = 1.0) -> None:
        if not speed > 0:
            raise ValueError("the speed of a simulation must be more than 0")
        self._base_millis: float = origin
        self._base_time = 0.0
        self.speed = speed
        self._cached_time = (nan, from_millis(0))

    def wall_millis(self, sim_time: float) -> int:
        """Convert a simulated time in seconds to Unix time in milliseconds."""
        return int(self._base_millis + (sim_time - self._base_time) * 1000.0 / self.speed)

    def wall_time(self, sim_time: float) -> datetime:
        """Convert a simulated time in seconds to a wall-clock `datetime`. The last result is cached."""
        if self._cached_time[0] != sim_time:
            self._cached_time = (sim_time, from_millis(self.wall_millis(sim_time)))
        return self._cached_time[1]

    def simulated_time(self, millis: float) -> float:
        """Convert a Unix time in milliseconds to a simulated time in seconds."""
        return self._base_time + (millis - self._base_millis) * self.speed / 1000.0

    def wall_seconds(self, seconds: float) -> float:
        """Convert a duration in simulated seconds to wall-clock seconds."""
        return seconds / self.speed

    def rebase(self, sim_time: float, millis: float, speed: float) -> None:
        """Set the Unix time in milliseconds of a simulated time in seconds, and the speed from then on."""
        self._base_time, self._base_millis, self.speed = sim_time, millis, speed
        self._cached_time = (nan, self._cached_time[1])
