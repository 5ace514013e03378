"""Schedules the checks whether gaps are filled, and counts the gaps in all series of samples."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.service.backfill.series import SeriesKey, SeriesState


_MAX_ADVANCED: Final = 2_000
"""Maximum number of due series that one call of `GapCheckSchedule.advance` queues."""


class DueSeries(NamedTuple):
    """Series with a gap whose check is due."""

    key: SeriesKey
    gateway: int
    """Gateway in whose turn the series is checked: the one that last sent a sample of the series."""


class GapCheckSchedule:
    """Schedules the gap checks of series, and lets gateways take turns with their due checks.

    Times are Unix times in milliseconds.
    """

    def __init__(self) -> None:
        self._due_at: dict[SeriesKey, int] = {}
        """Time of the scheduled check, by series."""
        self._future: list[tuple[int, SeriesKey, int]] = []
        """Heap of (time, series, gateway) of checks that are not due yet; replaced entries are skipped."""
        self._due_by_gateway: dict[int, deque[SeriesKey]] = {}
        """Due series by gateway; the gateway whose turn is next comes first."""
        self._advanced_to = 0
        """Time up to which due checks have been queued."""

    def __len__(self) -> int:
        """Return the number of series with a scheduled gap check."""
        return len(self._due_at)

    def schedule(self, key: SeriesKey, gateway: int, at: int | None) -> None:
        """Schedule the gap check of a series at the time `at`, unless an earlier check is scheduled.

        Do nothing if `at` is None. `gateway` is the gateway in whose turn the series is checked.
        """
        if at is not None and at < self._due_at.get(key, at + 1):
            self._due_at[key] = at
            if at <= self._advanced_to:
                self._queue_check(key, gateway)
            else:
                heappush(self._future, (at, key, gateway))

    def remove(self, key: SeriesKey) -> None:
        """Cancel the gap check of a series."""
        self._due_at.pop(key, None)

    def clear(self) -> None:
        """Cancel all gap checks."""
        self._due_at.clear()
        self._future.clear()
        self._due_by_gateway.clear()
        self._advanced_to = 0

    def advance(self, now: int) -> None:
        """Queue the series whose gap check is due at `now`, at most 2000 of them."""
        self._advanced_to = now
        for _ in range(_MAX_ADVANCED):
            if not self._future or self._future[0][0] > now:
                return
            at, key, gateway = heappop(self._future)
            if self._due_at.get(key) == at:
                self._queue_check(key, gateway)

    def pop_due(self) -> DueSeries | None:
        """Remove and return the next series with a due gap check. Return None if no check is due."""
        while self._due_by_gateway:
            gateway = next(iter(self._due_by_gateway))
            keys = self._due_by_gateway.pop(gateway)
            key = keys.popleft()
            if keys:
                self._due_by_gateway[gateway] = keys  # its next turn is after all other gateways
            if self._due_at.pop(key, None) is not None:
                return DueSeries(key, gateway)
        return None

    def _queue_check(self, key: SeriesKey, gateway: int) -> None:
        """Queue the due check of a series for the next turn of a gateway."""
        self._due_by_gateway.setdefault(gateway, deque()).append(key)


class GapIndex:
    """Counts open gaps, lost gaps, and series that are no longer checked for gaps."""

    def __init__(self) -> None:
        self._counts: dict[SeriesKey, tuple[int, int, bool]] = {}
        """Open gaps, lost gaps, and whether gap checks have ended, by series; only series that count."""
        self.open = 0
        self.lost = 0
        self.unchecked = 0

    def __iter__(self) -> Iterator[SeriesKey]:
        """Iterate over the counted series: those with gaps, and those no longer checked for gaps."""
        return iter(self._counts)

    def __len__(self) -> int:
        """Return the number of counted series: those with gaps, and those no longer checked for gaps."""
        return len(self._counts)

    def update(self, key: SeriesKey, series: SeriesState | None) -> None:
        """Count a series again after its gaps changed. `series` is None if the series was removed."""
        self._add_counts(self._counts.pop(key, (0, 0, False)), -1)
        if series is not None and (series.gaps or not series.is_gap_checked):
            gaps = series.gaps or ()
            lost = sum(gap.lost_at is not None for gap in gaps)
            counts = self._counts[key] = len(gaps) - lost, lost, not series.is_gap_checked
            self._add_counts(counts, 1)

    def _add_counts(self, counts: tuple[int, int, bool], sign: int) -> None:
        """Add the counts of a series to the totals, or subtract them if `sign` is -1."""
        self.open += sign * counts[0]
        self.lost += sign * counts[1]
        self.unchecked += sign * counts[2]
