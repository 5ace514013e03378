"""How parents heard a device: at last, all in all, and over time (rest-87, rest-88).

Minutes of all parents are read in the order of time. Only so many parents are kept meanwhile, those that
heard the device last: whatever gateways make up, no more than that is held. Where there were more, those that
are left may have lost minutes, and theirs are read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet import rest
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.times import format_millis
from meshfleet.service.ingest.rollups import MinuteSummary, decode_minute
from meshfleet.service.telemetry.aggregation import SeriesAggregator, TimeGrid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.db.samples.sample import StoredSample

MAX_PARENTS: Final = 50
"""Parents of one device; more than a dozen are rare."""


class _ParentLink(Struct):
    """What one parent heard."""

    over_time: SeriesAggregator
    total: SeriesAggregator
    """The same, in a single bucket."""
    time: int
    """When its last minute began."""
    gateway: int
    minute: MinuteSummary

    @property
    def rank(self) -> tuple[int, int]:
        """Of two, the one that ranks higher comes first."""
        return self.time, self.minute.last


class LinkAggregator:
    """Sums up the links of a device. Minutes come in the order of time, in as many calls as one likes."""

    def __init__(self, grid: TimeGrid, only: frozenset[int] | None = None) -> None:
        self._grid = grid
        self._whole = TimeGrid.divide(grid.since, grid.until, parts=1)
        self._only = only
        """The parents that matter; None: all."""
        self.is_truncated = False
        """Whether there were more parents than are kept: `parents` are those that heard the device last."""
        self._by_parent: dict[int, _ParentLink] = {}

    def add(self, minutes: Iterable[StoredSample]) -> None:
        """Take in minutes. What is none of them is a reading whose time is not believed."""
        for sample in minutes:
            if self._only is not None and sample.identifier not in self._only:
                continue
            minute = decode_minute(sample)
            if minute is not None and sample.number is not None:
                self._add(sample, sample.number, minute)

    def _add(self, sample: StoredSample, mean: float, minute: MinuteSummary) -> None:
        heard = self._by_parent.get(sample.identifier)
        if heard is not None and sample.time <= heard.time:
            return  # a minute under way that was committed while the store was read
        if heard is None:
            tally, whole = SeriesAggregator(self._grid), SeriesAggregator(self._whole)
            heard = _ParentLink(tally, whole, sample.time, sample.gateway, minute)
            self._by_parent[sample.identifier] = heard
        else:
            heard.time, heard.gateway, heard.minute = sample.time, sample.gateway, minute
        for each in (heard.over_time, heard.total):
            each.add_minute(sample.time, mean, minute)
        if len(self._by_parent) > MAX_PARENTS:
            self.is_truncated = True
            del self._by_parent[min(self._by_parent, key=lambda each: self._by_parent[each].rank)]

    @property
    def parents(self) -> frozenset[int]:
        """Those that are kept."""
        return frozenset(self._by_parent)

    def build_links(self) -> list[rest.Link]:
        """What has come of them: who heard the device in the newest minute first, and best within it."""
        ranked = sorted(self._by_parent.items(), key=lambda each: each[1].rank, reverse=True)
        return [_to_rest_link(parent, heard) for parent, heard in ranked]


def _to_rest_link(parent: int, heard: _ParentLink) -> rest.Link:
    (whole,) = heard.total.build_buckets()
    return rest.Link(
        parent=mac_from_int(parent),
        rssi=heard.minute.last,
        seen_at=format_millis(heard.minute.last_at),
        unreachable=heard.minute.unreachable,
        mean=whole.mean,
        min=whole.min,
        max=whole.max,
        count=whole.count,
        gateway=mac_from_int(heard.gateway),
        series=heard.over_time.build_buckets(),
    )
