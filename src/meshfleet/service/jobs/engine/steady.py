"""A clock that does not jump: what waits for an hour waits for an hour, whoever sets the machine's clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.service.clock import Now


class Moment(NamedTuple):
    """A point in time by two clocks: one by which things wait, and one which people read."""

    steady: int
    wall: int


class Steady:
    """Begins with the time of the machine, and goes on by itself."""

    def __init__(self, now: Now, tick: Callable[[], float] = time.monotonic) -> None:
        self._tick = tick
        self._start = now() - int(tick() * 1000)

    def __call__(self) -> int:
        """The time in milliseconds since 1970."""
        return self._start + int(self._tick() * 1000)
