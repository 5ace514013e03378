"""Single RSSI readings of anchors, kept in memory for about an hour after they arrived.

Minute roll-ups are too coarse for devices that move, and cannot be divided again for a survey. So all
readings that anchors report are kept for a while, whatever their time is: a recording from last week can be
played back. Readings of devices that no anchor receives cost nothing.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from itertools import chain, compress
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from meshfleet.service.ingest.readings import CHANNEL_MASK, CHANNEL_SHIFT, ReadingKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from meshfleet.service.ingest.readings import Reading

MAX_READINGS: Final = 5_000_000
"""Maximum number of readings in memory, about 400 MB; with more, the oldest are dropped early."""

_CHUNK_MS: Final = 60_000
"""Milliseconds of arrival for which readings share a chunk, which is dropped as a whole."""
_MINUTE_MS: Final = 60_000

_CHANNEL_BITS: Final = 2
"""Number of bits of a mark below the anchor, for the channel."""

MIN_RSSI: Final = -127
MAX_RSSI: Final = 20
"""Range of the RSSI that Bluetooth can report, in dBm. Ingest stores others too; no position uses them."""

_VECTORIZED_VALUES: Final = 3_000
"""Number of values from which numpy finds the readings of a period faster than a loop."""

_SAMPLE_STEP: Final = 16
"""Of so many readings one is looked at to see whether most are of anchors."""

_LINK: Final = int(ReadingKind.LINK)
"""Kind of readings of links as a plain number, which compares faster."""

_find_parent: Final = itemgetter(5)
"""Return the parent of a reading of a link, without a frame of Python: ingest calls it for every reading."""


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
        """Time, mark and RSSI of the readings of each device, one after the other.

        A mark is the anchor with the advertising channel in its two lowest bits.
        """


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
        self._unsettled: list[Sequence[Reading]] = []
        """Readings since the last access, as ingest passed them: adding a batch is cheap."""
        self._unsettled_count = 0
        self._updated: set[int] = set()

    def __len__(self) -> int:
        """Return the number of readings."""
        self._settle()
        return self._count

    def set_anchors(self, anchors: Mapping[int, int]) -> None:
        """Replace the anchors whose readings are kept: the number of the site by anchor."""
        self._anchors = anchors

    @property
    def anchors(self) -> Mapping[int, int]:
        """Number of the site by anchor."""
        return self._anchors

    def is_mostly_of_anchors(self, readings: Sequence[Reading]) -> bool:
        """Return whether at least half of the readings seem to be of anchors, from a look at some of them."""
        sample = readings[::_SAMPLE_STEP]
        return 2 * sum(map(self._anchors.__contains__, map(_find_parent, sample))) >= len(sample)

    def select(self, readings: Sequence[Reading]) -> list[Reading]:
        """Return the readings that are to be kept: those of anchors, and maybe a few of other kinds."""
        if not (anchors := self._anchors):
            return []
        return list(compress(readings, map(anchors.__contains__, map(_find_parent, readings))))

    def add(self, readings: Sequence[Reading], now: int) -> None:
        """Keep the readings of anchors that arrived at the Unix time `now` in milliseconds.

        Others may be among them: they are dropped at the next access.
        """
        if not readings:
            return
        if not self._chunks or now - self._chunks[-1].arrived_at >= _CHUNK_MS:
            self._settle()
            self._chunks.append(_Chunk(now))
        self._unsettled.append(readings)
        self._unsettled_count += len(readings)
        self.drop_expired(now)

    def _settle(self) -> None:
        """Move new readings to the newest chunk, where each takes 24 bytes."""
        batches, self._unsettled = self._unsettled, []
        self._unsettled_count = 0
        if not self._chunks:
            return  # they have expired
        anchors = self._anchors
        new: dict[int, list[Reading]] = {}
        for reading in chain.from_iterable(batches):
            if reading[5] in anchors and reading[0] == _LINK and MIN_RSSI <= reading[4] <= MAX_RSSI:
                new.setdefault(reading[1], []).append(reading)
        count = sum(map(len, new.values()))
        self._chunks[-1].count += count
        self._count += count
        by_device = self._chunks[-1].by_device
        for device, readings in new.items():
            values = by_device.get(device)
            if values is None:
                values = by_device[device] = array("q")
            for _, _, _, time, rssi, anchor, flags in readings:
                values.extend((time, anchor << _CHANNEL_BITS | (flags & CHANNEL_MASK) >> CHANNEL_SHIFT, rssi))
            minutes = {each[3] // _MINUTE_MS for each in readings}
            minutes.discard(self._last_minutes.get(device, -1))
            self._last_minutes[device] = readings[-1][3] // _MINUTE_MS
            for site in {anchors[each] for each in {each[5] for each in readings}}:
                self._minute_counts[site] += len(minutes)
                self._devices.setdefault(site, set()).add(device)
        self._updated.update(new)

    def drop_expired(self, now: int) -> None:
        """Drop readings that arrived before the retention, or that are too many."""
        for chunk in reversed(self._chunks):
            if chunk.arrived_at <= now:
                break
            chunk.arrived_at = now  # the clock was ahead, and has been set right
        dropped: set[int] = set()
        while self._chunks and (
            self._chunks[0].arrived_at + _CHUNK_MS + self.retention_ms <= now
            or (self._count + self._unsettled_count > self._max_readings and len(self._chunks) > 1)
        ):
            chunk = self._chunks.popleft()
            self._count -= chunk.count
            dropped |= chunk.by_device.keys()
        for device in dropped.difference(*(chunk.by_device for chunk in self._chunks)):
            self._forget_device(device)

    def _forget_device(self, device: int) -> None:
        """Forget a device without readings: gateways may report any number of devices that do not exist."""
        self._last_minutes.pop(device, None)
        for devices in self._devices.values():
            devices.discard(device)

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
        """Return the devices that anchors of a site have received since the oldest reading."""
        self._settle()
        return set(self._devices.get(site, ()))

    def list_readings(
        self, device: int, since: int, until: int, *, arrived_since: int = 0
    ) -> list[AnchorReading]:
        """Return the readings of a device after `since`, up to and including `until`, in the order of time.

        A reading that was delivered twice is returned once. `arrived_since` saves time: readings that arrived
        more than a minute before it are left out.
        """
        return DeviceReadings(self._list_parts(device, arrived_since)).list_period(since, until)

    def take_device(self, device: int) -> DeviceReadings:
        """Return all readings of a device so far, to be read in a thread while more arrive."""
        parts = self._list_parts(device, 0)
        return DeviceReadings([*parts[:-1], *(each[:] for each in parts[-1:])])  # only the newest part grows

    def _list_parts(self, device: int, arrived_since: int) -> list[array[int]]:
        self._settle()
        return [
            chunk.by_device[device]
            for chunk in self._chunks
            if chunk.arrived_at + _CHUNK_MS >= arrived_since and device in chunk.by_device
        ]

    def take_snapshot(self, site: int) -> ReadingSnapshot:
        """Return the readings of the devices on a site so far, to be read in a thread while more arrive."""
        devices = self.list_devices(site)
        if not self._chunks:
            return ReadingSnapshot(site, devices, [], self._anchors)
        *complete, last = self._chunks
        parts = [each.by_device for each in complete]
        growing = {device: last.by_device[device][:] for device in devices & last.by_device.keys()}
        return ReadingSnapshot(site, devices, [*parts, growing], self._anchors)


class DeviceReadings:
    """Readings of one device at one moment."""

    def __init__(self, parts: Sequence[array[int]]) -> None:
        self._parts = parts

    def list_period(self, since: int, until: int) -> list[AnchorReading]:
        """Return the readings after `since`, up to and including `until`, in the order of time.

        A reading that was delivered twice is returned once.
        """
        found = self._find_period(since, until)
        return [
            AnchorReading(time, mark >> _CHANNEL_BITS, rssi) for (time, mark), rssi in sorted(found.items())
        ]

    def count_minutes(self, since: int, until: int) -> Counter[int]:
        """Count the readings from `since` to before `until` by start of their minute, each of them once."""
        return Counter(time - time % _MINUTE_MS for time, _ in self._find_period(since - 1, until - 1))

    def _find_period(self, since: int, until: int) -> dict[tuple[int, int], int]:
        """Return the RSSI by time and mark after `since`, up to and including `until`."""
        return {
            (time, mark): rssi
            for part in self._parts
            for time, mark, rssi in _list_period(part, since, until)
            if since < time <= until
        }

    def find_next(self, since: int) -> int | None:
        """Return the time of the first reading after `since`; None if there is none."""
        times = (time for part in self._parts for time in part[0::3] if time > since)
        return min(times, default=None)


def _list_period(values: array[int], since: int, until: int) -> Iterator[tuple[int, int, int]]:
    """Yield the time, the mark and the RSSI of readings; in long recordings only those of the period."""
    if len(values) >= _VECTORIZED_VALUES:
        import numpy as np  # noqa: PLC0415 # fleets without sites never load it

        rows = np.frombuffer(values, dtype=np.int64).reshape(-1, 3)
        values = array("q", rows[(rows[:, 0] > since) & (rows[:, 0] <= until)].tobytes())
    return zip(values[0::3], values[1::3], values[2::3], strict=True)


class ReadingSnapshot:
    """Readings of the devices on a site at one moment."""

    def __init__(
        self,
        site: int,
        devices: Collection[int],
        parts: Sequence[Mapping[int, array[int]]],
        anchors: Mapping[int, int],
    ) -> None:
        """`parts` have the readings by device, also of other devices."""
        self._site = site
        self._devices = devices
        self._parts = parts
        self._anchors = anchors

    def list_minutes(self) -> list[DeviceMinute]:
        """Return the minutes of all devices on the site, device by device, in the order of time."""
        site, anchors = self._site, self._anchors
        minutes = []
        for device in sorted(self._devices):
            sums: dict[int, dict[int, dict[tuple[int, int], int]]] = {}
            for part in self._parts:
                values = part.get(device, _NO_VALUES)
                for time, mark, rssi in zip(values[0::3], values[1::3], values[2::3], strict=True):
                    anchor = mark >> _CHANNEL_BITS
                    if anchors.get(anchor) == site:
                        # By time and mark, because a reading may have been delivered twice.
                        by_anchor = sums.setdefault(time // _MINUTE_MS, {})
                        by_anchor.setdefault(anchor, {})[time, mark] = rssi
            minutes += [
                DeviceMinute(
                    device,
                    minute * _MINUTE_MS,
                    {
                        anchor: AnchorLevel(sum(by_mark.values()) / len(by_mark), len(by_mark))
                        for anchor, by_mark in by_anchor.items()
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
