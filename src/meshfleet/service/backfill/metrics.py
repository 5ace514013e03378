"""What is counted of acknowledgements, and its figures for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.backfill.acknowledger import SampleAcknowledger


class AckCounters:
    """What is counted."""

    def __init__(self) -> None:
        self.sent = 0
        self.backfills = 0
        self.gaps = 0


class AckMetrics(Collector):
    """Reads it when somebody asks."""

    def __init__(self, acknowledger: SampleAcknowledger) -> None:
        self._acknowledger = acknowledger

    def collect(self) -> Iterator[Metric]:
        """Read them, when somebody asks."""
        counts, series, holed = (
            self._acknowledger.counts,
            self._acknowledger.series,
            self._acknowledger.gap_index,
        )
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
            ("holes_found", "Times that a sample was missing.", counts.gaps),
        ):
            yield CounterMetricFamily(f"meshfleet_{name}", meaning, value=value)
