"""Single RSSI readings of anchors, kept in memory for about an hour after they arrived.

Minute roll-ups are too coarse for devices that move, and cannot be divided again for a survey. So all
readings that anchors report are kept for a while, whatever their time is: a recording from last week can be
played back. Readings of devices that no anchor receives cost nothing.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from meshfleet.service.ingest.readings import ReadingKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from meshfleet.service.ingest.readings import Reading

MAX_READINGS: Final = 5_000_000
"""Maximum number of readings in memory, about 100 MB; with more, the oldest are dropped early."""

_CHUNK_MS: Final = 60_000
"""Milliseconds of arrival for which readings share a chunk, which is dropped as a whole."""
_MINUTE_MS: Final = 60_000

_LINK: Final = int(ReadingKind.LINK)
"""Kind of readings of links as a plain number, which compares faster."""


class AnchorReading(NamedTuple):
    """Reading of a device by an anchor."""

    time: int
    """Time of the report by the service's clock, as Unix time in milliseconds."""
    anchor: int
    rssi: int


class AnchorLevel(Struct, frozen=True, array_like=True, gc=False):
    """Mean RSSI of a device at an anchor, and the number of readings."""

    rssi: float
    count: int


class DeviceMinute(Struct, frozen=True, array_like=True, gc=False):
    """Mean RSSI of a device at all anchors that received it in a minute."""

    device: int
    time: int
    levels: dict[int, AnchorLevel]


class _Chunk:
    """Readings of all devices that arrived within a short time."""

    __slots__ = ("arrived_at", "by_device", "count")

    def __init__(self, arrived_at: int) -> None:
        self.arrived_at = arrived_at
        self.count = 0
        self.by_device: dict[int, array[int]] = {}
        """Time, anchor and RSSI of the readings of each device, one after the other."""


