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

SeriesKey: TypeAlias = tuple[int, int, int]
"""Which series: the device, the kind and the identifier."""

SEQ_CYCLE: Final = 256
"""How many numbers `seq` has."""
_MAX_GAPS: Final = 32
"""How many a series may have; beyond that the two oldest are taken for one."""

_MAX_UNFILLED: Final = 3
"""Holes in turn that never fill, after which nobody believes that `seq` counts samples (ack-16)."""

BACKFILL_INTERVAL_MS: Final = 60_000
"""Milliseconds between two acks with backfill (ack-12), at first; each time that it helps nothing, twice as
many."""
_MAX_BACKFILL_INTERVAL_MS: Final = 3_600_000

_GAP_EXPIRY_MS: Final = 3_600_000
"""Milliseconds after which nobody expects the rest of a hole any more, if nothing came."""

_MAX_RESET_AGE_MS: Final = 60_000
"""Milliseconds that a sample may be old to tell how late it is."""

_CHECK_AFTER_LAST_MS: Final = 2_000
_CHECK_AFTER_FIRST_MS: Final = 10_000
_IDLE_CHECK_MS: Final = 60_000
"""Milliseconds until a hole is looked at: after the last of what came, after the first, and without any."""


class Gap(Struct, gc=False):
    """Samples are missing between the times of two that are there."""

    since: int
    until: int
    found_at: int
    last_arrival_at: int = 0
    """When something came that belongs in there."""
    checked_at: int = 0
    """When it was last looked up what is stored."""
    lost_at: int | None = None
    """Since when nobody expects the rest any more. If it comes all the same, the hole is filled."""
    unchecked_arrivals: int = 0
    """How many came that belong in there, and were not yet among what was looked up."""

    def is_expired(self, now: int) -> bool:
        """Whether nobody has reason to expect the rest."""
        return now - max(self.found_at, self.last_arrival_at) >= _GAP_EXPIRY_MS

    @property
    def due_at(self) -> int | None:
        """When to look up what is stored: soon after something came, and now and then; None: not at all."""
        before = self.checked_at or self.found_at
        if self.unchecked_arrivals:
            return min(self.last_arrival_at + _CHECK_AFTER_LAST_MS, before + _CHECK_AFTER_FIRST_MS)
        if self.lost_at is not None:
            return None
        return before + (_IDLE_CHECK_MS if self.checked_at else _CHECK_AFTER_FIRST_MS)

    def is_due(self, now: int) -> bool:
        """Whether to look up what is stored."""
        due_at = self.due_at
        return due_at is not None and due_at <= now


