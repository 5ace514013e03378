"""Prometheus metrics of gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.gateways.versions import GatewayVersions


class GatewayMetrics(Collector):
    """Metrics of gateways, read at each scrape."""

    def __init__(self, versions: GatewayVersions) -> None:
        self._versions = versions

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        yield GaugeMetricFamily(
            "meshfleet_gateways_acking",
            "Gateways that support acknowledgements of samples.",
            value=len(self._versions.ack_capable),
        )
