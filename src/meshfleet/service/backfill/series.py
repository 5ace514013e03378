"""Series: the samples of one kind and identifier of one device, and the gaps between them.

The device numbers the samples of a series with `seq`, which starts again at 0 after 255 (report-38). If `seq`
of two samples is not consecutive, samples are missing between them: a gap. On request, the device sends the
missing samples in any order, such as the newest first. So whether a gap is filled is determined from the
stored samples, sorted by time.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.db.samples import StoredSample

SeriesKey: TypeAlias = tuple[int, int, int]
"""Device, sample kind and identifier of a series, as integers."""

SEQ_CYCLE: Final = 256
"""Number of different sample sequence numbers (`seq`), 0 to 255."""
_MAX_GAPS: Final = 32
"""Maximum number of gaps of a series; if there are more, the oldest are merged into one."""

MAX_UNFILLED: Final = 3
"""Number of successive lost gaps after which a series is no longer checked for gaps (ack-16).

Such a device seems to use `seq` for something else than counting samples.
"""

BACKFILL_INTERVAL_MS: Final = 60_000
"""Minimum milliseconds between two acks of a series that request a backfill (ack-12).

The interval doubles with each request while there are gaps.
"""
_MAX_BACKFILL_INTERVAL_MS: Final = 3_600_000
"""Maximum milliseconds to which repeated requests extend the interval between backfill requests."""

_GAP_EXPIRY_MS: Final = 3_600_000
"""Milliseconds without the arrival of a missing sample after which its gap counts as lost."""

_MAX_RESET_AGE_MS: Final = 60_000
"""A sample proves that its device's clock was set back only if it is less than this many ms old."""

_CHECK_AFTER_LAST_MS: Final = 2_000
"""Milliseconds from the last arrival of a missing sample until its gap is checked."""
_CHECK_AFTER_FIRST_MS: Final = 10_000
"""Maximum milliseconds until the first check of a gap, and between checks while missing samples arrive."""
_IDLE_CHECK_MS: Final = 60_000
"""Milliseconds between two checks of a gap while no missing sample arrives."""


class TimeRange(NamedTuple):
    """Unix times in milliseconds of two stored samples between which samples are missing."""

    since: int
    until: int


class Gap(Struct, gc=False):
    """Time range between two stored samples in which samples are missing.

    Times are Unix times in milliseconds.
    """

    since: int
    until: int
    found_at: int
    last_arrival_at: int = 0
    """Time when a missing sample of this gap last arrived; 0 if none has arrived."""
    checked_at: int = 0
    """Time when this gap was last checked by reading the stored samples; 0 if never."""
    lost_at: int | None = None
    """Time since when the gap counts as lost; None: samples are still expected.

    Samples that arrive later still fill the gap.
    """
    unchecked_arrivals: int = 0
    """Number of samples of this gap that arrived since its last check."""

    def is_expired(self, now: int) -> bool:
        """Return whether no missing sample of this gap has arrived for an hour, so that none is expected."""
        return now - max(self.found_at, self.last_arrival_at) >= _GAP_EXPIRY_MS

    @property
    def next_check_at(self) -> int | None:
        """Unix time in milliseconds of the next check of this gap; None if the gap is lost.

        The check comes soon after a missing sample has arrived, otherwise every minute.
        """
        last_check = self.checked_at or self.found_at
        if self.unchecked_arrivals:
            return min(self.last_arrival_at + _CHECK_AFTER_LAST_MS, last_check + _CHECK_AFTER_FIRST_MS)
        if self.lost_at is not None:
            return None
        return last_check + (_IDLE_CHECK_MS if self.checked_at else _CHECK_AFTER_FIRST_MS)

    def is_due(self, now: int) -> bool:
        """Return whether this gap must be checked now."""
        next_check_at = self.next_check_at
        return next_check_at is not None and next_check_at <= now