class SeriesState(Struct, gc=False):
    """What is remembered of a series."""

    time: int
    """Of the newest sample, in milliseconds."""
    seq: int
    requested_at: int = 0
    """When a backfill was last asked for, or when it began, if it began since our start."""
    backfill_interval: int = BACKFILL_INTERVAL_MS
    """Milliseconds until the next for the same hole; 0: none was ever asked for."""
    unfilled: int = 0
    """How many holes in turn never filled."""
    gaps: list[Gap] | None = None
    trusted_time: int = 0
    """Of the first sample, or of a later one that is not ahead of our clock."""
    future_time: int = 0
    """Of one that is ahead: as soon as its time has come, it is the one."""
    consecutive: int = 0
    """How many came in turn, each with the next `seq`, while nobody believed it."""

    def __post_init__(self) -> None:
        """Begin with what is there."""
        self.trusted_time = self.trusted_time or self.time

    @property
    def is_gap_checked(self) -> bool:
        """Whether its holes mean anything (ack-16)."""
        return self.unfilled < _MAX_UNFILLED

    def append(self, time: int, seq: int, now: int) -> bool:
        """The newest sample came; tells whether one before it is missing."""
        missing = (seq - self.seq) % SEQ_CYCLE != 1 and self.is_gap_checked
        if missing:
            self._add_gap(self.time, time, now)
        self._set_newest(time, seq, now)
        return missing

    def is_clock_reset(self, time: int, seq: int, now: int) -> bool:
        """Whether an older sample is newer all the same: what came before it was ahead of its time."""
        return self.time > now and time > now - _MAX_RESET_AGE_MS and is_seq_ahead(seq, self.seq)

    def append_after_reset(self, time: int, seq: int, now: int) -> bool:
        """The newest sample came, of a clock that was set back; tells whether one before it is missing.

        Nobody knows when those were made that are missing further ahead: somewhere since we were sure.
        """
        edge = min(self.trusted_time, time)
        within = [hole for hole in self.gaps or () if hole.until > edge]
        missing = (seq - self.seq) % SEQ_CYCLE != 1 and self.is_gap_checked
        missing = missing or any(hole.until > time for hole in within)
        if missing:
            since = min([edge, *(hole.since for hole in within)])
            self.gaps = [hole for hole in self.gaps or () if hole not in within] or None
            if since < time:
                self._add_gap(since, time, now)
        self.future_time = 0
        self._set_newest(time, seq, now)
        return missing

    def regain_trust(self, seq: int, now: int) -> bool:
        """The next is counted so; tells whether that makes the series trusted again (ack-26).

        What came while nobody believed it is not known to be complete, and nobody expects more of it.
        """
        self.consecutive = self.consecutive + 1 if (seq - self.seq) % SEQ_CYCLE == 1 else 0
        if self.consecutive < SEQ_CYCLE:
            return False
        holes = self.gaps or []
        self.gaps = _limit_gaps([*holes, *self._unchecked_range(holes, now, lost_at=now)]) or None
        self.unfilled = self.consecutive = 0
        return True

    def _add_gap(self, since: int, until: int, now: int) -> None:
        self.gaps = _limit_gaps([*(self.gaps or ()), Gap(since, until, now)])
        self.backfill_interval = min(
            self.backfill_interval, BACKFILL_INTERVAL_MS
        )  # that another one does not fill is not its fault

    def _set_newest(self, time: int, seq: int, now: int) -> None:
        self.time, self.seq = time, seq
        if time <= now:
            self.trusted_time = time
        elif self.future_time <= now:
            self.trusted_time, self.future_time = max(self.trusted_time, self.future_time), time

    def record_arrival(self, time: int, now: int) -> bool:
        """An older sample came; tells whether it belongs into a hole."""
        for hole in self.gaps or ():
            if hole.since < time < hole.until:
                hole.last_arrival_at = now
                hole.unchecked_arrivals += 1
                return True
        return False

    def needs_backfill(self, outage: int, now: int) -> bool:
        """Whether to ask for what is missing: after an outage once, for a hole again and again (ack-11)."""
        waited = now - self.requested_at
        if self.requested_at < outage and waited >= min(self.backfill_interval, BACKFILL_INTERVAL_MS):
            return True
        return waited >= self.backfill_interval and self.is_gap_checked and self.expects_samples

    def rewind_clock(self, now: int) -> None:
        """Take nothing that we did for later than now: the clock of this machine was set back."""
        self.requested_at = min(self.requested_at, now)
        for hole in self.gaps or ():
            hole.found_at, hole.last_arrival_at = min(hole.found_at, now), min(hole.last_arrival_at, now)
            hole.checked_at = min(hole.checked_at, now)

    def record_request(self, now: int) -> None:
        """A backfill is asked for."""
        self.backfill_interval = (
            min(max(2 * self.backfill_interval, BACKFILL_INTERVAL_MS), _MAX_BACKFILL_INTERVAL_MS)
            if self.gaps
            else BACKFILL_INTERVAL_MS
        )
        self.requested_at = now

    @property
    def expects_samples(self) -> bool:
        """Whether there is a hole of which the rest is expected."""
        return any(hole.lost_at is None for hole in self.gaps or ())

    @property
    def due_at(self) -> int | None:
        """When to look up the next hole; None: there is none to look up."""
        return min((at for hole in self.gaps or () if (at := hole.due_at) is not None), default=None)

    def next_due_gap(self, now: int) -> Gap | None:
        """The hole that has waited the longest of those that are to be looked up now."""
        waiting = (hole for hole in self.gaps or () if hole.is_due(now))
        return min(waiting, key=_checked_at, default=None)

    def replace_gap(self, gap: Gap, remaining: Iterable[tuple[int, int]], now: int) -> None:
        """What is left of a hole, by the samples that were stored at a moment."""
        rest = [
            Gap(since, until, gap.found_at, gap.last_arrival_at, now, gap.lost_at, gap.unchecked_arrivals)
            for since, until in remaining
        ]
        others = [each for each in self.gaps or () if each is not gap]
        if not rest:
            rest = self._unchecked_range([gap, *others], now)
            self.unfilled, self.backfill_interval = 0, min(self.backfill_interval, BACKFILL_INTERVAL_MS)
        elif gap.lost_at is None and gap.is_expired(now):  # the device has had its chances
            self.unfilled += 1
            for each in rest:
                each.lost_at = now
        self.gaps = _limit_gaps([*others, *rest]) or None

    def drop_gap(self, gap: Gap, now: int) -> None:
        """A hole is too old to matter. Without any a series is trusted again (ack-26)."""
        self.gaps = [each for each in self.gaps or () if each is not gap] or None
        if not self.gaps:
            self.gaps = self._unchecked_range([gap], now, lost_at=now) or None
            self.unfilled = self.consecutive = 0

    def _unchecked_range(self, gaps: Iterable[Gap], now: int, *, lost_at: int | None = None) -> list[Gap]:
        """What came while nobody believed `seq`: as soon as that is over it has to be looked at."""
        since = max((each.until for each in gaps), default=self.time)
        if self.is_gap_checked or since >= self.time:
            return []
        return [Gap(since, self.time, now, lost_at=lost_at)]


