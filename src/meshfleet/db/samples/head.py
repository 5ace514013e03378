"""The head: samples that are in the journal and in no segment yet, as readers find them.

Everything here is done by the event loop's thread, but for reading one that is no longer written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db.samples.chunk import MOST, Chunk, pack, unique, unpack
from meshfleet.db.samples.sample import DAY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from meshfleet.db.samples.chunk import ChunkRow
    from meshfleet.db.samples.sample import Row, Rows

Day = int | None
"""Days since 1970; None for samples whose own time is not believed."""


_FIRST: Final = -(2**62)
_LAST: Final = 2**62


class Head:
    """Samples by day and device."""

    def __init__(self) -> None:
        self.days: dict[Day, dict[int, Chunk]] = {}
        self.samples = 0
        self.size = 0
        """Bytes that they take."""
        self.batches: list[int] = []
        """The numbers of those that are in here. One that nobody saw committed is in the journal alone."""

    def add(self, number: int, rows: Rows) -> None:
        """Take a batch over."""
        for device, new in rows.items():
            if len(new) == 1:
                self.size += self._chunk(_day(new[0]), device).add(new)
            else:
                for day, part in _by_day(new):
                    self.size += self._chunk(day, device).add(part)
            self.samples += len(new)
        self.batches.append(number)

    def _chunk(self, day: Day, device: int) -> Chunk:
        chunks = self.days.get(day)
        if chunks is None:
            chunks = self.days[day] = {}
        chunk = chunks.get(device)
        if chunk is None:
            chunk = chunks[device] = Chunk()
        return chunk

    def chunks(self, day: Day) -> Iterator[ChunkRow]:
        """The chunks of a day as a segment has them; samples are as they came, unless they are many."""
        first, last = (_FIRST, _LAST) if day is None else (day * DAY, (day + 1) * DAY - 1)
        chunks = self.days[day]
        for device in sorted(chunks):
            chunk = chunks[device]
            if chunk.count <= MOST:
                yield device, 0, first, last, chunk.data
                continue
            for part, (begin, end, data) in enumerate(pack(unique(unpack(chunk.data)))):
                yield device, part, begin, end, data

    def count(self, day: Day) -> int:
        """How many samples a day has."""
        return sum(chunk.count for chunk in self.days[day].values())

    def of(self, device: int) -> dict[Day, bytes]:
        """A copy of the chunks of one device."""
        return {day: bytes(chunks[device]) for day, chunks in self.days.items() if device in chunks}


def _by_day(rows: Sequence[Row]) -> Iterator[tuple[Day, Sequence[Row]]]:
    """Rows sorted out by day. Nearly always all are of the same."""
    first = _day(rows[0])
    if all(_day(row) == first for row in rows):
        yield first, rows
        return
    for day in {_day(row) for row in rows}:
        yield day, [row for row in rows if _day(row) == day]


def _day(row: Row) -> Day:
    more = row[7]
    return row[0] // DAY if more is None or more.clock is None else None
