"""The head: samples that are in the journal and in no segment yet, as readers find them.

Everything here is done by the event loop's thread, but for reading one that is no longer written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db.samples.block import (
    MAX_BLOCK_SAMPLES,
    Block,
    decode_block,
    encode_blocks,
    sort_unique_samples,
)
from meshfleet.db.samples.sample import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from meshfleet.db.samples.block import BlockRow
    from meshfleet.db.samples.sample import SampleRow, SampleRows

Day = int | None
"""Days since 1970; None for samples whose own time is not believed."""


_MIN_TIME: Final = -(2**62)
_MAX_TIME: Final = 2**62


class Memtable:
    """Samples by day and device."""

    def __init__(self) -> None:
        self.days: dict[Day, dict[int, Block]] = {}
        self.sample_count = 0
        self.byte_size = 0
        """Bytes that they take."""
        self.batches: list[int] = []
        """The numbers of those that are in here. One that nobody saw committed is in the journal alone."""

    def add(self, number: int, rows: SampleRows) -> None:
        """Take a batch over."""
        for device, new in rows.items():
            if len(new) == 1:
                self.byte_size += self._block(_day_of(new[0]), device).add(new)
            else:
                for day, part in _split_by_day(new):
                    self.byte_size += self._block(day, device).add(part)
            self.sample_count += len(new)
        self.batches.append(number)

    def _block(self, day: Day, device: int) -> Block:
        chunks = self.days.get(day)
        if chunks is None:
            chunks = self.days[day] = {}
        chunk = chunks.get(device)
        if chunk is None:
            chunk = chunks[device] = Block()
        return chunk

    def day_blocks(self, day: Day) -> Iterator[BlockRow]:
        """The chunks of a day as a segment has them; samples are as they came, unless they are many."""
        first, last = (_MIN_TIME, _MAX_TIME) if day is None else (day * DAY_MS, (day + 1) * DAY_MS - 1)
        chunks = self.days[day]
        for device in sorted(chunks):
            chunk = chunks[device]
            if chunk.count <= MAX_BLOCK_SAMPLES:
                yield device, 0, first, last, chunk.data
                continue
            for part, (begin, end, data) in enumerate(
                encode_blocks(sort_unique_samples(decode_block(chunk.data)))
            ):
                yield device, part, begin, end, data

    def count_samples(self, day: Day) -> int:
        """How many samples a day has."""
        return sum(chunk.count for chunk in self.days[day].values())

    def device_blocks(self, device: int) -> dict[Day, bytes]:
        """A copy of the chunks of one device."""
        return {day: bytes(chunks[device]) for day, chunks in self.days.items() if device in chunks}


def _split_by_day(rows: Sequence[SampleRow]) -> Iterator[tuple[Day, Sequence[SampleRow]]]:
    """Rows sorted out by day. Nearly always all are of the same."""
    first = _day_of(rows[0])
    if all(_day_of(row) == first for row in rows):
        yield first, rows
        return
    for day in {_day_of(row) for row in rows}:
        yield day, [row for row in rows if _day_of(row) == day]


def _day_of(row: SampleRow) -> Day:
    more = row[7]
    return row[0] // DAY_MS if more is None or more.clock is None else None
