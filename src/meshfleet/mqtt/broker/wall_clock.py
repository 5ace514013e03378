"""Converts between the monotonic clock of the process and the wall clock times in the database.

The broker measures time with a monotonic clock, which is only valid within one process. Persisted times are
wall clock times, and are converted to the monotonic clock of this process when they are loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DRIFT_MS: Final = 1000
"""If wall clock and monotonic clock drift apart by more milliseconds, the wall clock counts as set."""


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

    def convert_disconnect_time(self, wall_time: int | None) -> int:
        """Convert the persisted time of a disconnect to the monotonic clock.

        Return the present time instead of a time in the future. Return the present time also if `wall_time`
        is None: the client was connected when the service stopped.
        """
        now = self._monotonic()
        return now if wall_time is None else min(now, wall_time - self._measure_offset())

    def convert_expiry_time(self, wall_time: int | None) -> int | None:
        """Convert the persisted expiry time of a request to the monotonic clock. Return None for None.

        If more time remains than the maximum age of a request, the wall clock was set back, and the age of
        this request is unknown. Then return the present, so that the request is not delivered too late.
        """
        if wall_time is None:
            return None
        now = self._monotonic()
        expires_at = wall_time - self._measure_offset()
        return expires_at if expires_at - now <= self._max_age else now

    def detect_clock_change(self) -> bool:
        """Return whether the wall clock was set since the last call. If so, persisted times are wrong."""
        previous_offset, self._wall_offset = self._wall_offset, self._measure_offset()
        return abs(self._wall_offset - previous_offset) > _MAX_DRIFT_MS

    def _measure_offset(self) -> int:
        """Return how far the wall clock is ahead of the monotonic clock, in milliseconds."""
        return self._wall() - self._monotonic()