def complete_up_to(series: Iterable[SeriesState], now: int) -> int | None:
    """Up to when no sample of some series is missing; None: nobody knows (ack-15, ack-16).

    One without holes has all that there is: however long ago its newest sample was made, it holds nobody up.
    """
    known = list(series)
    if not known or not all(each.is_gap_checked for each in known):
        return None
    missing = (hole.since for each in known for hole in each.gaps or ())
    return min(now, max(each.time for each in known), *missing)


def is_seq_ahead(seq: int, other: int) -> bool:
    """Whether a sample is counted after another, as far as a cycle of numbers can tell."""
    return 0 < (seq - other) % SEQ_CYCLE < SEQ_CYCLE // 2


def find_gaps(samples: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The holes between samples, given as times and `seq` in the order of time."""
    before: tuple[int, int] | None = None
    for time, seq in samples:
        if before is not None and (seq - before[1]) % SEQ_CYCLE != 1:
            yield before[0], time
        before = time, seq


def _since(hole: Gap) -> int:
    return hole.since


def _checked_at(hole: Gap) -> int:
    return hole.checked_at


def _limit_gaps(gaps: list[Gap]) -> list[Gap]:
    """In the order of time, and no more of them than there may be: the oldest are taken for one."""
    ordered = sorted(gaps, key=_since)
    surplus = len(ordered) - _MAX_GAPS
    return ordered if surplus <= 0 else [reduce(_join_gaps, ordered[: surplus + 1]), *ordered[surplus + 1 :]]


def _join_gaps(one: Gap, other: Gap) -> Gap:
    lost_at = None if one.lost_at is None or other.lost_at is None else other.lost_at
    touched_at, checked_at = (
        max(one.last_arrival_at, other.last_arrival_at),
        min(one.checked_at, other.checked_at),
    )
    untold = one.unchecked_arrivals + other.unchecked_arrivals
    return Gap(one.since, other.until, one.found_at, touched_at, checked_at, lost_at, untold)
