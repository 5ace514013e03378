"""Heartbeats and readings of the radio, minute by minute (report-51).

A minute is closed some seconds after its end, or after the last reading that belongs to it if that came late;
it becomes one sample then. What comes still later is not counted any more, so that nothing counts twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from meshfleet.db.samples import NO_SEQ, More, SampleKind
from meshfleet.service.ingest.readings import ReadingKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.db.samples import Row, Sample
    from meshfleet.service.ingest.readings import Reading

_MINUTE: Final = 60_000
_GRACE: Final = 5_000
"""Milliseconds."""

_FEW: Final = 64
"""Times of a minute that are remembered one by one; more take less room as bits."""

_AT_ONCE: Final = 50_000
"""Minutes that are closed in one transaction."""


class Minute(Struct, gc=False):
    """What was heard within a minute."""

    batch: int
    """The number of the oldest batch that is in it."""
    opened_at: int
    touched_at: int
    gateway: int
    count: int = 0
    total: int = 0
    least: int = 2**62
    most: int = -(2**62)
    last: int = 0
    last_at: int = -(2**62)
    unreachable: bool = False
    times: set[int] | bytearray | None = None
    """Of all that is in it, if that is more than one: if it is many, a bit for each millisecond."""

    def has(self, time: int) -> bool:
        """Whether a reading of this moment is in it: then it came again (report-36)."""
        if time == self.last_at or self.times is None:
            return time == self.last_at
        if isinstance(self.times, set):
            return time in self.times
        moment = time % _MINUTE
        return self.times[moment >> 3] >> (moment & 7) & 1 == 1

    def add(self, time: int, value: int, *, unreachable: bool) -> None:
        """Count a reading."""
        if self.count:
            self._note(time)
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)
        if time >= self.last_at:
            self.last, self.last_at, self.unreachable = value, time, unreachable

    def _note(self, time: int) -> None:
        if self.times is None:
            self.times = {self.last_at}
        if isinstance(self.times, set):
            self.times.add(time)
            if len(self.times) <= _FEW:
                return
            many, self.times = self.times, bytearray(_MINUTE // 8)
        else:
            many = {time}
        for each in many:
            moment = each % _MINUTE
            self.times[moment >> 3] |= 1 << (moment & 7)


class Shown(Struct, frozen=True, gc=False, rename="camel"):
    """What is kept of a minute beside the mean."""

    count: int
    min: int
    max: int
    last: int
    last_at: int
    unreachable: bool = False


class Rollups:
    """The minutes that are still open."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int, int, int], Minute] = {}

    def add(self, batch: int, readings: Sequence[Reading], now: int) -> None:
        """Count readings of a batch."""
        for kind, device, gateway, time, value, identifier, unreachable in readings:
            if kind not in _ROLLED:
                continue
            key = (device, _ROLLED[kind], identifier, time - time % _MINUTE)
            minute = self._open.get(key)
            if minute is None:
                minute = self._open[key] = Minute(batch, now, now, gateway)
            if not minute.has(time):
                minute.touched_at = now
                minute.add(time, value, unreachable=unreachable)

    def close(self, now: int) -> dict[int, list[Row]]:
        """Take out the minutes that are over, or some of them if they are many, as samples by device."""
        over = [key for key, minute in self._open.items() if _is_over(key[3], minute, now)][:_AT_ONCE]
        rows: dict[int, list[Row]] = {}
        for key in over:
            device, kind, identifier, begin = key
            rows.setdefault(device, []).append(_row(begin, kind, identifier, self._open.pop(key)))
        return rows

    def oldest(self, otherwise: int) -> int:
        """The oldest batch that is needed if all is to be counted again."""
        return min((minute.batch for minute in self._open.values()), default=otherwise)


def _is_over(begin: int, minute: Minute, now: int) -> bool:
    """Whether a minute is closed. However late readings trickle in: what is open keeps the journal long."""
    is_quiet = minute.touched_at + _GRACE <= now or minute.opened_at + _MINUTE + 2 * _GRACE <= now
    return begin + _MINUTE + _GRACE <= now and is_quiet


_ROLLED: Final[dict[int, int]] = {
    ReadingKind.HEARTBEAT: SampleKind.HEARTBEAT,
    ReadingKind.LINK: SampleKind.LINK,
}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Shown).decode


def read_minute(sample: Sample) -> Shown | None:
    """What is kept of a minute; None: it is a single reading, whose time is not believed."""
    more = sample.more
    return None if more is None or more.ext is None else _decode(more.ext)


def _row(begin: int, kind: int, identifier: int, minute: Minute) -> Row:
    shown = Shown(
        count=minute.count,
        min=minute.least,
        max=minute.most,
        last=minute.last,
        last_at=minute.last_at,
        unreachable=minute.unreachable,
    )
    mean = minute.total / minute.count
    more = More(ext=_encode(shown).decode())
    return begin, kind, identifier, NO_SEQ, minute.gateway, mean, None, more
