"""Converts between the monotonic clock of the process and the wall clock times in the database.

The broker measures time with a monotonic clock, which is only valid within one process. Persisted times are
wall clock times, and are converted to the monotonic clock of this process when they are loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DRIFT_MS: Final = 1000
"""Milliseconds of drift between wall clock and monotonic clock beyond which the wall clock counts as set."""


class WallClockConverter:
    """Converts between monotonic times and persisted wall clock times, all in milliseconds."""

    def __init__(
        self, *, monotonic_clock: Callable[[], int], wall_clock: Callable[[], int], request_max_age: float
    ) -> None:
        """Both clocks return milliseconds; `request_max_age` is in seconds."""
        self._monotonic = monotonic_clock
        self._wall = wall_clock
        self._max_age = round(request_max_age * 1000)
        self._wall_offset = self._measure_offset()

    def to_wall_time(self, monotonic_time: int | None) -> int | None:
        """Convert a time of the monotonic clock to the wall clock, for the database. Return None for None."""
        return None if monotonic_time is None else monotonic_time + self._measure_offset()

    def disconnect_time_from_wall(self, wall_time: int | None) -> int:
        """Convert the persisted time of a disconnect to the monotonic clock, but not to a time in the future.

        Return the present time if `wall_time` is None: the client was connected when the service stopped.
        """
        now = self._monotonic()
        return now if wall_time is None else min(now, wall_time - self._measure_offset())

    def expiry_from_wall(self, wall_time: int | None) -> int | None:
        """Convert a persisted expiry time to the monotonic clock. Return None if the message does not expire.

        If more time remains than any request may wait, the wall clock was set back and the age of the request
        is unknown. Return the present time, so that the request expires: no request may be delivered late.
        """
        if wall_time is None:
            return None
        now = self._monotonic()
        expires_at = wall_time - self._measure_offset()
        return expires_at if expires_at - now <= self._max_age else now

    def detect_clock_change(self) -> bool:
        """Return whether the wall clock was set since the last call, which makes persisted times wrong."""
        previous_offset, self._wall_offset = self._wall_offset, self._measure_offset()
        return abs(self._wall_offset - previous_offset) > _MAX_DRIFT_MS

    def _measure_offset(self) -> int:
        """Return how far the wall clock is ahead of the monotonic clock, in milliseconds."""
        return self._wall() - self._monotonic()
