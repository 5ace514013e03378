"""Aggregates the samples of a series into buckets of equal length, for charts.

Samples are added in the order of time, and only the buckets are kept in memory. A chart must show where
samples are missing, but an empty bucket is no gap if the device reports less than once per bucket. So only an
interval that is much longer than the typical interval between samples counts as a gap.
"""

from __future__ import annotations

import math
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.protocol.times import format_millis
from meshfleet.rest.telemetry import Bucket
from meshfleet.service.telemetry.rest_sample import format_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.db.samples.sample import StoredSample
    from meshfleet.service.ingest.minute_rollup import MinuteSummary

_GAP_FACTOR: Final = 3
"""An interval between samples counts as a gap if it is longer than this multiple of the median interval."""

_MAX_DISTANCES: Final = 10_000
"""Maximum number of intervals between samples that are kept to determine the median interval."""

_SUM_SCALE: Final = 2.0**-60
"""Factor by which sample values are scaled before they are summed, so that no sum overflows a float."""


class TimeGrid(Struct, frozen=True):
    """Time range divided into equal parts, from `since` to before `until`, Unix times in milliseconds."""

    since: int
    until: int
    parts: int

    @classmethod
    def divide(cls, since: int, until: int, *, parts: int) -> TimeGrid:
        """Divide a time range into `parts` parts, or into fewer parts of at least one millisecond."""
        return cls(since, until, min(parts, until - since))

    def find_part(self, time: int) -> int:
        """Return the index of the part of the time range that contains `time`."""
        return (time - self.since) * self.parts // (self.until - self.since)

    def part_start(self, part: int) -> int:
        """Return the first millisecond of a part as Unix time."""
        return self.since - (-part * (self.until - self.since) // self.parts)


class SeriesAggregator:
    """Aggregates the samples of a series into buckets. Add the samples in the order of time."""

    def __init__(self, grid: TimeGrid) -> None:
        self._grid = grid
        self._buckets: list[_BucketSum] = []
        self._distances = _Distances()

    def add(self, samples: Iterable[StoredSample]) -> None:
        """Add samples; skip samples without a finite number or with an implausible time (rest-182)."""
        for sample in samples:
            is_plausible = sample.more is None or sample.more.has_plausible_time
            if is_plausible and sample.number is not None and math.isfinite(sample.number):
                number = float(sample.number)
                self._find_bucket(sample.time, number).add(sample.time, number)

    def add_minute(self, time: int, mean: float, minute: MinuteSummary) -> None:
        """Add a minute roll-up. All its readings count as readings at the start of the minute."""
        self._find_bucket(time, minute.last).add_minute(time, mean, minute)

    def _find_bucket(self, time: int, number: float) -> _BucketSum:
        """Return the bucket for the next value, and record the interval since the previous value."""
        part = self._grid.find_part(time)
        bucket = self._buckets[-1] if self._buckets else None
        if bucket is not None:
            self._distances.add(time - bucket.last_time)
        if bucket is None or bucket.part != part:
            bucket = _BucketSum(part, time, number)
            self._buckets.append(bucket)
        return bucket

    def build_buckets(self) -> list[Bucket]:
        """Return the buckets that have samples, and an empty bucket at the start of each gap (rest-184)."""
        return list(self._iter_buckets())

    def _iter_buckets(self) -> Iterator[Bucket]:
        max_distance = _GAP_FACTOR * self._distances.typical()
        previous: _BucketSum | None = None
        for bucket in self._buckets:
            if (
                previous is not None
                and bucket.part - previous.part > 1
                and bucket.first_time - previous.last_time > max_distance
            ):
                start = self._format_start(previous.part + 1)
                yield Bucket(time=start, min=None, mean=None, max=None, count=0, last=None)
            yield bucket.to_rest_bucket(self._format_start(bucket.part))
            previous = bucket

    def _format_start(self, part: int) -> str:
        return format_millis(self._grid.part_start(part))


class _BucketSum:
    """Minimum, maximum, sum, count and last value of the samples in one bucket so far."""

    __slots__ = (
        "_compensation",
        "_count",
        "_highest",
        "_last",
        "_lowest",
        "_sum",
        "first_time",
        "last_time",
        "part",
    )

    def __init__(self, part: int, time: int, number: float) -> None:
        self.part = part
        self.first_time = self.last_time = time
        self._count = 0
        self._lowest = self._highest = self._last = number
        self._sum = self._compensation = 0.0

    def add(self, time: int, number: float) -> None:
        self.last_time = time
        self._count += 1
        self._last = number
        if number < self._lowest:
            self._lowest = number
        elif number > self._highest:
            self._highest = number
        self._add_to_sum(number * _SUM_SCALE)

    def add_minute(self, time: int, mean: float, minute: MinuteSummary) -> None:
        self.last_time = time
        self._count += minute.count
        self._last = minute.last
        self._lowest = min(self._lowest, minute.min)
        self._highest = max(self._highest, minute.max)
        self._add_to_sum(mean * minute.count * _SUM_SCALE)

    def _add_to_sum(self, number: float) -> None:
        """Add a number to the sum, and collect the rounding error (Neumaier summation)."""
        total = self._sum + number
        larger, smaller = (self._sum, number) if abs(self._sum) >= abs(number) else (number, self._sum)
        self._compensation += (larger - total) + smaller
        self._sum = total

    def to_rest_bucket(self, start: str) -> Bucket:
        mean = (self._sum + self._compensation) / self._count / _SUM_SCALE
        return Bucket(
            time=start,
            min=format_number(self._lowest),
            # Rounding errors and overflow must not move the mean outside of minimum and maximum.
            mean=format_number(min(max(mean, self._lowest), self._highest)),
            max=format_number(self._highest),
            count=self._count,
            last=format_number(self._last),
        )


class _Distances:
    """Intervals between successive samples in milliseconds; a random choice of them if there are too many."""

    def __init__(self) -> None:
        self._distances: list[int] = []
        self._count = 0
        # A fixed seed, so that the same query returns the same result.
        self._random = Random(0)  # noqa: S311 # not a secret

    def add(self, distance: int) -> None:
        """Add an interval in milliseconds. Ignore 0, the interval of two samples with the same time."""
        if distance == 0:
            return
        self._count += 1
        if self._count <= _MAX_DISTANCES:
            self._distances.append(distance)
        elif (index := int(self._random.random() * self._count)) < _MAX_DISTANCES:
            self._distances[index] = distance

    def typical(self) -> float:
        """Return the median interval in milliseconds, or 0 without intervals."""
        return median(self._distances) if self._distances else 0.0
