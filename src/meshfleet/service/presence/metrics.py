"""Prometheus metrics of presence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.presence.tracker import PresenceTracker


class PresenceMetrics(Collector):
    """Metrics of presence, read at each scrape."""

    def __init__(self, tracker: PresenceTracker) -> None:
        self._tracker = tracker

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        tracker = self._tracker
        yield GaugeMetricFamily(
            "meshfleet_gateways_connected",
            "Gateways that are connected.",
            value=tracker.connected_gateway_count,
        )
        yield GaugeMetricFamily(
            "meshfleet_clocks_wrong",
            "Gateways whose clocks are known to be wrong.",
            value=len(tracker.clocks.shifts),
        )
        yield GaugeMetricFamily(
            "meshfleet_clock_offset_max_seconds",
            "Largest known offset of a gateway's clock, ahead or behind.",
            value=max(map(abs, tracker.clocks.offsets.values()), default=0) / 1000,
        )
        changes = CounterMetricFamily(
            "meshfleet_connectivity_changes",
            "Connections and disconnections of devices and gateways.",
            labels=["cause"],
        )
        for cause, count in sorted(tracker.change_counts.items()):
            changes.add_metric([cause], count)
        yield changes
