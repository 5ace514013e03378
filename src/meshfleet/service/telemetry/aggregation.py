"""Many samples as few buckets: one pass in the order of time, and nothing kept but the buckets.

A series must not hide that samples are missing, nor show holes where a device is merely slower than the
chart is fine. So holes are measured by the usual distance between samples, not by empty buckets alone.
"""

from __future__ import annotations

import math
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet import rest
from meshfleet.protocol.times import format_millis
from meshfleet.service.telemetry.rest_sample import format_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.db.samples.sample import StoredSample
    from meshfleet.service.ingest.rollups import MinuteSummary

_GAP_FACTOR: Final = 3
"""Times the usual distance between samples."""

_MAX_DISTANCES: Final = 10_000
"""Remembered in order to know the usual one."""

_SUM_SCALE: Final = 2.0**-60
"""What numbers are multiplied with before they are summed up: no sum then gets too large for a float."""


class TimeGrid(Struct, frozen=True):
    """Equal parts of the time from `since` to `until`, each at least a millisecond long."""

    since: int
    until: int
    parts: int

    @classmethod
    def divide(cls, since: int, until: int, *, parts: int) -> TimeGrid:
        """At most so many parts."""
        return cls(since, until, min(parts, until - since))

    def find_part(self, time: int) -> int:
        """Where a time belongs."""
        return (time - self.since) * self.parts // (self.until - self.since)

    def part_start(self, part: int) -> int:
        """The first millisecond of a part."""
        return self.since - (-part * (self.until - self.since) // self.parts)


class SeriesAggregator:
    """Sums up the samples of a series. They come in the order of time, in as many calls as one likes."""

    def __init__(self, grid: TimeGrid) -> None:
        self._grid = grid
        self._open_buckets: list[_BucketSum] = []
        self._distances = _Distances()

    def add(self, samples: Iterable[StoredSample]) -> None:
        """Take in those that have a number and a time that is believed (rest-182)."""
        for sample in samples:
            believed = sample.more is None or sample.more.has_plausible_time
            if believed and sample.number is not None and math.isfinite(sample.number):
                self._add(sample.time, float(sample.number))

    def add_minute(self, time: int, mean: float, minute: MinuteSummary) -> None:
        """Take in what is kept of a minute. It counts where it begins."""
        self._find_bucket(time, minute.last).add_minute(time, mean, minute)

    def _add(self, time: int, number: float) -> None:
        self._find_bucket(time, number).add(time, number)

    def _find_bucket(self, time: int, number: float) -> _BucketSum:
        """Where the next number belongs."""
        part = self._grid.find_part(time)
        heap = self._open_buckets[-1] if self._open_buckets else None
        if heap is not None:
            self._distances.add(time - heap.last_time)
        if heap is None or heap.part != part:
            heap = _BucketSum(part, time, number)
            self._open_buckets.append(heap)
        return heap

    def build_buckets(self) -> list[rest.Bucket]:
        """What has come of them: buckets with samples, and one at the beginning of each hole (rest-184)."""
        return list(self._iter_buckets())

    def _iter_buckets(self) -> Iterator[rest.Bucket]:
        longest = _GAP_FACTOR * self._distances.typical()
        before: _BucketSum | None = None
        for heap in self._open_buckets:
            if (
                before is not None
                and heap.part - before.part > 1
                and heap.first_time - before.last_time > longest
            ):
                yield _empty_bucket(self._format_start(before.part + 1))
            yield heap.to_rest_bucket(self._format_start(heap.part))
            before = heap

    def _format_start(self, part: int) -> str:
        return format_millis(self._grid.part_start(part))


class _BucketSum:
    """The samples of one bucket."""

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
        self._add_up(number * _SUM_SCALE)

    def add_minute(self, time: int, mean: float, minute: MinuteSummary) -> None:
        self.last_time = time
        self._count += minute.count
        self._last = minute.last
        self._lowest = min(self._lowest, minute.min)
        self._highest = max(self._highest, minute.max)
        self._add_up(mean * minute.count * _SUM_SCALE)

    def _add_up(self, number: float) -> None:
        """Add to the sum, and keep what a float loses thereby (after Neumaier)."""
        added = self._sum + number
        larger, smaller = (self._sum, number) if abs(self._sum) >= abs(number) else (number, self._sum)
        self._compensation += (larger - added) + smaller
        self._sum = added

    def to_rest_bucket(self, beginning: str) -> rest.Bucket:
        mean = (self._sum + self._compensation) / self._count / _SUM_SCALE
        return rest.Bucket(
            time=beginning,
            min=format_number(self._lowest),
            # Within its bounds in spite of rounding, also where it gets too large.
            mean=format_number(min(max(mean, self._lowest), self._highest)),
            max=format_number(self._highest),
            count=self._count,
            last=format_number(self._last),
        )


class _Distances:
    """Distances between neighbouring samples: all, or a fair choice of so many."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._seen = 0
        # Always the same choice: who asks twice gets the same answer.
        self._random = Random(0)  # noqa: S311 # no secret

    def add(self, distance: int) -> None:
        """Remember one, perhaps. Samples of the same moment, of two kinds, have none."""
        if distance == 0:
            return
        self._seen += 1
        if self._seen <= _MAX_DISTANCES:
            self._kept.append(distance)
        elif (place := int(self._random.random() * self._seen)) < _MAX_DISTANCES:
            self._kept[place] = distance

    def typical(self) -> float:
        """The median of them."""
        return median(self._kept) if self._kept else 0.0


def _empty_bucket(beginning: str) -> rest.Bucket:
    return rest.Bucket(time=beginning, min=None, mean=None, max=None, count=0, last=None)
