"""What will happen when, in simulated seconds. Nobody waits here: whoever has the time runs what is due."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Deed = Callable[[float], None]
    """Gets the moment for which it was planned."""


class Agenda:
    """Deeds in the order of their time; those of the same moment in the order in which they were planned."""

    __slots__ = ("_deeds", "_order", "now")

    def __init__(self) -> None:
        self._deeds: list[tuple[float, int, Deed]] = []
        self._order = count()
        self.now = 0.0
        """The moment that is being lived."""

    def at(self, t: float, deed: Deed) -> None:
        """Plan a deed; what should have happened already happens now."""
        heappush(self._deeds, (max(t, self.now), next(self._order), deed))

    def after(self, seconds: float, deed: Deed) -> None:
        """Plan a deed for later."""
        self.at(self.now + seconds, deed)

    @property
    def due(self) -> float:
        """When the next deed is due."""
        return self._deeds[0][0] if self._deeds else inf

    def run(self, until: float) -> None:
        """Live up to a moment."""
        deeds = self._deeds
        while deeds and deeds[0][0] <= until:
            t, _, deed = heappop(deeds)
            self.now = t
            deed(t)
        self.now = max(self.now, until)
