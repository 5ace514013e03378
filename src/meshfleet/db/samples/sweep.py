"""Going through pieces of a device's samples in order, where each is loaded only when its time has come.

A day of one device may be far more than fits into memory, and who wants its first page wants little of it.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.db.samples.chunk import unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from meshfleet.db.samples.sample import Identity, Sample


class Piece(NamedTuple):
    """Samples that are somewhere, in any order."""

    first: int
    """No sample is older than this, in milliseconds,"""
    last: int
    """and none is younger than this."""
    load: Callable[[], Iterable[Sample]]


def sweep(pieces: Iterable[Piece], *, newest_first: bool = False) -> Iterator[Sample]:
    """The samples of all pieces in order, each once: of two with one identity that of the earlier piece.

    What is in memory are the pieces that overlap at the time that has been reached.
    """
    place = _backwards if newest_first else _forwards
    waiting = [(-each.last if newest_first else each.first, rank, each) for rank, each in enumerate(pieces)]
    waiting.sort(reverse=True, key=lambda each: each[:2])
    begun: list[tuple[Identity, int, Sample, Iterator[Sample]]] = []
    told: Identity | None = None
    while waiting or begun:
        while waiting and (not begun or waiting[-1][0] <= begun[0][0][0]):
            _, rank, piece = waiting.pop()
            rest = iter(unique(piece.load(), newest_first=newest_first))
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


def _forwards(sample: Sample) -> Identity:
    return sample.time, sample.kind, sample.identifier, sample.seq


def _backwards(sample: Sample) -> Identity:
    return -sample.time, -sample.kind, -sample.identifier, -sample.seq
