"""Heartbeats and readings of the radio, minute by minute (report-51).

A minute is closed some seconds after its end, or after the last reading that belongs to it if that came late;
it becomes one sample then. What comes still later is not counted any more, so that nothing counts twice.
Until that sample is committed, `Rollups.minutes_of` gives it as far as it is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct

from meshfleet.db.samples import NO_SEQ, SampleExtras, SampleKind, StoredSample
from meshfleet.service.ingest.readings import ReadingKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from meshfleet.db.samples import SampleRow
    from meshfleet.service.ingest.readings import Reading

_MINUTE_MS: Final = 60_000
_GRACE_MS: Final = 5_000
"""Milliseconds."""

_MAX_TIME_SET: Final = 64
"""Times of a minute that are remembered one by one; more take less room as bits."""

MAX_CLOSED_PER_FLUSH: Final = 50_000
"""Minutes that are closed in one transaction."""

_MAX_CHAIN_LENGTH: Final = 64
"""Open minutes of one device that can be read. A device has a dozen parents at most, and two minutes of each;
gateways that make parents up must not make a chain of any length."""

_MinuteKey: TypeAlias = tuple[int, int, int, int]
"""Device, kind of sample, identifier (of a link: the parent) and beginning of a minute."""


class MinuteRollup(Struct, gc=False):
    """What was heard within a minute."""

    oldest_batch: int
    """The number of the oldest batch that is in it."""
    opened_at: int
    updated_at: int
    gateway: int
    """The one that brought the last reading."""
    count: int = 0
    total: int = 0
    least: int = 2**62
    most: int = -(2**62)
    last: int = 0
    last_at: int = -(2**62)
    unreachable: bool = False
    times: set[int] | bytearray | None = None
    """Of all that is in it, if that is more than one: if it is many, a bit for each millisecond."""
    key: _MinuteKey | None = None
    previous: MinuteRollup | None = None
    """The minute of the same device that was opened before this one: a chain costs less than a list."""
    chain_length: int = 1
    """How many minutes the chain has from here on, where the chain begins; 0: it is closed."""

    def has(self, time: int) -> bool:
        """Whether a reading of this moment is in it: then it came again (report-36)."""
        if time == self.last_at or self.times is None:
            return time == self.last_at
        if isinstance(self.times, set):
            return time in self.times
        moment = time % _MINUTE_MS
        return self.times[moment >> 3] >> (moment & 7) & 1 == 1

    def add(self, time: int, value: int, *, unreachable: bool) -> None:
        """Count a reading."""
        if self.count:
            self._record_time(time)
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)
        if time >= self.last_at:
            self.last, self.last_at, self.unreachable = value, time, unreachable

    def _record_time(self, time: int) -> None:
        if self.times is None:
            self.times = {self.last_at}
        if isinstance(self.times, set):
            self.times.add(time)
            if len(self.times) <= _MAX_TIME_SET:
                return
            many, self.times = self.times, bytearray(_MINUTE_MS // 8)
        else:
            many = {time}
        for each in many:
            moment = each % _MINUTE_MS
            self.times[moment >> 3] |= 1 << (moment & 7)


class MinuteSummary(Struct, frozen=True, gc=False, rename="camel"):
    """What is kept of a minute beside the mean."""

    count: int
    min: int
    max: int
    last: int
    last_at: int
    unreachable: bool = False


class Rollups:
    """The minutes that are still open, or closed and not committed yet."""

    def __init__(self, *, max_per_flush: int = MAX_CLOSED_PER_FLUSH) -> None:
        """Begin without any. At most `at_once` are closed in one transaction."""
        self._max_per_flush = max_per_flush
        self._open: dict[_MinuteKey, MinuteRollup] = {}
        self._chains: dict[int, MinuteRollup] = {}
        """The minute of each device that was opened last; the others hang on it."""

    def add(self, batch: int, readings: Sequence[Reading], now: int) -> None:
        """Count readings of a batch."""
        chains = self._chains
        for kind, device, gateway, time, value, identifier, unreachable in readings:
            if kind not in _ROLLED_KINDS:
                continue
            key = (device, _ROLLED_KINDS[kind], identifier, time - time % _MINUTE_MS)
            minute = self._open.get(key)
            if minute is None:
                minute = self._open[key] = MinuteRollup(batch, now, now, gateway)
                minute.key = key
                if (before := chains.get(device)) is None:
                    chains[device] = minute
                elif before.chain_length < _MAX_CHAIN_LENGTH:
                    minute.previous, minute.chain_length = before, before.chain_length + 1
                    chains[device] = minute
            if not minute.has(time):
                minute.updated_at = now
                if time >= minute.last_at:
                    minute.gateway = gateway
                minute.add(time, value, unreachable=unreachable)

    def list_open_minutes(self, device: int, kinds: Collection[int]) -> list[StoredSample]:
        """Return what is known of the minutes of a device that are not committed yet, the oldest first.

        They are the samples that these minutes would become now. Read them before the sample store: a minute
        that is committed meanwhile is then read twice, and not missed.
        """
        found = [
            StoredSample(*_to_row(each.key[3], each.key[1], each.key[2], each))
            for each in _walk_chain(self._chains.get(device))
            if each.key is not None and each.key[1] in kinds
        ]
        return sorted(found, key=lambda each: each.identity)

    def close_due(self, now: int) -> dict[int, list[SampleRow]]:
        """Close the minutes that are over, or some if they are many, and return them as samples by device.

        They can still be read until `forget_closed` is called.
        """
        over = [key for key, minute in self._open.items() if _is_over(key[3], minute, now)]
        rows: dict[int, list[SampleRow]] = {}
        for key in over[: self._max_per_flush]:
            device, kind, identifier, begin = key
            minute = self._open.pop(key)
            minute.chain_length = 0
            rows.setdefault(device, []).append(_to_row(begin, kind, identifier, minute))
        return rows

    def drop_closed(self, devices: Iterable[int]) -> None:
        """Forget the closed minutes of devices: they are committed, and the sample store has them."""
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

    def oldest_batch(self, default: int) -> int:
        """The oldest batch that is needed if all is to be counted again."""
        return min((minute.oldest_batch for minute in self._open.values()), default=default)


def _walk_chain(minute: MinuteRollup | None) -> list[MinuteRollup]:
    """Return the minutes of a chain, the one that was opened last first."""
    found = []
    while minute is not None:
        found.append(minute)
        minute = minute.previous
    return found


def _is_over(begin: int, minute: MinuteRollup, now: int) -> bool:
    """Whether a minute is closed. However late readings trickle in: what is open keeps the journal long.

    One that was opened later than now is closed too: the clock of this machine was set back since.
    """
    if minute.opened_at > now:
        return True
    is_quiet = minute.updated_at + _GRACE_MS <= now or minute.opened_at + _MINUTE_MS + 2 * _GRACE_MS <= now
    return begin + _MINUTE_MS + _GRACE_MS <= now and is_quiet


_ROLLED_KINDS: Final[dict[int, int]] = {
    ReadingKind.HEARTBEAT: SampleKind.HEARTBEAT,
    ReadingKind.LINK: SampleKind.LINK,
}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(MinuteSummary).decode


def decode_minute(sample: StoredSample) -> MinuteSummary | None:
    """What is kept of a minute; None: it is a single reading, whose time is not believed."""
    more = sample.more
    return None if more is None or more.ext is None else _decode(more.ext)


def _to_row(begin: int, kind: int, identifier: int, minute: MinuteRollup) -> SampleRow:
    shown = MinuteSummary(
        count=minute.count,
        min=minute.least,
        max=minute.most,
        last=minute.last,
        last_at=minute.last_at,
        unreachable=minute.unreachable,
    )
    mean = minute.total / minute.count
    more = SampleExtras(ext=_encode(shown).decode())
    return begin, kind, identifier, NO_SEQ, minute.gateway, mean, None, more
