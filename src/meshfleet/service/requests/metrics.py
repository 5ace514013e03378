"""Prometheus metrics of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.requests.dispatcher import RequestDispatcher
    from meshfleet.service.requests.history import RequestHistory
    from meshfleet.service.requests.rpc import RpcClient


class RequestMetrics(Collector):
    """Metrics of requests and responses, read at each scrape."""

    def __init__(self, rpc: RpcClient, dispatcher: RequestDispatcher, history: RequestHistory) -> None:
        self._rpc = rpc
        self._dispatcher = dispatcher
        self._history = history

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        requests = CounterMetricFamily(
            "meshfleet_requests",
            "Requests over REST, by operation and outcome.",
            labels=["operation", "outcome"],
        )
        for (operation, outcome), count in sorted(self._dispatcher.outcomes.items()):
            requests.add_metric([operation, outcome], count)
        yield requests
        responses = CounterMetricFamily(
            "meshfleet_responses", "Responses of gateways, by how they matched a request.", labels=["fate"]
        )
        for fate, count in sorted(self._rpc.response_counts.items()):
            responses.add_metric([str(fate)], count)
        yield responses
        yield CounterMetricFamily(
            "meshfleet_requests_unrecorded",
            "Requests missing in the history: the database was unavailable for too long or rejected them.",
            value=self._history.dropped,
        )
        yield GaugeMetricFamily(
            "meshfleet_requests_pending",
            "Requests waiting for their responses, from REST, jobs and the service itself.",
            value=self._rpc.pending,
        )
        yield GaugeMetricFamily(
            "meshfleet_requests_queued",
            "Pending requests that wait in the queue of a gateway and are not sent yet.",
            value=self._rpc.queued,
        )
