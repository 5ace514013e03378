"""Figures of the embedded broker for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.broker import Broker


class BrokerFigures(Collector):
    """What the broker counts by itself, read when somebody asks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        """Read them, when somebody asks."""
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
            ("cut_off", "MQTT clients that were cut off because they did not keep up.", stock.cut_off),
            ("turned_away", "MQTT connections that were closed unread at a limit.", broker.crowd.turned_away),
            ("admitted", "MQTT clients that were let in.", broker.lobby.admitted),
            ("refused", "MQTT clients that were not let in.", broker.lobby.refused),
        ):
            yield CounterMetricFamily(f"meshfleet_mqtt_{name}", meaning, value=value)
        dropped = CounterMetricFamily(
            "meshfleet_mqtt_dropped", "Messages that MQTT clients did not get, by reason.", labels=["reason"]
        )
        for reason, count in stock.dropped.items():
            dropped.add_metric([reason], count)
        yield dropped
