"""Going through pieces of a device's samples in order, where each is loaded only when its time has come.

A day of one device may be far more than fits into memory, and who wants its first page wants little of it.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace, merge
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.db.samples.block import sort_unique_samples
from meshfleet.db.samples.sample import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from meshfleet.db.samples.sample import SampleIdentity, SampleQuery, StoredSample


# Going through samples day by day: nobody waits for a year in order to see its last hour.


def scan_days(
    query: SampleQuery,
    days: Iterable[int],
    load: Callable[[int], Iterable[StoredSample]],
    strays: Iterable[StoredSample],
) -> Iterator[StoredSample]:
    """What is wanted, in order, each once. `load` gives what is wanted of a day, in order, and so are strays.

    A stray is a sample whose own time was not believed when it came; it stands where its time says.
    """
    backwards = query.newest_first
    since, until = query.time_range
    first, last = since // DAY_MS, (until - 1) // DAY_MS
    inside = sorted((day for day in set(days) if first <= day <= last), reverse=backwards)

    def by_day() -> Iterator[StoredSample]:
        for day in inside:
            yield from load(day)

    together = merge(by_day(), strays, key=attrgetter("identity"), reverse=backwards)
    for _, same in groupby(together, key=attrgetter("identity")):
        yield next(same)


class BlockSource(NamedTuple):
    """Samples that are somewhere, in any order."""

    first: int
    """No sample is older than this, in milliseconds,"""
    last: int
    """and none is younger than this."""
    load: Callable[[], Iterable[StoredSample]]


def merge_sources(sources: Iterable[BlockSource], *, newest_first: bool = False) -> Iterator[StoredSample]:
    """The samples of all pieces in order, each once: of two with one identity that of the earlier piece.

    What is in memory are the pieces that overlap at the time that has been reached.
    """
    place = _descending_key if newest_first else _ascending_key
    waiting = [(-each.last if newest_first else each.first, rank, each) for rank, each in enumerate(sources)]
    waiting.sort(reverse=True, key=lambda each: each[:2])
    begun: list[tuple[SampleIdentity, int, StoredSample, Iterator[StoredSample]]] = []
    told: SampleIdentity | None = None
    while waiting or begun:
        while waiting and (not begun or waiting[-1][0] <= begun[0][0][0]):
            _, rank, piece = waiting.pop()
            rest = iter(sort_unique_samples(piece.load(), newest_first=newest_first))
            if (sample := next(rest, None)) is not None:
                heappush(begun, (place(sample), rank, sample, rest))
        if not begun:
            continue
        reached, rank, sample, rest = begun[0]
        if reached != told:
            yield sample
            told = reached
        if (following := next(rest, None)) is None:
            heappop(begun)
        else:
            heapreplace(begun, (place(following), rank, following, rest))


def _ascending_key(sample: StoredSample) -> SampleIdentity:
    return sample.time, sample.kind, sample.identifier, sample.seq


def _descending_key(sample: StoredSample) -> SampleIdentity:
    return -sample.time, -sample.kind, -sample.identifier, -sample.seq
