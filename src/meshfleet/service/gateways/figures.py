"""Figures of gateways for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.gateways.versions import Versions


class GatewayFigures(Collector):
    """What is known of gateways, read when somebody asks."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def collect(self) -> Iterator[Metric]:
        """Read them, when somebody asks."""
        versions = self._versions
        for name, meaning, value in (
            ("connected", "Gateways that are there: connected, or heard lately.", versions.connected),
            ("acking", "Gateways that take acknowledgements of samples.", len(versions.acking)),
        ):
            yield GaugeMetricFamily(f"meshfleet_gateways_{name}", meaning, value=value)