class SeriesState(Struct, gc=False):
    """State of a series of samples: its newest sample, its gaps and its backfill requests.

    Times are Unix times in milliseconds.
    """

    time: int
    """Time of the newest sample."""
    seq: int
    requested_at: int = 0
    """Time of the last backfill request, or of the start of the series; 0 if before the last restart."""
    backfill_interval: int = BACKFILL_INTERVAL_MS
    """Minimum milliseconds from the last backfill request to the next; 0 if the series is new."""
    unfilled: int = 0
    """Number of gaps in a row that were lost; a gap that is filled resets the number to 0."""
    gaps: list[Gap] | None = None
    trusted_time: int = 0
    """Time of the newest sample that was not ahead of the service's clock; initially that of any sample."""
    future_time: int = 0
    """Time of a sample ahead of the service's clock; becomes `trusted_time` when that time is past."""
    consecutive: int = 0
    """Number of samples in a row with consecutive `seq`, counted while the series is not checked for gaps."""

    def __post_init__(self) -> None:
        """Initialize `trusted_time` with the time of the newest sample."""
        self.trusted_time = self.trusted_time or self.time

    @property
    def is_gap_checked(self) -> bool:
        """Whether the series is checked for gaps. It is not if its gaps are never filled (ack-16)."""
        return self.unfilled < MAX_UNFILLED

    def append(self, time: int, seq: int, now: int) -> bool:
        """Add a sample as the newest of the series. Return whether samples directly before it are missing."""
        has_gap = (seq - self.seq) % SEQ_CYCLE != 1 and self.is_gap_checked
        if has_gap:
            self._add_gap(self.time, time, now)
        self._set_newest(time, seq, now)
        return has_gap

    def is_clock_reset(self, time: int, seq: int, now: int) -> bool:
        """Return whether a sample shows that the device's clock was set back: older time, newer `seq`."""
        return self.time > now and time > now - _MAX_RESET_AGE_MS and is_seq_ahead(seq, self.seq)

    def append_after_reset(self, time: int, seq: int, now: int) -> bool:
        """Add a sample as the newest after the device's clock was set back. Return whether there is a gap.

        The times of samples before the reset were in the future, so the real times of missing samples are
        unknown. The gap therefore starts at the last trusted time.
        """
        start_limit = min(self.trusted_time, time)
        affected = [gap for gap in self.gaps or () if gap.until > start_limit]
        has_gap = (seq - self.seq) % SEQ_CYCLE != 1 and self.is_gap_checked
        has_gap = has_gap or any(gap.until > time for gap in affected)
        if has_gap:
            since = min([start_limit, *(gap.since for gap in affected)])
            self.gaps = [gap for gap in self.gaps or () if gap not in affected] or None
            if since < time:
                self._add_gap(since, time, now)
        self.future_time = 0
        self._set_newest(time, seq, now)
        return has_gap

    def regain_trust(self, seq: int, now: int) -> bool:
        """Count a sample of a series without gap checks. Return whether gap checks start again (ack-26).

        They start after 256 samples in a row with consecutive `seq`. The time without checks is then recorded
        as a lost gap, because samples may be missing in it.
        """
        self.consecutive = self.consecutive + 1 if (seq - self.seq) % SEQ_CYCLE == 1 else 0
        if self.consecutive < SEQ_CYCLE:
            return False
        gaps = self.gaps or []
        self.gaps = _merge_surplus_gaps([*gaps, *self._build_unchecked_gap(gaps, now, lost_at=now)]) or None
        self.unfilled = self.consecutive = 0
        return True

    def _add_gap(self, since: int, until: int, now: int) -> None:
        """Add a gap between two stored samples. Shorten the interval to the next backfill request."""
        self.gaps = _merge_surplus_gaps([*(self.gaps or ()), Gap(since, until, now)])
        # A new gap must not wait because an older one was not filled.
        self.backfill_interval = min(self.backfill_interval, BACKFILL_INTERVAL_MS)

    def _set_newest(self, time: int, seq: int, now: int) -> None:
        """Record the time and `seq` of the newest sample, and update the newest time that is not ahead."""
        self.time, self.seq = time, seq
        if time <= now:
            self.trusted_time = time
        elif self.future_time <= now:
            self.trusted_time, self.future_time = max(self.trusted_time, self.future_time), time

    def record_arrival(self, time: int, now: int) -> bool:
        """Record the arrival of a sample older than the newest one. Return whether it lies in a gap."""
        for gap in self.gaps or ():
            if gap.since < time < gap.until:
                gap.last_arrival_at = now
                gap.unchecked_arrivals += 1
                return True
        return False

    def needs_backfill(self, outage_end: int, now: int) -> bool:
        """Return whether the next ack must request a backfill (ack-11).

        That is so once after an outage, and repeatedly while missing samples are expected. `outage_end` is
        the Unix time in milliseconds at which the last outage of the gateway or the service ended.
        """
        elapsed = now - self.requested_at
        if self.requested_at < outage_end and elapsed >= min(self.backfill_interval, BACKFILL_INTERVAL_MS):
            return True
        return elapsed >= self.backfill_interval and self.is_gap_checked and self.expects_samples

    def rewind_clock(self, now: int) -> None:
        """Limit times of requests and gap checks to now, after the clock of this machine was set back."""
        self.requested_at = min(self.requested_at, now)
        for gap in self.gaps or ():
            gap.found_at, gap.last_arrival_at = min(gap.found_at, now), min(gap.last_arrival_at, now)
            gap.checked_at = min(gap.checked_at, now)

    def record_request(self, now: int) -> None:
        """Record a backfill request. Double the interval until the next request if there are gaps."""
        self.backfill_interval = (
            min(max(2 * self.backfill_interval, BACKFILL_INTERVAL_MS), _MAX_BACKFILL_INTERVAL_MS)
            if self.gaps
            else BACKFILL_INTERVAL_MS
        )
        self.requested_at = now

    @property
    def expects_samples(self) -> bool:
        """Whether missing samples are still expected, because some gaps are not lost."""
        return any(gap.lost_at is None for gap in self.gaps or ())

    @property
    def next_check_at(self) -> int | None:
        """Unix time in milliseconds at which the next gap of the series must be checked; None if none."""
        return min((at for gap in self.gaps or () if (at := gap.next_check_at) is not None), default=None)

    def next_due_gap(self, now: int) -> Gap | None:
        """Return the gap whose check is due and was done longest ago, or None if no check is due."""
        due_gaps = (gap for gap in self.gaps or () if gap.is_due(now))
        return min(due_gaps, key=attrgetter("checked_at"), default=None)

    def replace_gap(self, gap: Gap, remaining: Iterable[TimeRange], now: int) -> None:
        """Replace a checked gap by the time ranges in which samples are still missing; none if it is filled.

        A gap that is not filled in time counts as lost.
        """
        remaining_gaps = [
            Gap(since, until, gap.found_at, gap.last_arrival_at, now, gap.lost_at, gap.unchecked_arrivals)
            for since, until in remaining
        ]
        others = [other for other in self.gaps or () if other is not gap]
        if not remaining_gaps:
            remaining_gaps = self._build_unchecked_gap([gap, *others], now)
            self.unfilled, self.backfill_interval = 0, min(self.backfill_interval, BACKFILL_INTERVAL_MS)
        elif gap.lost_at is None and gap.is_expired(now):  # the device had enough time
            self.unfilled += 1
            for remaining_gap in remaining_gaps:
                remaining_gap.lost_at = now
        self.gaps = _merge_surplus_gaps([*others, *remaining_gaps]) or None

    def drop_gap(self, gap: Gap, now: int) -> None:
        """Drop a gap that is older than the retention of samples.

        If the series has no other gap, check it for gaps again (ack-26).
        """
        self.gaps = [other for other in self.gaps or () if other is not gap] or None
        if not self.gaps:
            self.gaps = self._build_unchecked_gap([gap], now, lost_at=now) or None
            self.unfilled = self.consecutive = 0

    def _build_unchecked_gap(self, gaps: Iterable[Gap], now: int, *, lost_at: int | None = None) -> list[Gap]:
        """Return a gap for the time without gap checks of the series, because samples may be missing in it.

        Return an empty list if there was no such time. `gaps` are the gaps found before that time.
        """
        since = max((gap.until for gap in gaps), default=self.time)
        if self.is_gap_checked or since >= self.time:
            return []
        return [Gap(since, self.time, now, lost_at=lost_at)]


