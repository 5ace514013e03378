"""What is counted of acknowledgements, and its figures for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.acks.acks import Acks


class AckCounts:
    """What is counted."""

    def __init__(self) -> None:
        self.sent = 0
        self.backfills = 0
        self.holes = 0


class AckFigures(Collector):
    """Reads it when somebody asks."""

    def __init__(self, acks: Acks) -> None:
        self._acks = acks

    def collect(self) -> Iterator[Metric]:
        """Read them, when somebody asks."""
        counts, series, holed = self._acks.counts, self._acks.series, self._acks.holed
        family = GaugeMetricFamily("meshfleet_holes", "Where samples are missing.", labels=["state"])
        family.add_metric(["open"], holed.open)
        family.add_metric(["lost"], holed.lost)
        yield family
        yield GaugeMetricFamily("meshfleet_acknowledged_series", "Series in the ledger.", value=len(series))
        yield GaugeMetricFamily(
            "meshfleet_series_unchecked", "Series whose `seq` does not count samples.", value=holed.unchecked
        )
        for name, meaning, value in (
            ("acks", "Acknowledgements of samples.", counts.sent),
            ("backfills", "Those of them that asked for what is missing.", counts.backfills),
            ("holes_found", "Times that a sample was missing.", counts.holes),
        ):
            yield CounterMetricFamily(f"meshfleet_{name}", meaning, value=value)
