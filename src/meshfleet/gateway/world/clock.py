"""Simulated seconds and the time on the wall.

Reports carry wall-clock time however fast the simulated world runs (gateway-42), so there is one place where
one becomes the other.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from meshfleet.wire.times import from_millis

if TYPE_CHECKING:
    from datetime import datetime


class Clock:
    """`origin` is the wall-clock time, in milliseconds since 1970, at simulated second 0."""

    __slots__ = ("_last", "_origin", "_since", "speed")

    def __init__(self, origin: int, speed: float = 1.0) -> None:
        if not speed > 0:
            raise ValueError("a world that does not move cannot be simulated")
        self._origin: float = origin
        self._since = 0.0
        self.speed = speed
        self._last = (nan, from_millis(0))

    def millis(self, t: float) -> int:
        """The wall-clock time of a simulated moment, in milliseconds."""
        return int(self._origin + (t - self._since) * 1000.0 / self.speed)

    def time(self, t: float) -> datetime:
        """The same as a time; most reports are made at the moment of the one before."""
        if self._last[0] != t:
            self._last = (t, from_millis(self.millis(t)))
        return self._last[1]

    def moment(self, millis: float) -> float:
        """The simulated moment of a wall-clock time."""
        return self._since + (millis - self._origin) * self.speed / 1000.0

    def wall(self, seconds: float) -> float:
        """How long simulated seconds last on the wall."""
        return seconds / self.speed

    def bend(self, t: float, millis: float, speed: float) -> None:
        """From this moment on, which is that time on the wall, run at another speed."""
        self._since, self._origin, self.speed = t, millis, speed
        self._last = (nan, self._last[1])