def complete_up_to(series: Iterable[SeriesState], now: int) -> int | None:
    """Return the Unix time (ms) up to which no series has missing samples, or None if unknown.

    It is unknown if there are no series, or if one is no longer checked for gaps (ack-15, ack-16). A series
    without gaps does not limit the result, even if its newest sample is old.
    """
    states = list(series)
    if not states or not all(state.is_gap_checked for state in states):
        return None
    gap_starts = (gap.since for state in states for gap in state.gaps or ())
    return min(now, max(state.time for state in states), *gap_starts)


def is_seq_ahead(seq: int, other: int) -> bool:
    """Return whether the sequence number `seq` comes after `other`: 1 to 127 ahead, modulo 256."""
    return 0 < (seq - other) % SEQ_CYCLE < SEQ_CYCLE // 2


def find_gaps(samples: Iterable[StoredSample]) -> Iterator[TimeRange]:
    """Yield the time ranges in which samples are missing. `samples` must be sorted by time."""
    for sample, next_sample in pairwise(samples):
        if (next_sample.seq - sample.seq) % SEQ_CYCLE != 1:
            yield TimeRange(sample.time, next_sample.time)


def _merge_surplus_gaps(gaps: list[Gap]) -> list[Gap]:
    """Sort gaps by time. If there are more than `_MAX_GAPS`, merge the oldest into one gap."""
    ordered = sorted(gaps, key=attrgetter("since"))
    surplus = len(ordered) - _MAX_GAPS
    return ordered if surplus <= 0 else [reduce(_join_gaps, ordered[: surplus + 1]), *ordered[surplus + 1 :]]


def _join_gaps(first: Gap, second: Gap) -> Gap:
    """Return one gap from the start of the first to the end of the second gap."""
    lost_at = None if first.lost_at is None or second.lost_at is None else second.lost_at
    return Gap(
        first.since,
        second.until,
        first.found_at,
        last_arrival_at=max(first.last_arrival_at, second.last_arrival_at),
        checked_at=min(first.checked_at, second.checked_at),
        lost_at=lost_at,
        unchecked_arrivals=first.unchecked_arrivals + second.unchecked_arrivals,
    )
