"""Prometheus metrics of the embedded broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.mqtt.broker import Broker


class BrokerMetrics(Collector):
    """Exports the counters of the broker. They are read on every scrape."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics of the broker."""
        broker, quotas = self._broker, self._broker.quotas
        for name, description, value in (
            ("connections", "Open MQTT connections.", len(broker.connections)),
            ("sessions", "MQTT sessions, including those of disconnected clients.", len(broker.sessions)),
            ("retained", "Retained messages.", len(broker.retained)),
            ("owed_bytes", "Bytes queued for MQTT clients.", quotas.queued_bytes),
        ):
            yield GaugeMetricFamily(f"meshfleet_mqtt_{name}", description, value=value)
        for name, description, value in (
            ("received", "Messages published by MQTT clients.", quotas.received_count),
            ("delivered", "Messages sent to MQTT clients.", quotas.delivered_count),
            ("cut_off", "MQTT clients disconnected because they read too slowly.", quotas.cut_off_count),
            (
                "turned_away",
                "MQTT connections closed before CONNECT because a limit was reached.",
                broker.connections.rejected_count,
            ),
            ("admitted", "MQTT clients accepted at CONNECT.", broker.connect_handler.admitted_count),
            ("refused", "MQTT clients refused at CONNECT.", broker.connect_handler.refused_count),
        ):
            yield CounterMetricFamily(f"meshfleet_mqtt_{name}", description, value=value)
        dropped = CounterMetricFamily(
            "meshfleet_mqtt_dropped",
            "Messages dropped instead of delivered to MQTT clients, by reason.",
            labels=["reason"],
        )
        for reason, count in quotas.dropped_counts.items():
            dropped.add_metric([reason], count)
        yield dropped
