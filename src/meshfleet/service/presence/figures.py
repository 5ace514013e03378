"""Figures of presence for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.presence.presence import Presence


class PresenceFigures(Collector):
    """Reads them when somebody asks."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence

    def collect(self) -> Iterator[Metric]:
        """Read them."""
        presence = self._presence
        yield GaugeMetricFamily(
            "meshfleet_gateways_connected", "Gateways that are connected.", value=presence.gateways_connected
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
        for cause, count in sorted(presence.changes.items()):
            family.add_metric([cause], count)
        yield family
