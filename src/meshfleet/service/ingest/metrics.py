"""What ingest counts, and its figures for Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.ingest.parsed_batch import ParsedBatch

_LAG_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class IngestCounters:
    """What ingest counts."""

    def __init__(self) -> None:
        self.reports: Counter[str] = Counter()
        self.rejects: Counter[str] = Counter()
        self.samples = 0
        self.implausible_times = 0
        self.batches = 0
        self.subscriber_failures = 0
        """How often something that follows failed, which is a mistake of ours."""
        self.lag = Histogram(
            "meshfleet_lag_seconds",
            "Time from the first report of a batch to its commit.",
            buckets=_LAG_BUCKETS,
            registry=None,
        )

    def record_commit(self, batch: ParsedBatch, lag: float) -> None:
        """A draft is committed, so many seconds after its first report came."""
        self.lag.observe(lag)
        self.batches += 1
        self.implausible_times += batch.implausible_count
        self.samples += sum(map(len, batch.rows.values()))
        self.reports.update(batch.report_kinds)
        self.rejects.update(each.code for each in batch.rejects)


class IngestMetrics(Collector):
    """What ingest counts by itself."""

    def __init__(self, counters: IngestCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Read them, when somebody asks."""
        counts = self._counters
        for name, meaning, label, values in (
            ("reports", "Reports that were committed.", "kind", counts.reports),
            ("rejects", "Messages that could not be taken as reports.", "code", counts.rejects),
        ):
            family = CounterMetricFamily(f"meshfleet_{name}", meaning, labels=[label])
            for key, value in sorted(values.items()):
                family.add_metric([key], value)
            yield family
        yield from counts.lag.collect()
        yield CounterMetricFamily("meshfleet_samples", "Samples that were committed.", value=counts.samples)
        yield CounterMetricFamily(
            "meshfleet_strays", "Reports whose time is not believed.", value=counts.implausible_times
        )
        yield CounterMetricFamily("meshfleet_batches", "Transactions with reports.", value=counts.batches)
        yield CounterMetricFamily(
            "meshfleet_following_failures",
            "Committed batches that broke a follower.",
            value=counts.subscriber_failures,
        )
