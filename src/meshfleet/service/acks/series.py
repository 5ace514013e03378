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

PATIENCE: Final = 60_000
"""Milliseconds between two acks with backfill (ack-12), at first; each time that it helps nothing, twice as
many."""
_LONGEST: Final = 3_600_000

_EXPECTED: Final = 3_600_000
"""Milliseconds after which nobody expects the rest of a hole any more, if nothing came."""

_FRESH: Final = 60_000
"""Milliseconds that a sample may be old to tell how late it is."""

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
    untold: int = 0
    """How many came that belong in there, and were not yet among what was looked up."""

    def is_over(self, now: int) -> bool:
        """Whether nobody has reason to expect the rest."""
        return now - max(self.found_at, self.touched_at) >= _EXPECTED

    @property
    def due_at(self) -> int | None:
        """When to look up what is stored: soon after something came, and now and then; None: not at all."""
        before = self.checked_at or self.found_at
        if self.untold:
            return min(self.touched_at + _QUIET, before + _BUSY)
        if self.lost_at is not None:
            return None
        return before + (_NOW_AND_THEN if self.checked_at else _BUSY)

    def is_due(self, now: int) -> bool:
        """Whether to look up what is stored."""
        due_at = self.due_at
        return due_at is not None and due_at <= now


class Series(Struct, gc=False):
    """What is remembered of a series."""

    time: int
    """Of the newest sample, in milliseconds."""
    seq: int
    asked_at: int = 0
    """When a backfill was last asked for, or when it began, if it began since our start."""
    wait: int = PATIENCE
    """Milliseconds until the next for the same hole; 0: none was ever asked for."""
    unfilled: int = 0
    """How many holes in turn never filled."""
    holes: list[Hole] | None = None
    sure: int = 0
    """Of the first sample, or of a later one that is not ahead of our clock."""
    soon: int = 0
    """Of one that is ahead: as soon as its time has come, it is the one."""
    in_order: int = 0
    """How many came in turn, each with the next `seq`, while nobody believed it."""

    def __post_init__(self) -> None:
        """Begin with what is there."""
        self.sure = self.sure or self.time

    @property
    def is_checked(self) -> bool:
        """Whether its holes mean anything (ack-16)."""
        return self.unfilled < _TRUSTED

    def go_on(self, time: int, seq: int, now: int) -> bool:
        """The newest sample came; tells whether one before it is missing."""
        missing = (seq - self.seq) % CYCLE != 1 and self.is_checked
        if missing:
            self._miss(self.time, time, now)
        self._reach(time, seq, now)
        return missing

    def is_set_back(self, time: int, seq: int, now: int) -> bool:
        """Whether an older sample is newer all the same: what came before it was ahead of its time."""
        return self.time > now and time > now - _FRESH and is_ahead(seq, self.seq)

    def go_back(self, time: int, seq: int, now: int) -> bool:
        """The newest sample came, of a clock that was set back; tells whether one before it is missing.

        Nobody knows when those were made that are missing further ahead: somewhere since we were sure.
        """
        edge = min(self.sure, time)
        within = [hole for hole in self.holes or () if hole.until > edge]
        missing = (seq - self.seq) % CYCLE != 1 and self.is_checked
        missing = missing or any(hole.until > time for hole in within)
        if missing:
            since = min([edge, *(hole.since for hole in within)])
            self.holes = [hole for hole in self.holes or () if hole not in within] or None
            if since < time:
                self._miss(since, time, now)
        self.soon = 0
        self._reach(time, seq, now)
        return missing

    def heal(self, seq: int, now: int) -> bool:
        """The next is counted so; tells whether that makes the series trusted again (ack-26).

        What came while nobody believed it is not known to be complete, and nobody expects more of it.
        """
        self.in_order = self.in_order + 1 if (seq - self.seq) % CYCLE == 1 else 0
        if self.in_order < CYCLE:
            return False
        holes = self.holes or []
        self.holes = _folded([*holes, *self._unseen(holes, now, lost_at=now)]) or None
        self.unfilled = self.in_order = 0
        return True

    def _miss(self, since: int, until: int, now: int) -> None:
        self.holes = _folded([*(self.holes or ()), Hole(since, until, now)])
        self.wait = min(self.wait, PATIENCE)  # that another one does not fill is not its fault

    def _reach(self, time: int, seq: int, now: int) -> None:
        self.time, self.seq = time, seq
        if time <= now:
            self.sure = time
        elif self.soon <= now:
            self.sure, self.soon = max(self.sure, self.soon), time

    def touch(self, time: int, now: int) -> bool:
        """An older sample came; tells whether it belongs into a hole."""
        for hole in self.holes or ():
            if hole.since < time < hole.until:
                hole.touched_at = now
                hole.untold += 1
                return True
        return False

    def wants_backfill(self, outage: int, now: int) -> bool:
        """Whether to ask for what is missing: after an outage once, for a hole again and again (ack-11)."""
        waited = now - self.asked_at
        if self.asked_at < outage and waited >= min(self.wait, PATIENCE):
            return True
        return waited >= self.wait and self.is_checked and self.is_waiting

    def go_back_to(self, now: int) -> None:
        """Take nothing that we did for later than now: the clock of this machine was set back."""
        self.asked_at = min(self.asked_at, now)
        for hole in self.holes or ():
            hole.found_at, hole.touched_at = min(hole.found_at, now), min(hole.touched_at, now)
            hole.checked_at = min(hole.checked_at, now)

    def ask(self, now: int) -> None:
        """A backfill is asked for."""
        self.wait = min(max(2 * self.wait, PATIENCE), _LONGEST) if self.holes else PATIENCE
        self.asked_at = now

    @property
    def is_waiting(self) -> bool:
        """Whether there is a hole of which the rest is expected."""
        return any(hole.lost_at is None for hole in self.holes or ())

    @property
    def due_at(self) -> int | None:
        """When to look up the next hole; None: there is none to look up."""
        return min((at for hole in self.holes or () if (at := hole.due_at) is not None), default=None)

    def due(self, now: int) -> Hole | None:
        """The hole that has waited the longest of those that are to be looked up now."""
        waiting = (hole for hole in self.holes or () if hole.is_due(now))
        return min(waiting, key=_checked_at, default=None)

    def replace(self, hole: Hole, left: Iterable[tuple[int, int]], now: int) -> None:
        """What is left of a hole, by the samples that were stored at a moment."""
        rest = [
            Hole(since, until, hole.found_at, hole.touched_at, now, hole.lost_at, hole.untold)
            for since, until in left
        ]
        others = [each for each in self.holes or () if each is not hole]
        if not rest:
            rest = self._unseen([hole, *others], now)
            self.unfilled, self.wait = 0, min(self.wait, PATIENCE)
        elif hole.lost_at is None and hole.is_over(now):  # the device has had its chances
            self.unfilled += 1
            for each in rest:
                each.lost_at = now
        self.holes = _folded([*others, *rest]) or None

    def forget(self, hole: Hole, now: int) -> None:
        """A hole is too old to matter. Without any a series is trusted again (ack-26)."""
        self.holes = [each for each in self.holes or () if each is not hole] or None
        if not self.holes:
            self.holes = self._unseen([hole], now, lost_at=now) or None
            self.unfilled = self.in_order = 0

    def _unseen(self, holes: Iterable[Hole], now: int, *, lost_at: int | None = None) -> list[Hole]:
        """What came while nobody believed `seq`: as soon as that is over it has to be looked at."""
        since = max((each.until for each in holes), default=self.time)
        if self.is_checked or since >= self.time:
            return []
        return [Hole(since, self.time, now, lost_at=lost_at)]