class ReadingStore:
    """Readings of anchors by device. All methods are called in the thread of the event loop."""

    def __init__(self, *, retention_ms: int, max_readings: int = MAX_READINGS) -> None:
        self.retention_ms = retention_ms
        self._max_readings = max_readings
        self._anchors: Mapping[int, int] = {}
        self._chunks: deque[_Chunk] = deque()
        self._count = 0
        self._last_minutes: dict[int, int] = {}
        self._minute_counts: Counter[int] = Counter()
        self._devices: dict[int, set[int]] = {}
        self._unsettled: dict[int, list[Reading]] = {}
        """Readings since the last access by device, as ingest passed them: adding one is cheap."""
        self._updated: set[int] = set()

    def __len__(self) -> int:
        """Return the number of readings."""
        return self._count

    def set_anchors(self, anchors: Mapping[int, int]) -> None:
        """Replace the anchors whose readings are kept: the number of the site by anchor."""
        self._anchors = anchors

    @property
    def anchors(self) -> Mapping[int, int]:
        """Number of the site by anchor."""
        return self._anchors

    def select(self, readings: Iterable[Reading]) -> list[Reading]:
        """Return the readings that are to be kept: those of anchors."""
        if not (anchors := self._anchors):
            return []
        return [each for each in readings if each[0] == _LINK and each[5] in anchors]

    def add(self, readings: Sequence[Reading], now: int) -> None:
        """Keep readings of anchors that arrived at the Unix time `now` in milliseconds."""
        if not readings:
            return
        if not self._chunks or now - self._chunks[-1].arrived_at >= _CHUNK_MS:
            self._settle()
            self._chunks.append(_Chunk(now))
        unsettled = self._unsettled
        for reading in readings:  # once for each reading of an anchor: nothing else belongs here
            device = reading[1]
            if device in unsettled:
                unsettled[device].append(reading)
            else:
                unsettled[device] = [reading]
        self._chunks[-1].count += len(readings)
        self._count += len(readings)
        self.drop_expired(now)

    def _settle(self) -> None:
        """Move new readings to the newest chunk, where each takes 24 bytes."""
        unsettled, self._unsettled = self._unsettled, {}
        if not self._chunks:
            return  # they have expired
        by_device, anchors = self._chunks[-1].by_device, self._anchors
        for device, readings in unsettled.items():
            values = by_device.get(device)
            if values is None:
                values = by_device[device] = array("q")
            values.extend([value for each in readings for value in (each[3], each[5], each[4])])
            minutes = {each[3] // _MINUTE_MS for each in readings}
            minutes.discard(self._last_minutes.get(device, -1))
            self._last_minutes[device] = readings[-1][3] // _MINUTE_MS
            for site in {anchors[each] for each in {each[5] for each in readings} if each in anchors}:
                self._minute_counts[site] += len(minutes)
                self._devices.setdefault(site, set()).add(device)
        self._updated.update(unsettled)

    def drop_expired(self, now: int) -> None:
        """Drop readings that arrived before the retention, or that are too many."""
        while self._chunks and (
            self._chunks[0].arrived_at + _CHUNK_MS + self.retention_ms <= now
            or (self._count > self._max_readings and len(self._chunks) > 1)
        ):
            self._count -= self._chunks.popleft().count

    def take_updated_devices(self) -> set[int]:
        """Return the devices with new readings since the last call."""
        self._settle()
        updated, self._updated = self._updated, set()
        return updated

    def count_minutes(self, site: int) -> int:
        """Return how many minutes of devices have been received on a site since the start.

        The number only grows: it tells whether there is anything new to calibrate with.
        """
        self._settle()
        return self._minute_counts[site]

    def list_devices(self, site: int) -> set[int]:
        """Return the devices that anchors of a site have received since the start."""
        self._settle()
        return self._devices.get(site, set())

    def list_readings(
        self, device: int, since: int, until: int, *, arrived_since: int = 0
    ) -> list[AnchorReading]:
        """Return the readings of a device after `since`, up to and including `until`, in the order of time.

        A reading that was delivered twice is returned once. `arrived_since` saves time: readings that arrived
        more than a minute before it are left out.
        """
        self._settle()
        found = {
            (time, anchor): rssi
            for chunk in self._chunks
            if chunk.arrived_at + _CHUNK_MS >= arrived_since
            and (values := chunk.by_device.get(device)) is not None
            for time, anchor, rssi in zip(values[0::3], values[1::3], values[2::3], strict=True)
            if since < time <= until
        }
        return [AnchorReading(time, anchor, rssi) for (time, anchor), rssi in sorted(found.items())]

    def take_snapshot(self) -> ReadingSnapshot:
        """Return all readings so far, to be read in a thread while more arrive."""
        self._settle()
        if not self._chunks:
            return ReadingSnapshot([], self._anchors)
        *complete, last = self._chunks
        parts = [each.by_device for each in complete]
        return ReadingSnapshot(
            [*parts, {device: values[:] for device, values in last.by_device.items()}], self._anchors
        )


class ReadingSnapshot:
    """Readings of all devices at one moment."""

    def __init__(self, parts: Sequence[Mapping[int, array[int]]], anchors: Mapping[int, int]) -> None:
        self._parts = parts
        self._anchors = anchors

    def list_minutes(self, site: int) -> list[DeviceMinute]:
        """Return the minutes of all devices on a site, device by device, in the order of time."""
        anchors = self._anchors
        minutes = []
        for device in sorted({device for part in self._parts for device in part}):
            sums: dict[int, dict[int, dict[int, int]]] = {}
            for part in self._parts:
                values = part.get(device, _NO_VALUES)
                for time, anchor, rssi in zip(values[0::3], values[1::3], values[2::3], strict=True):
                    if anchors.get(anchor) == site:
                        # By time, because a reading may have been delivered twice.
                        sums.setdefault(time // _MINUTE_MS, {}).setdefault(anchor, {})[time] = rssi
            minutes += [
                DeviceMinute(
                    device,
                    minute * _MINUTE_MS,
                    {
                        anchor: AnchorLevel(sum(by_time.values()) / len(by_time), len(by_time))
                        for anchor, by_time in by_anchor.items()
                    },
                )
                for minute, by_anchor in sorted(sums.items())
            ]
        return minutes


_NO_VALUES: Final = array("q")


def average_readings(readings: Iterable[AnchorReading]) -> dict[int, AnchorLevel]:
    """Return the mean RSSI and the number of readings by anchor."""
    sums: dict[int, list[int]] = {}
    for reading in readings:
        total = sums.setdefault(reading.anchor, [0, 0])
        total[0] += reading.rssi
        total[1] += 1
    return {anchor: AnchorLevel(total / count, count) for anchor, (total, count) in sums.items()}
