"""Counters of acknowledgments and their Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.backfill.acknowledger import SampleAcknowledger


class AckCounters:
    """Number of acks sent, of those that requested a backfill, and of gaps found, since the start."""

    def __init__(self) -> None:
        self.sent = 0
        self.backfills = 0
        self.gaps = 0


class AckMetrics(Collector):
    """Prometheus collector for acknowledgments and gaps."""

    def __init__(self, acknowledger: SampleAcknowledger) -> None:
        self._acknowledger = acknowledger

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their current values."""
        counts, series, gap_index = (
            self._acknowledger.counts,
            self._acknowledger.series,
            self._acknowledger.gap_index,
        )
        family = GaugeMetricFamily("meshfleet_holes", "Gaps in series of samples.", labels=["state"])
        family.add_metric(["open"], gap_index.open)
        family.add_metric(["lost"], gap_index.lost)
        yield family
        yield GaugeMetricFamily(
            "meshfleet_acknowledged_series", "Series whose samples are acknowledged.", value=len(series)
        )
        yield GaugeMetricFamily(
            "meshfleet_series_unchecked",
            "Series without gap checks because their `seq` does not count samples.",
            value=gap_index.unchecked,
        )
        for name, description, value in (
            ("acks", "Acknowledgments of samples.", counts.sent),
            ("backfills", "Acknowledgments that requested missing samples.", counts.backfills),
            ("holes_found", "Gaps found.", counts.gaps),
        ):
            yield CounterMetricFamily(f"meshfleet_{name}", description, value=value)
