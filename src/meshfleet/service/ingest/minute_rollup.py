"""Roll-up of one minute: its statistics while readings arrive, and the sample that is stored of it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct

from meshfleet.db.samples import NO_SEQ, SampleExtras
from meshfleet.service.ingest.readings import (
    CHANNEL_BASE,
    CHANNEL_MASK,
    CHANNEL_SHIFT,
    COPIES_SHIFT,
    SEQ_MASK,
    SEQ_SHIFT,
    UNREACHABLE,
)

if TYPE_CHECKING:
    from meshfleet.db.samples import SampleRow, StoredSample

MINUTE_MS: Final = 60_000

MARK_BITS: Final = 2
"""Number of bits of a mark below the time, for the channel."""
_CHANNEL_BITS: Final = (1 << MARK_BITS) - 1
_MARKS_PER_MINUTE: Final = MINUTE_MS << MARK_BITS

_MAX_MARK_SET: Final = 64
"""Maximum number of marks of a minute in a set; more are kept in a bitmap to save memory."""

# An integer holds the readings of all three channels, because a list for each minute would cost more than the
# rest of the roll-up. Each channel has a lane with a count, and a sum of RSSI that are made positive.

_RSSI_OFFSET: Final = 1 << 15
_TOTAL_BITS: Final = 40
_TOTAL_MASK: Final = (1 << _TOTAL_BITS) - 1
_LANE_BITS: Final = 64
_LANE_MASK: Final = (1 << _LANE_BITS) - 1
_LANES: Final = (0, 0, _LANE_BITS, 2 * _LANE_BITS)
"""Position of the lane of a channel; the first entry is not used."""
_ONE_READING: Final = (1 << _TOTAL_BITS) + _RSSI_OFFSET

_SEQ_VALUES: Final = 256
"""Number of values of `seq`."""

MinuteKey: TypeAlias = tuple[int, int, int, int]
"""Device, sample kind, identifier (parent for a link, 0 for a heartbeat) and start of the minute."""
KEY_DEVICE, KEY_KIND, KEY_IDENTIFIER, KEY_START = 0, 1, 2, 3


class MinuteRollup(Struct, gc=False):
    """Heartbeats of a device, or readings of its link to one parent, in one minute.

    Times are Unix times in milliseconds. A mark is the time of a reading with its channel, by which copies of
    the reading are detected: a node may hear one advertisement on several channels at the same time.
    """

    oldest_journal_id: int
    """Id of the oldest journal entry that contains readings of this minute."""
    opened_at: int
    updated_at: int
    gateway: int
    """Gateway that sent the newest reading."""
    key: MinuteKey
    count: int = 0
    total: int = 0
    least: int = 2**62
    most: int = -(2**62)
    last: int = 0
    last_mark: int = -(2**62)
    unreachable: bool = False
    marks: set[int] | bytearray | None = None
    """Marks of all readings, to detect copies: None for at most one reading, a set for several.

    More than 64 marks are kept in a bitmap with four bits per millisecond of the minute.
    """
    seqs: int = 0
    """Bit mask of the values of `seq`, in bits 1 to 256."""
    copies: int = 0
    """Sum of `lastCount` of heartbeats."""
    copy_reports: int = 0
    """Number of heartbeats with `lastCount`."""
    heard: int = 0
    """Counts and sums of the readings by advertising channel, packed as `_LANES` describes."""
    channelless_at: int = 0
    """Time of the newest reading without a channel, if `heard` is not 0; 0 if there is none."""
    linked_before: int = 0
    """Time of the newest reading without a channel in an earlier minute of the link; 0 if unknown."""
    previous: MinuteRollup | None = None
    """Previously opened minute of the same device: the minutes of a device form a linked list."""
    chain_length: int = 1
    """Length of the device's linked list, valid only in its first minute; 0 means: this minute is closed."""

    @property
    def last_at(self) -> int:
        """Time of the newest reading."""
        return self.last_mark >> MARK_BITS

    @property
    def linked_at(self) -> int:
        """Time of the newest reading over an established link (without a channel); 0 if there is none."""
        return self.channelless_at if self.heard else self.last_at

    def add(self, time: int, value: int, flags: int) -> bool:
        """Add a reading. Return False, without a change, if it is a copy of one in the minute (report-36)."""
        channel = (flags & CHANNEL_MASK) >> CHANNEL_SHIFT
        mark = time << MARK_BITS | channel
        if not self.count:  # the only reading of most minutes
            self.least = self.most = value
        elif not self._add_mark(mark):
            return False
        elif value < self.least:
            self.least = value
        elif value > self.most:
            self.most = value
        if channel or self.heard:
            self._count_channel(channel, time, value)
        self.count += 1
        self.total += value
        if mark >= self.last_mark:
            self.last, self.last_mark, self.unreachable = value, mark, flags & UNREACHABLE == 1
        if seq := (flags & SEQ_MASK) >> SEQ_SHIFT:
            self.seqs |= 1 << seq
            if copies := flags >> COPIES_SHIFT:
                self.copies += copies - 1
                self.copy_reports += 1
        return True

    def _count_channel(self, channel: int, time: int, value: int) -> None:
        """Count a reading by its channel. `channel` is 1 to 3, or 0 for a reading without a channel."""
        if not channel:
            self.channelless_at = max(self.channelless_at, time)
            return
        if not self.heard and self.count:  # all readings so far have no channel
            self.channelless_at = self.last_at
        self.heard += (_ONE_READING + value) << _LANES[channel]

    def _add_mark(self, mark: int) -> bool:
        """Record the mark of a further reading. Return False if a reading with this mark is known."""
        marks = self.marks
        if marks is None:
            if mark == self.last_mark:
                return False
            self.marks = {self.last_mark, mark}
            return True
        if isinstance(marks, set):
            if mark in marks:
                return False
            marks.add(mark)
            if len(marks) > _MAX_MARK_SET:
                self.marks = bytearray(_MARKS_PER_MINUTE // 8)
                for each in marks:
                    self._set_bit(self.marks, each)
            return True
        return self._set_bit(marks, mark)

    @staticmethod
    def _set_bit(marks: bytearray, mark: int) -> bool:
        """Set the bit of a mark in a bitmap. Return False if it is set already."""
        offset = mark % _MARKS_PER_MINUTE
        if marks[offset >> 3] >> (offset & 7) & 1:
            return False
        marks[offset >> 3] |= 1 << (offset & 7)
        return True


class SeqRange(Struct, frozen=True, gc=False, array_like=True):
    """Values of `seq` in one minute; `seq` starts again at 0 after 255."""

    first: int
    span: int
    """Number of values from the first to the last one, including missing values."""
    received: int
    """Number of different values that were received."""


_SINGLE_SEQS: Final = [SeqRange(number, 1, 1) for number in range(_SEQ_VALUES)]
"""Ranges of a single value, which are those of most minutes."""


class ChannelReadings(Struct, frozen=True, gc=False, array_like=True):
    """Readings of one minute on one advertising channel."""

    channel: int
    count: int
    total: int
    """Sum of the RSSI in dBm."""


class MinuteSummary(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Statistics of a minute, stored as JSON in the minute's sample; the sample's value is the mean.

    Version 0.1.0 stored only the fields up to `unreachable`.
    """

    count: int
    min: int
    max: int
    last: int
    last_at: int
    unreachable: bool = False
    seqs: SeqRange | None = None
    copies: tuple[int, int] | None = None
    """Heartbeats with `lastCount`, and the sum of their `lastCount`."""
    channels: list[ChannelReadings] | None = None
    """Readings by advertising channel; the other readings of the minute have no channel."""
    linked_at: int | None = None
    """Time of the newest reading without a channel, in a minute with both kinds of readings."""

    @property
    def linked_count(self) -> int:
        """Number of readings without a channel: those over an established mesh link."""
        return self.count - sum(each.count for each in self.channels or ())

    @property
    def newest_linked_at(self) -> int:
        """Time of the newest reading over an established link (without a channel); 0 if there is none."""
        return (self.linked_at or 0) if self.channels else self.last_at


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(MinuteSummary).decode


def decode_minute(sample: StoredSample) -> MinuteSummary | None:
    """Decode the statistics of a minute from its sample.

    Return None for the sample of a single reading, which is stored if the reading's time is implausible.
    """
    extras = sample.more
    return None if extras is None or extras.ext is None else _decode(extras.ext)


def build_sample_row(minute: MinuteRollup) -> SampleRow:
    """Build the sample of a minute from its roll-up."""
    _, kind, identifier, start = minute.key
    channels, seqs = None, None
    if minute.count == 1:  # as in most minutes
        if minute.seqs:
            seqs = _SINGLE_SEQS[minute.seqs.bit_length() - 2]
        if minute.heard:
            channels = [ChannelReadings(CHANNEL_BASE + (minute.last_mark & _CHANNEL_BITS), 1, minute.last)]
    else:
        seqs = _summarize_seqs(minute.seqs) if minute.seqs else None
        channels = _list_channels(minute.heard) if minute.heard else None
    summary = MinuteSummary(
        minute.count,
        minute.least,
        minute.most,
        minute.last,
        minute.last_mark >> MARK_BITS,
        minute.unreachable,
        seqs,
        (minute.copy_reports, minute.copies) if minute.copy_reports else None,
        channels,
        minute.channelless_at or None,
    )
    mean = minute.total / minute.count
    extras = SampleExtras(None, _encode(summary).decode())
    return start, kind, identifier, NO_SEQ, minute.gateway, mean, None, extras


def _list_channels(heard: int) -> list[ChannelReadings]:
    """Return the readings by advertising channel from their packed counts and sums."""
    found = []
    channel = CHANNEL_BASE
    while heard:
        channel += 1
        if lane := heard & _LANE_MASK:
            count = lane >> _TOTAL_BITS
            found.append(ChannelReadings(channel, count, (lane & _TOTAL_MASK) - count * _RSSI_OFFSET))
        heard >>= _LANE_BITS
    return found


def _summarize_seqs(mask: int) -> SeqRange:
    """Return the shortest range of successive values that contains all values in a bit mask.

    Values are cyclic, so the range begins after the largest gap.
    """
    numbers = []
    while mask:
        lowest = mask & -mask
        numbers.append(lowest.bit_length() - 2)
        mask ^= lowest
    if len(numbers) == 1:
        return _SINGLE_SEQS[numbers[0]]
    gaps = [(after - before) % _SEQ_VALUES for before, after in pairwise([numbers[-1], *numbers])]
    widest = max(range(len(gaps)), key=gaps.__getitem__)
    return SeqRange(numbers[widest], _SEQ_VALUES - gaps[widest] + 1, len(numbers))
