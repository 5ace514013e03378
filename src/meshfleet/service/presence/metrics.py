"""Figures of presence for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.presence.tracker import PresenceTracker


class PresenceMetrics(Collector):
    """Reads them when somebody asks."""

    def __init__(self, tracker: PresenceTracker) -> None:
        self._tracker = tracker

    def collect(self) -> Iterator[Metric]:
        """Read them."""
        presence = self._tracker
        yield GaugeMetricFamily(
            "meshfleet_gateways_connected",
            "Gateways that are connected.",
            value=presence.connected_gateway_count,
        )
        yield GaugeMetricFamily(
            "meshfleet_clocks_wrong",
            "Gateways whose clocks are known to be wrong.",
            value=len(presence.clocks.shifts),
        )
        yield GaugeMetricFamily(
            "meshfleet_clock_offset_max_seconds",
            "Largest known offset of a gateway's clock, ahead or behind.",
            value=max(map(abs, presence.clocks.offsets.values()), default=0) / 1000,
        )
        family = CounterMetricFamily(
            "meshfleet_connectivity_changes", "Times that a device came or went.", labels=["cause"]
        )
        for cause, count in sorted(presence.change_counts.items()):
            family.add_metric([cause], count)
        yield family
