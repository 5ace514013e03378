"""Figures of the embedded broker for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.mqtt.broker import Broker


class BrokerMetrics(Collector):
    """What the broker counts by itself, read when somebody asks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        """Read them, when somebody asks."""
        broker, stock = self._broker, self._broker.quotas
        for name, meaning, value in (
            ("connections", "MQTT connections.", len(broker.connections)),
            ("sessions", "MQTT sessions, those of absent clients among them.", len(broker.sessions)),
            ("retained", "Retained messages.", len(broker.retained)),
            ("owed_bytes", "Bytes that wait for MQTT clients.", stock.queued_bytes),
        ):
            yield GaugeMetricFamily(f"meshfleet_mqtt_{name}", meaning, value=value)
        for name, meaning, value in (
            ("received", "Messages that MQTT clients published.", stock.received_count),
            ("delivered", "Messages that were sent to MQTT clients.", stock.delivered_count),
            ("cut_off", "MQTT clients that were cut off because they did not keep up.", stock.cut_off_count),
            (
                "turned_away",
                "MQTT connections that were closed unread at a limit.",
                broker.connections.rejected_count,
            ),
            ("admitted", "MQTT clients that were let in.", broker.connect_handler.admitted_count),
            ("refused", "MQTT clients that were not let in.", broker.connect_handler.refused_count),
        ):
            yield CounterMetricFamily(f"meshfleet_mqtt_{name}", meaning, value=value)
        dropped = CounterMetricFamily(
            "meshfleet_mqtt_dropped", "Messages that MQTT clients did not get, by reason.", labels=["reason"]
        )
        for reason, count in stock.dropped_counts.items():
            dropped.add_metric([reason], count)
        yield dropped