def complete_up_to(series: Iterable[Series], now: int) -> int | None:
    """Up to when no sample of some series is missing; None: nobody knows (ack-15, ack-16).

    One without holes has all that there is: however long ago its newest sample was made, it holds nobody up.
    """
    known = list(series)
    if not known or not all(each.is_checked for each in known):
        return None
    missing = (hole.since for each in known for hole in each.holes or ())
    return min(now, max(each.time for each in known), *missing)


def is_ahead(seq: int, other: int) -> bool:
    """Whether a sample is counted after another, as far as a cycle of numbers can tell."""
    return 0 < (seq - other) % CYCLE < CYCLE // 2


def gaps(samples: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The holes between samples, given as times and `seq` in the order of time."""
    before: tuple[int, int] | None = None
    for time, seq in samples:
        if before is not None and (seq - before[1]) % CYCLE != 1:
            yield before[0], time
        before = time, seq


def _since(hole: Hole) -> int:
    return hole.since


def _checked_at(hole: Hole) -> int:
    return hole.checked_at


def _folded(holes: list[Hole]) -> list[Hole]:
    """In the order of time, and no more of them than there may be: the oldest are taken for one."""
    ordered = sorted(holes, key=_since)
    surplus = len(ordered) - _HOLES
    return ordered if surplus <= 0 else [reduce(_joined, ordered[: surplus + 1]), *ordered[surplus + 1 :]]


def _joined(one: Hole, other: Hole) -> Hole:
    lost_at = None if one.lost_at is None or other.lost_at is None else other.lost_at
    touched_at, checked_at = max(one.touched_at, other.touched_at), min(one.checked_at, other.checked_at)
    untold = one.untold + other.untold
    return Hole(one.since, other.until, one.found_at, touched_at, checked_at, lost_at, untold)
