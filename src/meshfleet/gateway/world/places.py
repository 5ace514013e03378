"""Where something stands, and what stands between."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple


class Place(NamedTuple):
    """Where something stands."""

    floor: int
    x: float
    y: float


class Walls(NamedTuple):
    """Walls run along whole floors, at these x and at these y; both ascend."""

    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()

    def between(self, a: Place, b: Place) -> int:
        """How many stand between two places."""
        return abs(bisect_left(self.x, a.x) - bisect_left(self.x, b.x)) + abs(
            bisect_left(self.y, a.y) - bisect_left(self.y, b.y)
        )
