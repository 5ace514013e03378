"""A series: the samples of one kind and identifier of one device, which are counted by `seq`.

`seq` tells whether one is missing between two: it goes up by one, and begins again after 255 (report-38).
What is missing is a hole. A device that is asked for it sends it out of order, the newest first; so whether a
hole is filled is found out by looking at the samples that are stored, in the order of their times.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Key: TypeAlias = tuple[int, int, int]
"""Which series: the device, the kind and the identifier."""

CYCLE: Final = 256
"""How many numbers `seq` has."""
_HOLES: Final = 32
"""How many a series may have; beyond that the two oldest are taken for one."""

_TRUSTED: Final = 3
"""Holes in turn that never fill, after which nobody believes that `seq` counts samples (ack-16)."""

_PATIENCE: Final = 60_000
"""Milliseconds between two acks with backfill (ack-12), at first; each time that it helps nothing, twice as
many."""
_LONGEST: Final = 3_600_000

_EXPECTED: Final = 3_600_000
"""Milliseconds after which nobody expects the rest of a hole any more, if nothing came."""


_QUIET: Final = 2_000
_BUSY: Final = 10_000
_NOW_AND_THEN: Final = 60_000
"""Milliseconds until a hole is looked at: after the last of what came, after the first, and without any."""


class Hole(Struct, gc=False):
    """Samples are missing between the times of two that are there."""

    since: int
    until: int
    found_at: int
    touched_at: int = 0
    """When something came that belongs in there."""
    checked_at: int = 0
    """When it was last looked up what is stored."""
    lost_at: int | None = None
    """Since when nobody expects the rest any more. If it comes all the same, the hole is filled."""

    def is_over(self, now: int) -> bool:
        """Whether nobody has reason to expect the rest."""
        return now - max(self.found_at, self.touched_at) >= _EXPECTED

    def is_due(self, now: int) -> bool:
        """Whether to look up what is stored: soon after something came, and now and then."""
        since = now - (self.checked_at or self.found_at)
        if self.touched_at > self.checked_at:
            return now - self.touched_at >= _QUIET or since >= _BUSY
        return self.lost_at is None and since >= (_NOW_AND_THEN if self.checked_at else _BUSY)


class Series(Struct, gc=False):
    """What is remembered of a series."""

    time: int
    """Of the newest sample, in milliseconds."""
    seq: int
    asked_at: int = 0
    """When a backfill was last asked for, or when it began, if it began since our start."""
    wait: int = _PATIENCE
    """Milliseconds until the next for the same hole; 0: none was ever asked for."""
    unfilled: int = 0
    """How many holes in turn never filled."""
    holes: list[Hole] | None = None

    @property
    def is_checked(self) -> bool:
        """Whether its holes mean anything (ack-16)."""
        return self.unfilled < _TRUSTED

    @property
    def complete_up_to(self) -> int | None:
        """Up to when no sample is missing; None: nobody knows (ack-15)."""
        if not self.is_checked:
            return None
        return min([hole.since for hole in self.holes]) if self.holes else self.time

    def go_on(self, time: int, seq: int, now: int) -> bool:
        """The newest sample came; tells whether one before it is missing."""
        missing = (seq - self.seq) % CYCLE != 1 and self.is_checked
        if missing:
            self.holes = _folded([*(self.holes or ()), Hole(self.time, time, now)])
            self.wait = min(self.wait, _PATIENCE)  # that another one does not fill is not its fault
        self.time, self.seq = time, seq
        return missing

    def touch(self, time: int, now: int) -> bool:
        """An older sample came; tells whether it belongs into a hole."""
        for hole in self.holes or ():
            if hole.since < time < hole.until:
                hole.touched_at = now
                return True
        return False

    def wants_backfill(self, outage: int, now: int) -> bool:
        """Whether to ask for what is missing: after an outage once, for a hole again and again (ack-11)."""
        waited = now - self.asked_at
        if self.asked_at < outage and waited >= min(self.wait, _PATIENCE):
            return True
        return waited >= self.wait and self.is_checked and self.is_waiting

    def ask(self, now: int) -> None:
        """A backfill is asked for."""
        self.wait = min(max(2 * self.wait, _PATIENCE), _LONGEST) if self.holes else _PATIENCE
        self.asked_at = now

    @property
    def is_waiting(self) -> bool:
        """Whether there is a hole of which the rest is expected."""
        return any(hole.lost_at is None for hole in self.holes or ())

    @property
    def is_open(self) -> bool:
        """Whether there is a hole that may be about to be filled, be it expected or not."""
        return any(hole.lost_at is None or hole.touched_at > hole.checked_at for hole in self.holes or ())

    def replace(self, hole: Hole, left: Iterable[tuple[int, int]], now: int) -> None:
        """What is left of a hole, by the samples that were stored at a moment."""
        rest = [
            Hole(since, until, hole.found_at, hole.touched_at, now, hole.lost_at) for since, until in left
        ]
        others = [each for each in self.holes or () if each is not hole]
        if not rest:
            rest = self._unseen([hole, *others], now)
            self.unfilled, self.wait = 0, min(self.wait, _PATIENCE)
        elif hole.lost_at is None and hole.is_over(now):  # the device has had its chances
            self.unfilled += 1
            for each in rest:
                each.lost_at = now
        self.holes = _folded([*others, *rest]) or None

    def forget(self, hole: Hole) -> None:
        """A hole is too old to matter. That tells nothing of whether `seq` counts."""
        self.holes = [each for each in self.holes or () if each is not hole] or None

    def _unseen(self, holes: Iterable[Hole], now: int) -> list[Hole]:
        """What came while nobody believed `seq`: as soon as that is over it has to be looked at."""
        since = max(each.until for each in holes)
        return [] if self.is_checked or since >= self.time else [Hole(since, self.time, now)]


def gaps(samples: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The holes between samples, given as times and `seq` in the order of time."""
    before: tuple[int, int] | None = None
    for time, seq in samples:
        if before is not None and (seq - before[1]) % CYCLE != 1:
            yield before[0], time
        before = time, seq


def _since(hole: Hole) -> int:
    return hole.since


def _folded(holes: list[Hole]) -> list[Hole]:
    """In the order of time, and no more of them than there may be: the oldest are taken for one."""
    ordered = sorted(holes, key=_since)
    surplus = len(ordered) - _HOLES
    return ordered if surplus <= 0 else [reduce(_joined, ordered[: surplus + 1]), *ordered[surplus + 1 :]]


def _joined(one: Hole, other: Hole) -> Hole:
    lost_at = None if one.lost_at is None or other.lost_at is None else other.lost_at
    touched_at, checked_at = max(one.touched_at, other.touched_at), min(one.checked_at, other.checked_at)
    return Hole(one.since, other.until, one.found_at, touched_at, checked_at, lost_at)
