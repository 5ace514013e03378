"""How parents heard a device: at last, all in all, and over time (rest-87, rest-88).

Minutes of all parents are read in the order of time. Only so many parents are kept meanwhile, those that
heard the device last: whatever gateways make up, no more than that is held. Where there were more, those that
are left may have lost minutes, and theirs are read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.service.ingest.rollups import Shown, read_minute
from meshfleet.service.telemetry.series import Grid, Tally
from meshfleet.wire import rest
from meshfleet.wire.ids import number_mac
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.db.samples.sample import Sample

MOST: Final = 50
"""Parents of one device; more than a dozen are rare."""


class _Heard(Struct):
    """What one parent heard."""

    tally: Tally
    whole: Tally
    """The same, in a single bucket."""
    time: int
    """When its last minute began."""
    gateway: int
    minute: Shown

    @property
    def rank(self) -> tuple[int, int]:
        """Of two, the one that ranks higher comes first."""
        return self.time, self.minute.last


class Links:
    """Sums up the links of a device. Minutes come in the order of time, in as many calls as one likes."""

    def __init__(self, grid: Grid, only: frozenset[int] | None = None) -> None:
        self._grid = grid
        self._whole = Grid.over(grid.since, grid.until, parts=1)
        self._only = only
        """The parents that matter; None: all."""
        self.is_crowded = False
        """Whether there were more parents than are kept: `parents` are those that heard the device last."""
        self._by_parent: dict[int, _Heard] = {}

    def add(self, minutes: Iterable[Sample]) -> None:
        """Take in minutes. What is none of them is a reading whose time is not believed."""
        for sample in minutes:
            if self._only is not None and sample.identifier not in self._only:
                continue
            minute = read_minute(sample)
            if minute is not None and sample.number is not None:
                self._add(sample, sample.number, minute)

    def _add(self, sample: Sample, mean: float, minute: Shown) -> None:
        heard = self._by_parent.get(sample.identifier)
        if heard is not None and sample.time <= heard.time:
            return  # a minute under way that was committed while the store was read
        if heard is None:
            tally, whole = Tally(self._grid), Tally(self._whole)
            heard = _Heard(tally, whole, sample.time, sample.gateway, minute)
            self._by_parent[sample.identifier] = heard
        else:
            heard.time, heard.gateway, heard.minute = sample.time, sample.gateway, minute
        for each in (heard.tally, heard.whole):
            each.add_minute(sample.time, mean, minute)
        if len(self._by_parent) > MOST:
            self.is_crowded = True
            del self._by_parent[min(self._by_parent, key=lambda each: self._by_parent[each].rank)]

    @property
    def parents(self) -> frozenset[int]:
        """Those that are kept."""
        return frozenset(self._by_parent)

    def told(self) -> list[rest.Link]:
        """What has come of them: who heard the device in the newest minute first, and best within it."""
        ranked = sorted(self._by_parent.items(), key=lambda each: each[1].rank, reverse=True)
        return [_link(parent, heard) for parent, heard in ranked]


def _link(parent: int, heard: _Heard) -> rest.Link:
    (whole,) = heard.whole.buckets()
    return rest.Link(
        parent=number_mac(parent),
        rssi=heard.minute.last,
        seen_at=write_millis(heard.minute.last_at),
        unreachable=heard.minute.unreachable,
        mean=whole.mean,
        min=whole.min,
        max=whole.max,
        count=whole.count,
        gateway=number_mac(heard.gateway),
        series=heard.tally.buckets(),
    )
