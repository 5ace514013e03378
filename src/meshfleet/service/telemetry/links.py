"""Aggregates the links of a device: how well its parents in the mesh receive it (rest-87, rest-88).

The minute roll-ups of all parents are read in the order of time. To limit memory, at most `MAX_PARENTS`
parents are kept: those with the newest minutes. A parent that was dropped and appears again has lost its
older minutes. So if any parent was dropped, the minutes of the remaining parents are read a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import asdict, astuple

from meshfleet.db.samples.sample import SampleKind
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.times import format_millis, parse_millis
from meshfleet.rest.telemetry import Bucket, ChannelSignal, Link, LinkBucket, Links
from meshfleet.service.ingest.minute_rollup import MinuteSummary, decode_minute
from meshfleet.service.telemetry.aggregation import SeriesAggregator, TimeGrid
from meshfleet.service.telemetry.link_loss import HeartbeatLoss, LinkLoss, LossEstimator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.db.samples.sample import StoredSample

MAX_PARENTS: Final = 50
"""Maximum number of mesh parents of one device that are returned; more than a dozen are rare."""


class _ParentLink(Struct):
    """Link of the device to one parent: aggregated readings, and the newest minute."""

    over_time: SeriesAggregator
    total: SeriesAggregator
    """Signal statistics of the whole time range, as one bucket."""
    time: int
    """Start of the newest minute with readings, as Unix time in milliseconds."""
    gateway: int
    minute: MinuteSummary
    channels: dict[int, tuple[int, int]]
    """Number of readings and sum of their RSSI by advertising channel."""

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of the link: start of its newest minute, then last RSSI. The highest rank comes first."""
        return self.time, self.minute.last


class LinkAggregator:
    """Aggregates the radio links of a device by parent. Add the minute roll-ups in the order of time.

    Heartbeats may be among the roll-ups.
    """

    def __init__(self, grid: TimeGrid, only: frozenset[int] | None = None) -> None:
        self._grid = grid
        self._whole_grid = TimeGrid.divide(grid.since, grid.until, parts=1)
        self._only = only
        """Parents whose links are aggregated; None means all parents."""
        self.is_truncated = False
        """Whether parents were dropped because there were too many."""
        self._by_parent: dict[int, _ParentLink] = {}
        self._loss = LossEstimator()
        self._current_time = 0
        self._current_minutes: dict[int, MinuteSummary] = {}
        """Links of the minute that is being added: the loss of a link depends on the others."""
        self._heartbeats = HeartbeatLoss()

    def add(self, minutes: Iterable[StoredSample]) -> None:
        """Add minute roll-ups in the order of time. Skip readings with an implausible time."""
        for sample in minutes:
            if sample.kind == SampleKind.HEARTBEAT:
                if (heartbeats := decode_minute(sample)) is not None:
                    self._heartbeats.add_minute(sample.time, heartbeats)
                continue
            if self._only is not None and sample.identifier not in self._only:
                continue
            minute = decode_minute(sample)
            if minute is not None and sample.number is not None:
                self._add_minute(sample, sample.number, minute)

    def _add_minute(self, sample: StoredSample, mean: float, minute: MinuteSummary) -> None:
        link = self._by_parent.get(sample.identifier)
        if link is not None and sample.time <= link.time:
            return  # a duplicate: an open minute that was committed while the store was read
        if link is None:
            over_time, total = SeriesAggregator(self._grid), SeriesAggregator(self._whole_grid)
            link = _ParentLink(over_time, total, sample.time, sample.gateway, minute, {})
            self._by_parent[sample.identifier] = link
        else:
            link.time, link.gateway, link.minute = sample.time, sample.gateway, minute
        for aggregator in (link.over_time, link.total):
            aggregator.add_minute(sample.time, mean, minute)
        for channel, number, rssi in map(astuple, minute.channels or ()):
            count, total_rssi = link.channels.get(channel, (0, 0))
            link.channels[channel] = count + number, total_rssi + rssi
        self._add_to_loss(sample.time, sample.identifier, minute)
        if len(self._by_parent) > MAX_PARENTS:
            self.is_truncated = True
            del self._by_parent[min(self._by_parent, key=lambda parent: self._by_parent[parent].rank)]

    def _add_to_loss(self, time: int, parent: int, minute: MinuteSummary) -> None:
        """Collect the links of one minute, and add them to the loss when the next minute begins."""
        if self.is_truncated:  # the minutes are read again, with fewer parents
            return
        if time != self._current_time:
            self._end_minute()
            self._current_time = time
        self._current_minutes[parent] = minute

    def _end_minute(self) -> None:
        if self._current_minutes:
            part = self._grid.find_part(self._current_time)
            self._loss.add_minute(self._current_time, part, self._current_minutes)
            self._current_minutes = {}

    @property
    def parents(self) -> frozenset[int]:
        """Parents whose links are kept: those with the newest minutes."""
        return frozenset(self._by_parent)

    def build_links(self) -> Links:
        """Return the links, the last seen first; of links seen in one minute, the strongest first."""
        self._end_minute()
        ranked = sorted(self._by_parent.items(), key=lambda entry: entry[1].rank, reverse=True)
        return Links(
            items=[self._to_rest_link(parent, link) for parent, link in ranked],
            heartbeats=self._heartbeats.build_count(),
        )

    def _to_rest_link(self, parent: int, link: _ParentLink) -> Link:
        (total,) = link.total.build_buckets()
        estimate = self._loss.estimate(parent)
        return Link(
            parent=mac_from_int(parent),
            rssi=link.minute.last,
            seen_at=format_millis(link.minute.last_at),
            unreachable=link.minute.unreachable,
            mean=total.mean,
            min=total.min,
            max=total.max,
            count=total.count,
            gateway=mac_from_int(link.gateway),
            series=[self._to_link_bucket(parent, bucket) for bucket in link.over_time.build_buckets()],
            expected=estimate.expected,
            loss=estimate.loss,
            channels=tuple(
                ChannelSignal(channel=channel, count=count, mean=round(rssi / count, 2))
                for channel, (count, rssi) in sorted(link.channels.items())
            ),
        )

    def _to_link_bucket(self, parent: int, bucket: Bucket) -> LinkBucket:
        part = self._grid.find_part(parse_millis(bucket.time, "time"))
        estimate = self._loss.estimate(parent, part) if bucket.count else LinkLoss()
        return LinkBucket(**asdict(bucket), expected=estimate.expected, loss=estimate.loss)
