"""Going through samples day by day: nobody waits for a year in order to see its last hour."""

from __future__ import annotations

from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from meshfleet.db.samples.chunk import unique
from meshfleet.db.samples.sample import DAY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from meshfleet.db.samples.sample import Sample, Wanted


def scan(
    wanted: Wanted,
    days: Iterable[int],
    load: Callable[[int], Iterable[Sample]],
    strays: Iterable[Sample],
) -> Iterator[Sample]:
    """What is wanted, in order, each once. `load` gives samples of a day and may give more than is wanted.

    A stray is a sample whose own time was not believed when it came; it stands where its time says.
    """
    backwards = wanted.newest_first
    first, last = _bounds(wanted)
    inside = sorted((day for day in set(days) if first <= day <= last), reverse=backwards)

    def by_day() -> Iterator[Sample]:
        for day in inside:
            yield from _ordered(wanted, load(day))

    together = merge(by_day(), _ordered(wanted, strays), key=attrgetter("identity"), reverse=backwards)
    for _, same in groupby(together, key=attrgetter("identity")):
        yield next(same)


def _ordered(wanted: Wanted, samples: Iterable[Sample]) -> list[Sample]:
    return unique(filter(wanted.holds, samples), newest_first=wanted.newest_first)


def _bounds(wanted: Wanted) -> tuple[int, int]:
    """The first and the last day that can hold anything."""
    since, until = wanted.since, wanted.until - 1
    if wanted.after is not None and wanted.newest_first:
        until = min(until, wanted.after[0])
    elif wanted.after is not None:
        since = max(since, wanted.after[0])
    return since // DAY, until // DAY
