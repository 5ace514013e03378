"""Memtable: holds new samples in memory for readers, until the samples are written to a segment.

Only the thread of the event loop writes to a memtable. Other threads may read a frozen memtable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db.samples.block import (
    MAX_BLOCK_SAMPLES,
    Block,
    BlockRow,
    decode_block,
    encode_blocks,
    sort_unique_samples,
)
from meshfleet.db.samples.sample import (
    DAY_MS,
    REPORTED_KINDS,
    ROW_EXTRAS,
    ROW_KIND,
    ROW_TIME,
    SampleRow,
    SampleRows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


Day = int | None
"""Day of a sample, counted from 1970-01-01; None if the sample's time is implausible."""


_MIN_TIME: Final = -(2**62)
_MAX_TIME: Final = 2**62


class Memtable:
    """New samples in memory, which are not in a segment yet: one block for each day and device."""

    def __init__(self) -> None:
        self.days: dict[Day, dict[int, Block]] = {}
        self.sample_count = 0
        self.byte_size = 0
        """Size of all samples in encoded form, in bytes."""
        self.batches: dict[int, int] = {}
        """Number of samples for readers in each batch of this memtable, by the id of its journal row.

        It is 0 for a batch of minute roll-ups, which readers do not get.

        A batch whose commit was not confirmed is not listed here, but may be in the journal.
        """

    def add(self, journal_id: int, rows: SampleRows) -> None:
        """Add the samples of a committed batch. `journal_id` is the id of the batch's row in the journal."""
        count_before = self.sample_count
        device_rows: Sequence[SampleRow] = ()
        for device, device_rows in rows.items():
            if len(device_rows) == 1:
                self.byte_size += self._get_block(_get_day(device_rows[0]), device).add(device_rows)
            else:
                for day, day_rows in _split_by_day(device_rows):
                    self.byte_size += self._get_block(day, device).add(day_rows)
            self.sample_count += len(device_rows)
        # A batch has either reported samples or roll-ups: one row tells which.
        is_reported = bool(device_rows) and device_rows[0][ROW_KIND] in REPORTED_KINDS
        self.batches[journal_id] = self.sample_count - count_before if is_reported else 0

    def _get_block(self, day: Day, device: int) -> Block:
        """Return the block of a day and device; create it if it is missing."""
        blocks = self.days.get(day)
        if blocks is None:
            blocks = self.days[day] = {}
        block = blocks.get(device)
        if block is None:
            block = blocks[device] = Block()
        return block

    def build_day_rows(self, day: Day) -> Iterator[BlockRow]:
        """Build the segment rows with the samples of a day, ordered by device.

        The samples of a block are in the order of arrival. Only a block with more than MAX_BLOCK_SAMPLES is
        sorted and split.
        """
        first, last = (_MIN_TIME, _MAX_TIME) if day is None else (day * DAY_MS, (day + 1) * DAY_MS - 1)
        blocks = self.days[day]
        for device in sorted(blocks):
            block = blocks[device]
            if block.count <= MAX_BLOCK_SAMPLES:
                yield BlockRow(device, 0, first, last, block.data)
            else:
                yield from encode_blocks(device, sort_unique_samples(decode_block(block.data)))

    def count_samples(self, day: Day) -> int:
        """Count the samples of a day, including duplicates."""
        return sum(block.count for block in self.days[day].values())

    def copy_device_blocks(self, device: int) -> dict[Day, bytes]:
        """Return copies of the encoded sample blocks of one device, by day."""
        return {day: bytes(blocks[device]) for day, blocks in self.days.items() if device in blocks}


def _split_by_day(rows: Sequence[SampleRow]) -> Iterator[tuple[Day, Sequence[SampleRow]]]:
    """Group sample rows by day. Nearly always, all rows are of one day."""
    first = _get_day(rows[0])
    if all(_get_day(row) == first for row in rows):
        yield first, rows
        return
    for day in {_get_day(row) for row in rows}:
        yield day, [row for row in rows if _get_day(row) == day]


def _get_day(row: SampleRow) -> Day:
    """Return the day of a sample; None if the time of the sample is implausible."""
    extras = row[ROW_EXTRAS]
    return row[ROW_TIME] // DAY_MS if extras is None or extras.clock is None else None
