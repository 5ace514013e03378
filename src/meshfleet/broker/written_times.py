"""Times as they are written down.

The broker waits by a steady clock, which another process does not have. So what is written down is the time
of the clock on the wall, and is converted to the steady clock of this process when it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SAME: Final = 1000
"""Milliseconds by which the two clocks may drift apart before the one on the wall counts as set."""


class WrittenTimes:
    """Converts times of the steady clock to those that are written down, and back. All in milliseconds."""

    def __init__(self, *, steady: Callable[[], int], wall: Callable[[], int], max_age: float) -> None:
        """`max_age` is how many seconds a request may wait."""
        self._steady = steady
        self._wall = wall
        self._max_age = round(max_age * 1000)
        self._ahead = self._measure()

    def to_write(self, at: int | None) -> int | None:
        """Return what is written down for a time of the steady clock."""
        return None if at is None else at + self._measure()

    def left_at(self, written: int | None) -> int:
        """Return when a client left. It left now if it was connected until the service stopped."""
        now = self._steady()
        return now if written is None else min(now, written - self._measure())

    def until(self, written: int | None) -> int | None:
        """Return until when a message is wanted.

        A request with more time left than any request gets was written by a clock that has been set back
        since. Its age is unknown, and it must not be late: it is over now.
        """
        if written is None:
            return None
        now = self._steady()
        until = written - self._measure()
        return until if until - now <= self._max_age else now

    def is_wall_set(self) -> bool:
        """Whether the clock on the wall was set since the last call: what was written before is wrong."""
        before, self._ahead = self._ahead, self._measure()
        return abs(self._ahead - before) > _SAME

    def _measure(self) -> int:
        """Return by how much the clock on the wall is ahead."""
        return self._wall() - self._steady()
