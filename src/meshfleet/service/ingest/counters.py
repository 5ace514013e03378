"""Counters of report ingest."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from prometheus_client import Histogram

if TYPE_CHECKING:
    from meshfleet.service.ingest.parsed_batch import ParsedBatch

_LAG_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class IngestCounters:
    """Counters of ingest since the service started: reports by kind, rejects by error code, and totals."""

    def __init__(self) -> None:
        self.reports: Counter[str] = Counter()
        self.rejects: Counter[str] = Counter()
        self.samples = 0
        self.implausible_times = 0
        self.batches = 0
        self.subscriber_failures = 0
        """Number of exceptions (programming errors) raised by subscribers to committed reports."""
        self.lag = Histogram(
            "meshfleet_lag_seconds",
            "Time from the first report of a batch to its commit.",
            buckets=_LAG_BUCKETS,
            registry=None,
        )

    def record_commit(self, batch: ParsedBatch, lag: float) -> None:
        """Count a committed batch; `lag` is the number of seconds since its first report was received."""
        self.lag.observe(lag)
        self.batches += 1
        self.implausible_times += batch.implausible_count
        self.samples += sum(map(len, batch.rows.values()))
        self.reports.update(batch.report_kinds)
        self.rejects.update(reject.code for reject in batch.rejects)
