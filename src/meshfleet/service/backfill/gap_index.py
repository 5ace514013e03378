"""The series that have holes, and how many there are: nobody has to go through all of them to tell."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.service.backfill.series import SeriesKey, SeriesState


# When series with holes are to be looked at, and in whose turn.

_MAX_ADVANCED: Final = 2_000
"""Series whose time may come in one go; others of that moment have to wait for the next."""


class CheckSchedule:
    """Knows who is due. A series that was put somewhere else since is passed over."""

    def __init__(self) -> None:
        self._due_at: dict[SeriesKey, int] = {}
        self._future: list[tuple[int, SeriesKey, int]] = []
        """A heap: when, what, and whose."""
        self._due_by_gateway: dict[int, deque[SeriesKey]] = {}
        """What is due, by whose it is, in the order of their turns."""
        self._advanced_to = 0

    def __len__(self) -> int:
        """How many series are to be looked at."""
        return len(self._due_at)

    def schedule(self, key: SeriesKey, gateway: int, at: int | None) -> None:
        """Look at a series at that moment, if not sooner; None: not at all."""
        if at is not None and at < self._due_at.get(key, at + 1):
            self._due_at[key] = at
            if at <= self._advanced_to:
                self._queue(key, gateway)
            else:
                heappush(self._future, (at, key, gateway))

    def remove(self, key: SeriesKey) -> None:
        """A series need not be looked at any more."""
        self._due_at.pop(key, None)

    def clear(self) -> None:
        """Look at nothing any more."""
        self._due_at.clear()
        self._future.clear()
        self._due_by_gateway.clear()
        self._advanced_to = 0

    def advance(self, now: int) -> None:
        """Let those whose time has come wait for their turn."""
        self._advanced_to = now
        for _ in range(_MAX_ADVANCED):
            if not self._future or self._future[0][0] > now:
                return
            at, key, owner = heappop(self._future)
            if self._due_at.get(key) == at:
                self._queue(key, owner)

    def pop_due(self) -> tuple[SeriesKey, int] | None:
        """Take out the next, and whose it is; None: nobody is due."""
        while self._due_by_gateway:
            owner = next(iter(self._due_by_gateway))
            keys = self._due_by_gateway.pop(owner)
            key = keys.popleft()
            if keys:
                self._due_by_gateway[owner] = keys  # behind all others
            if self._due_at.pop(key, None) is not None:
                return key, owner
        return None

    def _queue(self, key: SeriesKey, owner: int) -> None:
        self._due_by_gateway.setdefault(owner, deque()).append(key)


class GapIndex:
    """Counts holes, and series that are not gap-checked."""

    def __init__(self) -> None:
        self._counted: dict[SeriesKey, tuple[int, int, bool]] = {}
        self.open = 0
        self.lost = 0
        self.unchecked = 0

    def __iter__(self) -> Iterator[SeriesKey]:
        """Those that have holes."""
        return iter(self._counted)

    def __len__(self) -> int:
        """How many they are."""
        return len(self._counted)

    def update(self, key: SeriesKey, series: SeriesState | None) -> None:
        """The holes of a series have changed; None: it is gone."""
        self._add(self._counted.pop(key, (0, 0, False)), -1)
        if series is not None and (series.gaps or not series.is_gap_checked):
            holes = series.gaps or ()
            lost = sum(hole.lost_at is not None for hole in holes)
            counted = self._counted[key] = len(holes) - lost, lost, not series.is_gap_checked
            self._add(counted, 1)

    def _add(self, counted: tuple[int, int, bool], sign: int) -> None:
        self.open += sign * counted[0]
        self.lost += sign * counted[1]
        self.unchecked += sign * counted[2]
