"""Decides how fast simulated time advances: with the wall clock, or at a rate of reports per second."""

from __future__ import annotations

import logging
import time
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.clock import SimulatedClock

_SPEED_WINDOW_SECONDS: Final = 1.0
"""Minimum seconds over which `ReportRatePace` measures how fast simulated time advances."""

_log = logging.getLogger(__name__)

_MAX_LAG_SECONDS: Final = 0.2
"""A simulation at least this many seconds behind the wall clock continues late, without catching up."""

_CLOCK_JUMP_MS: Final = 10_000.0
"""If two readings differ by more milliseconds, the wall clock was set or the machine slept."""


def read_wall_clock_ms() -> float:
    """Return the wall-clock time as Unix time in milliseconds."""
    return time.time_ns() / 1_000_000


class StepBudget(NamedTuple):
    """Limits of one simulation step of a fleet."""

    until: float
    """Simulated time in seconds up to which the step runs."""
    reports: float
    """Maximum number of reports to create in the step."""


class SimulationPace(Protocol):
    """Decides how fast simulated time advances."""

    def start(self) -> None:
        """Start the simulated time now."""

    def now(self) -> float:
        """Return the current simulated time in seconds."""

    def seconds_until(self, moment: float) -> float:
        """Return the seconds of wall-clock time until the simulated time `moment`; 0 or less if it is due."""

    def limit_next_step(self, due: float, report_count: int) -> StepBudget:
        """Return the limits of the next simulation step. `due` is the simulated time of the next event."""

    def advance_to(self, moment: float) -> None:
        """Record that the simulation has reached the simulated time `moment`."""

    def fall_behind(self, moment: float) -> None:
        """Record that a step was stopped at simulated time `moment` because it took too long."""


class RealTimePace:
    """Advances simulated time by `clock.speed` seconds per second of wall-clock time.

    If the wall clock jumps, because it was set or the machine slept, the simulated time does not jump.
    """

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._latest = 0.0
        self._last_wall_ms = 0.0
        self._is_behind = False

    def start(self) -> None:
        """Start the simulated time now."""
        self._last_wall_ms = read_wall_clock_ms()
        self._clock.rebase(0.0, self._last_wall_ms, self._clock.speed)

    def now(self) -> float:
        """Return the current simulated time in seconds. It never decreases, and is 0 before the start."""
        if not self._last_wall_ms:
            return 0.0
        now = read_wall_clock_ms()
        if not 0.0 <= now - self._last_wall_ms <= _CLOCK_JUMP_MS:
            self._clock.rebase(self._latest, now, self._clock.speed)
        self._last_wall_ms = now
        self._latest = max(self._latest, self._clock.simulated_time(now))
        return self._latest

    def seconds_until(self, moment: float) -> float:
        """Return the seconds of wall-clock time until the simulated time `moment`."""
        return self._clock.wall_seconds(moment - self.now())

    def limit_next_step(self, _due: float, _report_count: int) -> StepBudget:
        """Limit the next simulation step to the current simulated time, without a limit on reports."""
        return StepBudget(self.now(), inf)

    def advance_to(self, moment: float) -> None:
        """Do nothing: the simulated time follows the wall clock."""

    def fall_behind(self, moment: float) -> None:
        """Continue from the simulated time `moment` if it is too far behind the wall clock.

        Log a warning the first time.
        """
        if self._clock.wall_seconds(self._latest - moment) < _MAX_LAG_SECONDS:
            return
        if not self._is_behind:
            _log.warning("this machine is too slow to simulate at %g times real time", self._clock.speed)
            self._is_behind = True
        self._latest = moment
        self._clock.rebase(moment, read_wall_clock_ms(), self._clock.speed)


class ReportRatePace:
    """Advances simulated time just fast enough to create `rate` reports per second of wall-clock time."""

    def __init__(self, clock: SimulatedClock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._now = 0.0
        self._started_ms = 0.0
        self._speed_base = (0.0, 0.0)
        """Simulated time in seconds and Unix time in milliseconds from which the speed is measured."""

    def start(self) -> None:
        """Start the simulated time now."""
        self._started_ms = read_wall_clock_ms()
        self._speed_base = (0.0, self._started_ms)

    def now(self) -> float:
        """Return the current simulated time in seconds."""
        return self._now

    def seconds_until(self, _moment: float) -> float:
        """Return 0: as many events are due as the rate says, whatever their time is."""
        return 0.0

    def limit_next_step(self, due: float, report_count: int) -> StepBudget:
        """Limit the next simulation step to the number of reports that are due by now.

        The next event, at the simulated time `due`, gets the current wall-clock time.
        """
        now = read_wall_clock_ms()
        moment, millis = self._speed_base
        if now - millis >= _SPEED_WINDOW_SECONDS * 1000.0 and self._now > moment:
            speed = (self._now - moment) * 1000.0 / (now - millis)
            self._speed_base = (self._now, now)
        else:
            speed = self._clock.speed
        self._clock.rebase(due if due < inf else self._now, now, speed)
        return StepBudget(inf, (now - self._started_ms) * self._rate / 1000.0 - report_count)

    def advance_to(self, moment: float) -> None:
        """Record that the simulation has reached the simulated time `moment`."""
        self._now = moment

    def fall_behind(self, moment: float) -> None:
        """Do nothing: later simulation steps create the missing reports if possible."""
