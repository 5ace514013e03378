"""Figures of requests for Prometheus."""

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
    """What becomes of requests, read when somebody asks."""

    def __init__(self, rpc: RpcClient, dispatcher: RequestDispatcher, history: RequestHistory) -> None:
        self._rpc = rpc
        self._dispatcher = dispatcher
        self._history = history

    def collect(self) -> Iterator[Metric]:
        """Read them, when somebody asks."""
        requests = CounterMetricFamily(
            "meshfleet_requests",
            "Requests over REST, by operation and what became of them.",
            labels=["operation", "outcome"],
        )
        for (operation, outcome), count in sorted(self._dispatcher.outcomes.items()):
            requests.add_metric([operation, outcome], count)
        yield requests
        heard = CounterMetricFamily(
            "meshfleet_responses", "Responses of gateways, by what they were to the service.", labels=["fate"]
        )
        for fate, count in sorted(self._rpc.response_counts.items()):
            heard.add_metric([str(fate)], count)
        yield heard
        yield CounterMetricFamily(
            "meshfleet_requests_unrecorded",
            "Requests that are in no history: the database was away for too long, or does not take them.",
            value=self._history.dropped,
        )
        yield GaugeMetricFamily(
            "meshfleet_requests_pending",
            "Requests that wait for their responses, of everybody in the service.",
            value=self._rpc.pending,
        )
        yield GaugeMetricFamily(
            "meshfleet_requests_queued",
            "Those of them that wait for their turn at a gateway.",
            value=self._rpc.queued,
        )
