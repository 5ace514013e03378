"""Times as they are written down.

The broker waits by a steady clock, which another process does not have. So what is written down is the time
of the clock on the wall, and is converted to the steady clock of this process when it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DRIFT_MS: Final = 1000
"""Milliseconds by which the two clocks may drift apart before the one on the wall counts as set."""


class WallClockConverter:
    """Converts times of the steady clock to those that are written down, and back. All in milliseconds."""

    def __init__(
        self, *, steady_clock: Callable[[], int], wall_clock: Callable[[], int], request_max_age: float
    ) -> None:
        """`max_age` is how many seconds a request may wait."""
        self._steady = steady_clock
        self._wall = wall_clock
        self._max_age = round(request_max_age * 1000)
        self._wall_offset = self._measure_offset()

    def to_wall_time(self, at: int | None) -> int | None:
        """Return what is written down for a time of the steady clock."""
        return None if at is None else at + self._measure_offset()

    def disconnect_time_from_wall(self, written: int | None) -> int:
        """Return when a client left. It left now if it was connected until the service stopped."""
        now = self._steady()
        return now if written is None else min(now, written - self._measure_offset())

    def expiry_from_wall(self, written: int | None) -> int | None:
        """Return until when a message is wanted.

        A request with more time left than any request gets was written by a clock that has been set back
        since. Its age is unknown, and it must not be late: it is over now.
        """
        if written is None:
            return None
        now = self._steady()
        until = written - self._measure_offset()
        return until if until - now <= self._max_age else now

    def detect_clock_change(self) -> bool:
        """Whether the clock on the wall was set since the last call: what was written before is wrong."""
        before, self._wall_offset = self._wall_offset, self._measure_offset()
        return abs(self._wall_offset - before) > _MAX_DRIFT_MS

    def _measure_offset(self) -> int:
        """Return by how much the clock on the wall is ahead."""
        return self._wall() - self._steady()
