"""Figures of the service for Prometheus (rest-161)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.broker import Broker
    from meshfleet.service.ingest.figures import Counts

MEDIA_TYPE: Final = CONTENT_TYPE_LATEST

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Figures:
    """Counts what happens. Each service has its own: two in one process do not mix."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "meshfleet_http_request_seconds",
            "Time from the first byte of a request to the end of its answer.",
            ["method", "route", "status"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._logins = Counter(
            "meshfleet_logins", "Attempts to log in with a password.", ["outcome"], registry=self._registry
        )
        self._devices = Gauge(
            "meshfleet_devices", "Devices in the registry.", ["connected"], registry=self._registry
        )

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered. `route` is the pattern of its path: paths themselves are without end."""
        self._requests.labels(method, route, status).observe(seconds)

    def count_login(self, outcome: Literal["succeeded", "failed", "throttled"]) -> None:
        """Somebody tried to log in."""
        self._logins.labels(outcome).inc()

    def show(self, broker: Broker) -> None:
        """Tell of the embedded broker too."""
        self._registry.register(_BrokerFigures(broker))

    def show_ingest(self, counts: Counts) -> None:
        """Tell of the reports that were taken too."""
        self._registry.register(_IngestFigures(counts))

    def text(self, connected: int, disconnected: int) -> bytes:
        """All figures, with those of the fleet as it is."""
        self._devices.labels("true").set(connected)
        self._devices.labels("false").set(disconnected)
        return generate_latest(self._registry)


class _BrokerFigures(Collector):
    """What the broker counts by itself, read when somebody asks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        broker, stock = self._broker, self._broker.stock
        for name, meaning, value in (
            ("connections", "MQTT connections.", len(broker.crowd)),
            ("sessions", "MQTT sessions, those of absent clients among them.", len(broker.sessions)),
            ("retained", "Retained messages.", len(broker.retained)),
            ("owed_bytes", "Bytes that wait for MQTT clients.", stock.size),
        ):
            yield GaugeMetricFamily(f"meshfleet_mqtt_{name}", meaning, value=value)
        for name, meaning, value in (
            ("received", "Messages that MQTT clients published.", stock.received),
            ("delivered", "Messages that were sent to MQTT clients.", stock.delivered),
            ("dropped", "Messages that MQTT clients did not get: absent, or too slow.", stock.dropped),
            ("admitted", "MQTT clients that were let in.", broker.lobby.admitted),
            ("refused", "MQTT clients that were not let in.", broker.lobby.refused),
        ):
            yield CounterMetricFamily(f"meshfleet_mqtt_{name}", meaning, value=value)


class _IngestFigures(Collector):
    """What ingest counts by itself."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        for name, meaning, label, values in (
            ("reports", "Reports that were committed.", "kind", counts.reports),
            ("rejects", "Messages that could not be taken as reports.", "code", counts.rejects),
        ):
            family = CounterMetricFamily(f"meshfleet_{name}", meaning, labels=[label])
            for key, value in sorted(values.items()):
                family.add_metric([key], value)
            yield family
        yield CounterMetricFamily("meshfleet_samples", "Samples that were committed.", value=counts.samples)
        yield CounterMetricFamily(
            "meshfleet_strays", "Reports whose time is not believed.", value=counts.strays
        )
        yield CounterMetricFamily("meshfleet_batches", "Transactions with reports.", value=counts.batches)
