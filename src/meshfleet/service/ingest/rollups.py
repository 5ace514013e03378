"""Roll-ups of heartbeats and radio readings by minute (report-51).

A minute is closed some seconds after its end, or some seconds after its last reading if that came late. Its
readings become one sample then. Readings that arrive later are not counted, so that none counts twice. Until
the sample of a minute is committed, `Rollups.list_unwritten_minutes` returns the minute's roll-up so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct

from meshfleet.db.samples import NO_SEQ, SampleExtras, SampleKind, SampleRow, StoredSample
from meshfleet.service.ingest.readings import Reading, ReadingKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


_MINUTE_MS: Final = 60_000
_GRACE_MS: Final = 5_000
"""Milliseconds to wait for late readings before a minute is closed."""

_MAX_TIME_SET: Final = 64
"""Maximum number of reading times of a minute in a set; more are kept in a bitmap to save memory."""

MAX_CLOSED_PER_FLUSH: Final = 50_000
"""Maximum number of minute roll-ups closed in one transaction."""

_MAX_CHAIN_LENGTH: Final = 64
"""Maximum number of open minute roll-ups of one device that `list_unwritten_minutes` returns.

A device has a dozen parents at most, with two open minutes each. The limit protects against gateways that
report invented parents.
"""

_MinuteKey: TypeAlias = tuple[int, int, int, int]
"""Device, sample kind, identifier (parent for a link, 0 for a heartbeat) and start of the minute."""
_KEY_DEVICE, _KEY_KIND, _KEY_START = 0, 1, 3


class MinuteRollup(Struct, gc=False):
    """Heartbeats of a device, or readings of its link to one parent, in one minute.

    Times are Unix times in milliseconds.
    """

    oldest_journal_id: int
    """Id of the oldest journal entry that contains readings of this minute."""
    opened_at: int
    updated_at: int
    gateway: int
    """Gateway that sent the newest reading."""
    count: int = 0
    total: int = 0
    least: int = 2**62
    most: int = -(2**62)
    last: int = 0
    last_at: int = -(2**62)
    unreachable: bool = False
    times: set[int] | bytearray | None = None
    """Times of all readings, to detect duplicates: None for at most one reading, a set for several.

    More than 64 times are kept in a bitmap with one bit per millisecond of the minute.
    """
    key: _MinuteKey | None = None
    previous: MinuteRollup | None = None
    """Previously opened minute of the same device: the minutes of a device form a linked list."""
    chain_length: int = 1
    """Length of the device's linked list, valid only in its first minute; 0 means: this minute is closed."""

    def has(self, time: int) -> bool:
        """Return whether the roll-up contains a reading with this time, which is then a copy (report-36)."""
        if time == self.last_at or self.times is None:
            return time == self.last_at
        if isinstance(self.times, set):
            return time in self.times
        offset = time % _MINUTE_MS
        return self.times[offset >> 3] >> (offset & 7) & 1 == 1

    def add(self, time: int, value: int, *, unreachable: bool) -> None:
        """Add a reading to the statistics of the minute."""
        if self.count:
            self._record_time(time)
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)
        if time >= self.last_at:
            self.last, self.last_at, self.unreachable = value, time, unreachable

    def _record_time(self, time: int) -> None:
        """Add the time of a reading to the times by which copies are detected."""
        if self.times is None:
            self.times = {self.last_at}
        if isinstance(self.times, set):
            self.times.add(time)
            if len(self.times) <= _MAX_TIME_SET:
                return
            times, self.times = self.times, bytearray(_MINUTE_MS // 8)
        else:
            times = {time}
        for seen_at in times:
            offset = seen_at % _MINUTE_MS
            self.times[offset >> 3] |= 1 << (offset & 7)


class MinuteSummary(Struct, frozen=True, gc=False, rename="camel"):
    """Statistics of a minute, stored as JSON in the minute's sample; the sample's value is the mean."""

    count: int
    min: int
    max: int
    last: int
    last_at: int
    unreachable: bool = False


class Rollups:
    """Minute roll-ups of all devices, open or closed, whose samples are not committed yet."""

    def __init__(self, *, max_per_flush: int = MAX_CLOSED_PER_FLUSH) -> None:
        """Create without roll-ups. `close_ended_minutes` closes at most `max_per_flush` minutes per call."""
        self._max_per_flush = max_per_flush
        self._open: dict[_MinuteKey, MinuteRollup] = {}
        self._chains: dict[int, MinuteRollup] = {}
        """Most recently opened minute by device: the first in the linked list of the device's minutes."""

    def add(self, journal_id: int, readings: Sequence[Reading], now: int) -> None:
        """Add the heartbeats and radio readings of one journal entry to the roll-ups of their minutes."""
        chains = self._chains
        for kind, device, gateway, time, value, identifier, unreachable in readings:
            if kind not in _ROLLED_KINDS:
                continue
            key = (device, _ROLLED_KINDS[kind], identifier, time - time % _MINUTE_MS)
            minute = self._open.get(key)
            if minute is None:
                minute = self._open[key] = MinuteRollup(journal_id, now, now, gateway)
                minute.key = key
                if (head := chains.get(device)) is None:
                    chains[device] = minute
                elif head.chain_length < _MAX_CHAIN_LENGTH:
                    minute.previous, minute.chain_length = head, head.chain_length + 1
                    chains[device] = minute
            if not minute.has(time):
                minute.updated_at = now
                if time >= minute.last_at:
                    minute.gateway = gateway
                minute.add(time, value, unreachable=unreachable)

    def list_unwritten_minutes(self, device: int, kinds: Collection[int]) -> list[StoredSample]:
        """Return the minutes of a device that are not committed yet as samples, the oldest first.

        An open minute is returned as if it were closed now. Call this before reading the sample store: then a
        minute that is committed in between is read twice instead of missed.
        """
        samples = [
            StoredSample(*_build_sample_row(minute.key, minute))
            for minute in _list_chain(self._chains.get(device))
            if minute.key is not None and minute.key[_KEY_KIND] in kinds
        ]
        return sorted(samples, key=lambda sample: sample.identity)

    def close_ended_minutes(self, now: int) -> dict[int, list[SampleRow]]:
        """Close the minutes that have ended, at most `max_per_flush`. Return their samples by device.

        `list_unwritten_minutes` still returns these minutes until `drop_closed_minutes` is called.
        """
        due = [key for key, minute in self._open.items() if _has_minute_ended(key[_KEY_START], minute, now)]
        rows: dict[int, list[SampleRow]] = {}
        for key in due[: self._max_per_flush]:
            minute = self._open.pop(key)
            minute.chain_length = 0
            rows.setdefault(key[_KEY_DEVICE], []).append(_build_sample_row(key, minute))
        return rows

    def drop_closed_minutes(self, devices: Iterable[int]) -> None:
        """Delete the closed minutes of devices from memory, after their samples were committed."""
        chains = self._chains
        for device in devices:
            first, last, count = None, None, 0
            minute = chains.pop(device, None)
            while minute is not None:
                if minute.chain_length:
                    if last is None:
                        first = minute
                    else:
                        last.previous = minute
                    last, count = minute, count + 1
                minute = minute.previous
            if first is not None and last is not None:
                last.previous, first.chain_length = None, count
                chains[device] = first

    def find_oldest_journal_id(self, default: int) -> int:
        """Return the id of the oldest journal entry with readings of open minutes, or else `default`."""
        return min((minute.oldest_journal_id for minute in self._open.values()), default=default)


def _list_chain(minute: MinuteRollup | None) -> list[MinuteRollup]:
    """Return a minute of a device and all its minutes that were opened before, the newest first."""
    minutes = []
    while minute is not None:
        minutes.append(minute)
        minute = minute.previous
    return minutes


def _has_minute_ended(start: int, minute: MinuteRollup, now: int) -> bool:
    """Return whether a minute must be closed, because it has ended and no late readings are expected.

    Late readings delay closing by about a minute at most, because the journal must keep the readings of open
    minutes. A minute that was opened in the future is closed too: the clock of this machine was set back.
    """
    if minute.opened_at > now:
        return True
    is_quiet = minute.updated_at + _GRACE_MS <= now or minute.opened_at + _MINUTE_MS + 2 * _GRACE_MS <= now
    return start + _MINUTE_MS + _GRACE_MS <= now and is_quiet


_ROLLED_KINDS: Final[dict[int, int]] = {
    ReadingKind.HEARTBEAT: SampleKind.HEARTBEAT,
    ReadingKind.LINK: SampleKind.LINK,
}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(MinuteSummary).decode


def decode_minute(sample: StoredSample) -> MinuteSummary | None:
    """Decode the statistics of a minute from its sample.

    Return None for the sample of a single reading, which is stored if the reading's time is implausible.
    """
    extras = sample.more
    return None if extras is None or extras.ext is None else _decode(extras.ext)


def _build_sample_row(key: _MinuteKey, minute: MinuteRollup) -> SampleRow:
    """Build the sample of a minute from its roll-up."""
    _, kind, identifier, start = key
    summary = MinuteSummary(
        count=minute.count,
        min=minute.least,
        max=minute.most,
        last=minute.last,
        last_at=minute.last_at,
        unreachable=minute.unreachable,
    )
    mean = minute.total / minute.count
    extras = SampleExtras(ext=_encode(summary).decode())
    return start, kind, identifier, NO_SEQ, minute.gateway, mean, None, extras
