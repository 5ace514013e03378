"""Prometheus metrics of the service (rest-161)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from meshfleet.errors.readiness import ReadinessCode

if TYPE_CHECKING:
    from prometheus_client import Metric

METRICS_MEDIA_TYPE: Final = CONTENT_TYPE_LATEST

_LATENCY_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


ReadValue: TypeAlias = Callable[[], float | Mapping[Any, float]]
"""Function that returns the value of a metric, or its values by label (a string or tuple of strings)."""


class _ReadMetric(NamedTuple):
    """Definition of a metric whose value the function `read` returns at each scrape."""

    family: type[CounterMetricFamily | GaugeMetricFamily]
    name: str
    description: str
    read: ReadValue
    labels: tuple[str, ...]


class IntegrationReaders(NamedTuple):
    """Functions that return the metrics of an integration: items in its queue, and failed attempts."""

    read_queue: Callable[[], float]
    read_failures: Callable[[], float]


class _ReadMetrics(Collector):
    """Metrics whose values are read from other parts of the service at each Prometheus scrape."""

    def __init__(self) -> None:
        self.metrics: list[_ReadMetric] = []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
        for family, name, description, read, labels in self.metrics:
            metric, values = family(f"meshfleet_{name}", description, labels=labels), read()
            if isinstance(values, Mapping):
                for key, value in sorted(values.items()):
                    metric.add_metric(key if isinstance(key, tuple) else [key], value)
            else:
                metric.add_metric([], values)
            yield metric


class Metrics:
    """Prometheus metrics of one service. Each service in a process has a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._read_metrics = _ReadMetrics()
        self._registry.register(self._read_metrics)
        self._requests = Histogram(
            "meshfleet_http_request_seconds",
            "Time from the first byte of a request to the end of its response, in seconds.",
            ["method", "route", "status"],
            buckets=_LATENCY_BUCKETS,
            registry=self._registry,
        )
        self._logins = Counter(
            "meshfleet_logins", "Login attempts with a password.", ["outcome"], registry=self._registry
        )
        self._image_bytes = Counter(
            "meshfleet_image_bytes",
            "Bytes of firmware images sent to users and gateways.",
            registry=self._registry,
        )
        self.integrations: dict[str, IntegrationReaders] = {}
        """Integrations by name."""
        self.not_ready_codes: Collection[ReadinessCode] = ()
        """Reasons why the service is not ready, as of this scrape."""
        self.add_gauge(
            "not_ready",
            "1 for each reason why the service is not ready, else 0.",
            lambda: {code: code in self.not_ready_codes for code in ReadinessCode},
            "code",
        )
        self.add_gauge(
            "integration_queue",
            "Items that wait to be sent to an integration.",
            lambda: {name: each.read_queue() for name, each in self.integrations.items()},
            "name",
        )
        self.add_counter(
            "integration_failures",
            "Failed attempts to send items to an integration.",
            lambda: {name: each.read_failures() for name, each in self.integrations.items()},
            "name",
        )
        # CPU, memory and open files of this process; nothing where there is no /proc.
        ProcessCollector(registry=self._registry)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a completed HTTP request. `route` is the path template, not the path of the request."""
        self._requests.labels(method, route, status).observe(seconds)

    def count_login(self, outcome: Literal["succeeded", "failed", "throttled"]) -> None:
        """Count a login attempt with a password."""
        self._logins.labels(outcome).inc()

    def count_image_bytes(self, count: int) -> None:
        """Add `count` to the number of bytes of firmware images that were sent."""
        self._image_bytes.inc(count)

    def register(self, collector: Collector) -> None:
        """Add a Prometheus collector that another part of the service updates itself."""
        self._registry.register(collector)

    def add_counter(self, name: str, description: str, read: ReadValue, *labels: str) -> None:
        """Add a counter whose value is read at each scrape. With labels, `read` returns values by label."""
        self._read_metrics.metrics.append(_ReadMetric(CounterMetricFamily, name, description, read, labels))

    def add_gauge(self, name: str, description: str, read: ReadValue, *labels: str) -> None:
        """Add a gauge whose value is read at each scrape. With labels, `read` returns values by label."""
        self._read_metrics.metrics.append(_ReadMetric(GaugeMetricFamily, name, description, read, labels))

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)
