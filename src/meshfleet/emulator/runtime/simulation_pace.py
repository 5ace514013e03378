"""How the time of the simulated world passes: with the wall clock, or by reports per second."""

from __future__ import annotations

import logging
import time
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.clock import SimulatedClock

_SPEED_WINDOW_SECONDS: Final = 1.0
"""Seconds over which the speed of a world that follows a rate is measured."""


_log = logging.getLogger(__name__)

_MAX_LAG_SECONDS: Final = 0.2
"""Seconds that a world may be late before it is given up to catch up."""

_CLOCK_JUMP_MS: Final = 10_000.0
"""Milliseconds between two looks at the wall clock that are too many to be lived through."""


def read_wall_clock_ms() -> float:
    """The time on the wall."""
    return time.time_ns() / 1_000_000


class StepBudget(NamedTuple):
    """What may happen now."""

    until: float
    """Up to this moment."""
    reports: float
    """And so many reports."""


class SimulationPace(Protocol):
    """How the world moves on."""

    def start(self) -> None:
        """The world begins now."""

    def now(self) -> float:
        """Which moment it is."""

    def next_step(self, due: float, made: int) -> StepBudget:
        """What may happen now, when the next is due at a moment and so many reports were made."""

    def advance_to(self, moment: float) -> None:
        """The world has got so far."""

    def fall_behind(self, moment: float) -> None:
        """The world has got only so far: there is no time for more."""


class RealTimePace:
    """A second of the wall is `clock.speed` seconds of the world.

    Where the wall clock leaps, because somebody set it or the machine slept, the world goes on where it was.
    """

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._latest = 0.0
        self._last_wall_ms = 0.0
        self._is_behind = False

    def start(self) -> None:
        """The world begins now."""
        self._last_wall_ms = read_wall_clock_ms()
        self._clock.rebase(0.0, self._last_wall_ms, self._clock.speed)

    def now(self) -> float:
        """Which moment it is; it never goes back."""
        if not self._last_wall_ms:
            return 0.0  # it has not begun
        now = read_wall_clock_ms()
        if not 0.0 <= now - self._last_wall_ms <= _CLOCK_JUMP_MS:
            self._clock.rebase(self._latest, now, self._clock.speed)
        self._last_wall_ms = now
        self._latest = max(self._latest, self._clock.simulated_time(now))
        return self._latest

    def next_step(self, _due: float, _made: int) -> StepBudget:
        """Everything up to now."""
        return StepBudget(self.now(), inf)

    def advance_to(self, moment: float) -> None:
        """Nothing follows from that."""

    def fall_behind(self, moment: float) -> None:
        """Go on from there, so that nothing piles up. Whoever wanted more speed has to be told."""
        if self._clock.wall_seconds(self._latest - moment) < _MAX_LAG_SECONDS:
            return
        if not self._is_behind:
            _log.warning("this machine is too slow for a world at %g times the speed", self._clock.speed)
            self._is_behind = True
        self._latest = moment
        self._clock.rebase(moment, read_wall_clock_ms(), self._clock.speed)


class ReportRatePace:
    """So many reports per second, whatever time that takes in the world."""

    def __init__(self, clock: SimulatedClock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._moment = 0.0
        self._began = 0.0
        self._mark = (0.0, 0.0)
        """A moment and the time on the wall then, from where the speed is measured."""

    def start(self) -> None:
        """The world begins now."""
        self._began = read_wall_clock_ms()
        self._mark = (0.0, self._began)

    def now(self) -> float:
        """Which moment it is."""
        return self._moment

    def next_step(self, due: float, made: int) -> StepBudget:
        """As many reports as are missing up to now; whatever happens, happens at this time on the wall."""
        now = read_wall_clock_ms()
        moment, millis = self._mark
        if now - millis >= _SPEED_WINDOW_SECONDS * 1000.0 and self._moment > moment:
            speed = (self._moment - moment) * 1000.0 / (now - millis)
            self._mark = (self._moment, now)
        else:
            speed = self._clock.speed
        self._clock.rebase(due if due < inf else self._moment, now, speed)
        return StepBudget(inf, (now - self._began) * self._rate / 1000.0 - made)

    def advance_to(self, moment: float) -> None:
        """The world has got so far."""
        self._moment = moment

    def fall_behind(self, moment: float) -> None:
        """Nothing follows: what is missing is made up for in the next turns, if that is possible."""
