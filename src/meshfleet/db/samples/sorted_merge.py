"""Merges the samples of a device in time order and loads each block only when its time is reached.

The samples of one day may not fit into memory, and a reader that needs one page should load only few samples.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace, merge
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.db.samples.block import sort_unique_samples
from meshfleet.db.samples.sample import DAY_MS, SampleIdentity, SampleQuery, StoredSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def scan_days(
    query: SampleQuery,
    days: Iterable[int],
    load_day: Callable[[int], Iterable[StoredSample]],
    strays: Iterable[StoredSample],
) -> Iterator[StoredSample]:
    """Yield the samples of a query day by day, in the requested order, without duplicates.

    `load_day` returns the matching samples of a day. `strays` are the matching samples that were stored apart
    because their time was implausible; they are yielded at their time, between the samples of the days. Both
    must be in the requested order.
    """
    is_descending = query.newest_first
    since, until = query.time_range
    first, last = since // DAY_MS, (until - 1) // DAY_MS
    queried_days = sorted((day for day in set(days) if first <= day <= last), reverse=is_descending)

    def load_days() -> Iterator[StoredSample]:
        for day in queried_days:
            yield from load_day(day)

    merged = merge(load_days(), strays, key=_ascending_key, reverse=is_descending)
    for _, duplicates in groupby(merged, key=_ascending_key):
        yield next(duplicates)


class BlockSource(NamedTuple):
    """Block of samples that is loaded on demand: its time range, and a function that returns its samples."""

    first: int
    """Inclusive lower bound of the sample times, as Unix time in milliseconds."""
    last: int
    """Inclusive upper bound of the sample times, as Unix time in milliseconds."""
    load: Callable[[], Iterable[StoredSample]]


def merge_sources(sources: Iterable[BlockSource], *, newest_first: bool = False) -> Iterator[StoredSample]:
    """Yield the samples of all sources in time order. Of duplicates, yield the sample of the first source.

    Only the sources whose time range includes the time of the current sample are in memory.
    """
    sort_key = _descending_key if newest_first else _ascending_key
    pending = [
        (-source.last if newest_first else source.first, rank, source) for rank, source in enumerate(sources)
    ]
    pending.sort(reverse=True, key=lambda entry: entry[:2])
    active: list[tuple[SampleIdentity, int, StoredSample, Iterator[StoredSample]]] = []
    yielded: SampleIdentity | None = None
    while pending or active:
        while pending and (not active or pending[-1][0] <= active[0][0][0]):
            _, rank, source = pending.pop()
            remaining = iter(sort_unique_samples(source.load(), newest_first=newest_first))
            if (sample := next(remaining, None)) is not None:
                heappush(active, (sort_key(sample), rank, sample, remaining))
        if not active:
            continue
        key, rank, sample, remaining = active[0]
        if key != yielded:
            yield sample
            yielded = key
        if (next_sample := next(remaining, None)) is None:
            heappop(active)
        else:
            heapreplace(active, (sort_key(next_sample), rank, next_sample, remaining))


def _ascending_key(sample: StoredSample) -> SampleIdentity:
    return sample.time, sample.kind, sample.identifier, sample.seq


def _descending_key(sample: StoredSample) -> SampleIdentity:
    return -sample.time, -sample.kind, -sample.identifier, -sample.seq
