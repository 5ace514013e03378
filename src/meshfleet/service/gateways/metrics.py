"""Figures of gateways for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.gateways.versions import VersionTracker


class GatewayMetrics(Collector):
    """What is known of gateways, read when somebody asks."""

    def __init__(self, versions: VersionTracker) -> None:
        self._versions = versions

    def collect(self) -> Iterator[Metric]:
        """Read them, when somebody asks."""
        yield GaugeMetricFamily(
            "meshfleet_gateways_acking",
            "Gateways that take acknowledgements of samples.",
            value=len(self._versions.ack_capable),
        )
