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

    from meshfleet.service.ingest.draft import Draft

_LAGS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class Counts:
    """What ingest counts."""

    def __init__(self) -> None:
        self.reports: Counter[str] = Counter()
        self.rejects: Counter[str] = Counter()
        self.samples = 0
        self.strays = 0
        self.batches = 0
        self.failures = 0
        """How often something that follows failed, which is a mistake of ours."""
        self.lag = Histogram(
            "meshfleet_lag_seconds",
            "Time from the first report of a batch to its commit.",
            buckets=_LAGS,
            registry=None,
        )

    def count(self, draft: Draft, lag: float) -> None:
        """A draft is committed, so many seconds after its first report came."""
        self.lag.observe(lag)
        self.batches += 1
        self.strays += draft.strays
        self.samples += sum(map(len, draft.rows.values()))
        self.reports.update(draft.seen)
        self.rejects.update(each.code for each in draft.rejects)


class IngestFigures(Collector):
    """What ingest counts by itself."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Read them, when somebody asks."""
        counts = self._counts
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
            "meshfleet_strays", "Reports whose time is not believed.", value=counts.strays
        )
        yield CounterMetricFamily("meshfleet_batches", "Transactions with reports.", value=counts.batches)
        yield CounterMetricFamily(
            "meshfleet_following_failures", "Committed batches that broke a follower.", value=counts.failures
        )
