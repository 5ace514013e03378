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

from meshfleet.service.telemetry.rows import plain_number
from meshfleet.wire import rest
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.db.samples.sample import Sample
    from meshfleet.service.ingest.rollups import Shown

_HOLE: Final = 3
"""Times the usual distance between samples."""

_DISTANCES: Final = 10_000
"""Remembered in order to know the usual one."""

_SMALLER: Final = 2.0**-60
"""What numbers are multiplied with before they are summed up: no sum then gets too large for a float."""


class Grid(Struct, frozen=True):
    """Equal parts of the time from `since` to `until`, each at least a millisecond long."""

    since: int
    until: int
    parts: int

    @classmethod
    def over(cls, since: int, until: int, *, parts: int) -> Grid:
        """At most so many parts."""
        return cls(since, until, min(parts, until - since))

    def part(self, time: int) -> int:
        """Where a time belongs."""
        return (time - self.since) * self.parts // (self.until - self.since)

    def beginning(self, part: int) -> int:
        """The first millisecond of a part."""
        return self.since - (-part * (self.until - self.since) // self.parts)


class Tally:
    """Sums up the samples of a series. They come in the order of time, in as many calls as one likes."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._heaps: list[_Heap] = []
        self._distances = _Distances()

    def add(self, samples: Iterable[Sample]) -> None:
        """Take in those that have a number and a time that is believed (rest-182)."""
        for sample in samples:
            believed = sample.more is None or sample.more.is_believed
            if believed and sample.number is not None and math.isfinite(sample.number):
                self._add(sample.time, float(sample.number))

    def add_minute(self, time: int, mean: float, minute: Shown) -> None:
        """Take in what is kept of a minute. It counts where it begins."""
        self._heap(time, minute.last).add_minute(time, mean, minute)

    def _add(self, time: int, number: float) -> None:
        self._heap(time, number).add(time, number)

    def _heap(self, time: int, number: float) -> _Heap:
        """Where the next number belongs."""
        part = self._grid.part(time)
        heap = self._heaps[-1] if self._heaps else None
        if heap is not None:
            self._distances.add(time - heap.ended)
        if heap is None or heap.part != part:
            heap = _Heap(part, time, number)
            self._heaps.append(heap)
        return heap

    def buckets(self) -> list[rest.Bucket]:
        """What has come of them: buckets with samples, and one at the beginning of each hole (rest-184)."""
        return list(self._told())

    def _told(self) -> Iterator[rest.Bucket]:
        longest = _HOLE * self._distances.usual()
        before: _Heap | None = None
        for heap in self._heaps:
            if before is not None and heap.part - before.part > 1 and heap.began - before.ended > longest:
                yield _empty(self._beginning(before.part + 1))
            yield heap.told(self._beginning(heap.part))
            before = heap

    def _beginning(self, part: int) -> str:
        return write_millis(self._grid.beginning(part))


class _Heap:
    """The samples of one bucket."""

    __slots__ = ("_count", "_highest", "_last", "_lost", "_lowest", "_sum", "began", "ended", "part")

    def __init__(self, part: int, time: int, number: float) -> None:
        self.part = part
        self.began = self.ended = time
        self._count = 0
        self._lowest = self._highest = self._last = number
        self._sum = self._lost = 0.0

    def add(self, time: int, number: float) -> None:
        self.ended = time
        self._count += 1
        self._last = number
        if number < self._lowest:
            self._lowest = number
        elif number > self._highest:
            self._highest = number
        self._add_up(number * _SMALLER)

    def add_minute(self, time: int, mean: float, minute: Shown) -> None:
        self.ended = time
        self._count += minute.count
        self._last = minute.last
        self._lowest = min(self._lowest, minute.min)
        self._highest = max(self._highest, minute.max)
        self._add_up(mean * minute.count * _SMALLER)

    def _add_up(self, number: float) -> None:
        """Add to the sum, and keep what a float loses thereby (after Neumaier)."""
        added = self._sum + number
        larger, smaller = (self._sum, number) if abs(self._sum) >= abs(number) else (number, self._sum)
        self._lost += (larger - added) + smaller
        self._sum = added

    def told(self, beginning: str) -> rest.Bucket:
        mean = (self._sum + self._lost) / self._count / _SMALLER
        return rest.Bucket(
            time=beginning,
            min=plain_number(self._lowest),
            # Within its bounds in spite of rounding, also where it gets too large.
            mean=plain_number(min(max(mean, self._lowest), self._highest)),
            max=plain_number(self._highest),
            count=self._count,
            last=plain_number(self._last),
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
        if self._seen <= _DISTANCES:
            self._kept.append(distance)
        elif (place := int(self._random.random() * self._seen)) < _DISTANCES:
            self._kept[place] = distance

    def usual(self) -> float:
        """The median of them."""
        return median(self._kept) if self._kept else 0.0


def _empty(beginning: str) -> rest.Bucket:
    return rest.Bucket(time=beginning, min=None, mean=None, max=None, count=0, last=None)
