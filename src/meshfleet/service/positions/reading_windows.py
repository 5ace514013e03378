"""Readings of a device in a window of time: single ones, or roll-ups where those are gone.

Of each minute either the single readings or the roll-up is used, whichever is more complete. Single readings
are kept for about an hour, less if there are too many, and only those that arrived while the anchor had its
place. Some arrive late, when the others are gone already.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db.samples.sample import SampleKind, SampleQuery
from meshfleet.service.ingest.minute_rollup import decode_minute
from meshfleet.service.positions.reading_steps import Step, choose_site, merge_levels
from meshfleet.service.positions.reading_store import MAX_RSSI, MIN_RSSI, AnchorLevel, average_readings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from meshfleet.db.samples.sample import SampleStore, StoredSample
    from meshfleet.service.ingest.rollups import Rollups
    from meshfleet.service.positions.reading_store import AnchorReading, DeviceReadings, ReadingStore

_MINUTE_MS: Final = 60_000
_KINDS: Final = frozenset({SampleKind.LINK})

_MIN_COMPLETENESS: Final = 1 / 2
"""Share of the readings of a minute that must be there singly: otherwise its roll-up is used."""


class WindowLevels(NamedTuple):
    """Readings of a device by the anchors of one site in a window of time."""

    site: int
    levels: Mapping[int, AnchorLevel]
    newest: int
    """Time of the newest reading, as Unix time in milliseconds."""


class ReceivedMinute(NamedTuple):
    """Readings of a device in a minute: either single ones or a roll-up."""

    start: int
    singles: Sequence[AnchorReading]
    """Single readings after the start of the minute, up to and including its end."""
    rollup: Mapping[int, AnchorLevel]
    """Levels of all readings from the start of the minute to before its end; empty if `singles` are used."""

    @property
    def newest(self) -> int:
        """Time of the newest reading; of a roll-up, the end of the minute."""
        return self.start + _MINUTE_MS if self.rollup else self.singles[-1].time

    def compute_levels(self) -> Mapping[int, AnchorLevel]:
        """Return the mean RSSI and the number of readings by anchor."""
        return self.rollup or average_readings(self.singles)


class WindowLoader:
    """Loads what anchors have read of a device from the reading store and the minute roll-ups.

    Readings are prepared in threads: an hour of a recording may have hundreds of thousands.
    """

    def __init__(self, samples: SampleStore, rollups: Rollups, readings: ReadingStore) -> None:
        self._samples = samples
        self._rollups = rollups
        self._readings = readings

    async def load_window(self, device: int, since: int, until: int) -> WindowLevels | None:
        """Load what anchors have read of a device after `since`, up to `until`. None if there is nothing."""
        steps = await self.load_steps(device, since, until)
        found = choose_site(merge_levels(levels for _, levels in steps), self._readings.anchors)
        return None if found is None else WindowLevels(*found, min(steps[-1].time, until))

    async def load_steps(self, device: int, since: int, until: int) -> list[Step]:
        """Load what anchors have read of a device after `since`, up to `until`, minute by minute.

        A step ends with its newest reading. `until` may divide a minute whose single readings are gone: the
        roll-up of such a minute is used if it began before `until`.
        """
        readings = self._readings.take_device(device)
        rollups = await self.load_rollups(device, since, until)
        return await asyncio.to_thread(_build_steps, readings, rollups, since, until)

    async def load_rollups(
        self, device: int, since: int, until: int
    ) -> Mapping[int, Mapping[int, AnchorLevel]]:
        """Load the minute roll-ups of a device that overlap a time range: levels by start of the minute."""
        # Read before the store, so that a minute that is committed in between is not missed.
        unwritten = self._rollups.list_unwritten_minutes(device, _KINDS)
        start = since - since % _MINUTE_MS
        stored = await self._samples.read(
            SampleQuery(device=device, kinds=_KINDS, since=start, until=until), list
        )
        return _group_minutes(
            [*stored, *(each for each in unwritten if start <= each.time < until)], self._readings.anchors
        )

    async def find_next_rollup(self, device: int, since: int, until: int) -> int | None:
        """Return the start of the first minute in a time range with a roll-up of a device; None without."""
        anchors = self._readings.anchors
        start = since - since % _MINUTE_MS
        unwritten = [
            each.time
            for each in self._rollups.list_unwritten_minutes(device, _KINDS)
            if start <= each.time < until and each.identifier in anchors
        ]
        stored = await self._samples.read(
            SampleQuery(device=device, kinds=_KINDS, since=start, until=until),
            lambda samples: next((each.time for each in samples if each.identifier in anchors), None),
        )
        return min([*unwritten, *([] if stored is None else [stored])], default=None)


def choose_minutes(
    readings: DeviceReadings, rollups: Mapping[int, Mapping[int, AnchorLevel]], since: int, until: int
) -> list[ReceivedMinute]:
    """Return the minutes in which a device was received after `since`, up to and including `until`.

    `rollups` has the levels of roll-ups by start of the minute. A minute with a roll-up is returned as a
    whole, even if only a part of it is in this time.
    """
    first, last = since - since % _MINUTE_MS, -(-until // _MINUTE_MS) * _MINUTE_MS
    counts = readings.count_minutes(first, last)
    singles: dict[int, list[AnchorReading]] = {}
    for each in readings.list_period(since, until):
        # A step includes its end and not its start, but a roll-up its start and not its end.
        singles.setdefault((-(-each.time // _MINUTE_MS) - 1) * _MINUTE_MS, []).append(each)
    minutes = []
    for start in range(first, last, _MINUTE_MS):
        rollup = rollups.get(start, {})
        if counts[start] < _MIN_COMPLETENESS * sum(level.count for level in rollup.values()):
            minutes.append(ReceivedMinute(start, (), rollup))
        elif start in singles:
            minutes.append(ReceivedMinute(start, singles[start], {}))
    return minutes


def _build_steps(
    readings: DeviceReadings, rollups: Mapping[int, Mapping[int, AnchorLevel]], since: int, until: int
) -> list[Step]:
    return [
        Step(each.newest, each.compute_levels()) for each in choose_minutes(readings, rollups, since, until)
    ]


def _group_minutes(
    samples: Iterable[StoredSample], anchors: Mapping[int, int]
) -> Mapping[int, Mapping[int, AnchorLevel]]:
    """Return the levels of anchors by the start of the minute."""
    by_minute: dict[int, dict[int, AnchorLevel]] = {}
    for sample in samples:
        if sample.identifier not in anchors or sample.number is None:
            continue
        if not MIN_RSSI <= sample.number <= MAX_RSSI:
            continue
        minute = decode_minute(sample)
        if minute is not None:  # a single reading with an implausible time has no minute
            levels = by_minute.setdefault(sample.time, {})
            levels.setdefault(sample.identifier, AnchorLevel(float(sample.number), minute.count))
    return by_minute
