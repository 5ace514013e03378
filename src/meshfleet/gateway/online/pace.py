"""How the time of the simulated world passes: with the wall clock, or by reports per second."""

from __future__ import annotations

import logging
import time
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from meshfleet.gateway.world.clock import Clock

_SMOOTHING: Final = 1.0
"""Seconds over which the speed of a world that follows a rate is measured."""


_log = logging.getLogger(__name__)

_TOLERABLE: Final = 0.2
"""Seconds that a world may be late before it is given up to catch up."""

_LEAP: Final = 10_000.0
"""Milliseconds between two looks at the wall clock that are too many to be lived through."""


def wall_millis() -> float:
    """The time on the wall."""
    return time.time_ns() / 1_000_000


class Turn(NamedTuple):
    """What may happen now."""

    until: float
    """Up to this moment."""
    reports: float
    """And so many reports."""


class Pace(Protocol):
    """How the world moves on."""

    def begin(self) -> None:
        """The world begins now."""

    def moment(self) -> float:
        """Which moment it is."""

    def turn(self, due: float, made: int) -> Turn:
        """What may happen now, when the next is due at a moment and so many reports were made."""

    def lived(self, moment: float) -> None:
        """The world has got so far."""

    def fall_behind(self, moment: float) -> None:
        """The world has got only so far: there is no time for more."""


class ByClock:
    """A second of the wall is `clock.speed` seconds of the world.

    Where the wall clock leaps, because somebody set it or the machine slept, the world goes on where it was.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest = 0.0
        self._seen = 0.0
        self._is_behind = False

    def begin(self) -> None:
        """The world begins now."""
        self._seen = wall_millis()
        self._clock.bend(0.0, self._seen, self._clock.speed)

    def moment(self) -> float:
        """Which moment it is; it never goes back."""
        if not self._seen:
            return 0.0  # it has not begun
        now = wall_millis()
        if not 0.0 <= now - self._seen <= _LEAP:
            self._clock.bend(self._latest, now, self._clock.speed)
        self._seen = now
        self._latest = max(self._latest, self._clock.moment(now))
        return self._latest

    def turn(self, _due: float, _made: int) -> Turn:
        """Everything up to now."""
        return Turn(self.moment(), inf)

    def lived(self, moment: float) -> None:
        """Nothing follows from that."""

    def fall_behind(self, moment: float) -> None:
        """Go on from there, so that nothing piles up. Whoever wanted more speed has to be told."""
        if self._clock.wall(self._latest - moment) < _TOLERABLE:
            return
        if not self._is_behind:
            _log.warning("this machine is too slow for a world at %g times the speed", self._clock.speed)
            self._is_behind = True
        self._latest = moment
        self._clock.bend(moment, wall_millis(), self._clock.speed)


class ByRate:
    """So many reports per second, whatever time that takes in the world."""

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._moment = 0.0
        self._began = 0.0
        self._mark = (0.0, 0.0)
        """A moment and the time on the wall then, from where the speed is measured."""

    def begin(self) -> None:
        """The world begins now."""
        self._began = wall_millis()
        self._mark = (0.0, self._began)

    def moment(self) -> float:
        """Which moment it is."""
        return self._moment

    def turn(self, due: float, made: int) -> Turn:
        """As many reports as are missing up to now; whatever happens, happens at this time on the wall."""
        now = wall_millis()
        moment, millis = self._mark
        if now - millis >= _SMOOTHING * 1000.0 and self._moment > moment:
            speed = (self._moment - moment) * 1000.0 / (now - millis)
            self._mark = (self._moment, now)
        else:
            speed = self._clock.speed
        self._clock.bend(due if due < inf else self._moment, now, speed)
        return Turn(inf, (now - self._began) * self._rate / 1000.0 - made)

    def lived(self, moment: float) -> None:
        """The world has got so far."""
        self._moment = moment

    def fall_behind(self, moment: float) -> None:
        """Nothing follows: what is missing is made up for in the next turns, if that is possible."""
