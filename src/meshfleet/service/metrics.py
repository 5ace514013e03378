"""Prometheus metrics of the service (rest-161)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

METRICS_MEDIA_TYPE: Final = CONTENT_TYPE_LATEST

_LATENCY_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """Metrics of one service. It has its own registry, so that two services in one process do not mix."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
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
        self._devices = Gauge(
            "meshfleet_devices", "Devices in the registry.", ["connected"], registry=self._registry
        )

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a completed HTTP request. `route` is the path template: the number of paths is unlimited."""
        self._requests.labels(method, route, status).observe(seconds)

    def count_login(self, outcome: Literal["succeeded", "failed", "throttled"]) -> None:
        """Count a login attempt with a password."""
        self._logins.labels(outcome).inc()

    def count_image_bytes(self, count: int) -> None:
        """Add to the number of sent bytes of firmware images."""
        self._image_bytes.inc(count)

    def register(self, collector: Collector) -> None:
        """Add a collector with the metrics of another part of the service."""
        self._registry.register(collector)

    def render(self, connected: int, disconnected: int) -> bytes:
        """Return all metrics in the Prometheus text format, with these numbers of devices."""
        self._devices.labels("true").set(connected)
        self._devices.labels("false").set(disconnected)
        return generate_latest(self._registry)
