"""Going through samples day by day: nobody waits for a year in order to see its last hour."""

from __future__ import annotations

from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

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
    """What is wanted, in order, each once. `load` gives what is wanted of a day, in order, and so are strays.

    A stray is a sample whose own time was not believed when it came; it stands where its time says.
    """
    backwards = wanted.newest_first
    since, until = wanted.bounds
    first, last = since // DAY, (until - 1) // DAY
    inside = sorted((day for day in set(days) if first <= day <= last), reverse=backwards)

    def by_day() -> Iterator[Sample]:
        for day in inside:
            yield from load(day)

    together = merge(by_day(), strays, key=attrgetter("identity"), reverse=backwards)
    for _, same in groupby(together, key=attrgetter("identity")):
        yield next(same)
