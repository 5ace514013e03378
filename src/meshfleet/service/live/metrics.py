"""Figures of live events for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from meshfleet.service.live.event import encode_websocket_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.live.hub import EventHub


class LiveMetrics(Collector):
    """What the hub counts by itself."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub

    def collect(self) -> Iterator[Metric]:
        """Read them, when somebody asks."""
        listeners = GaugeMetricFamily("meshfleet_live_listeners", "Who listens.", labels=["door"])
        sockets = sum(each.encoder is encode_websocket_frame for each in list(self._hub.subscribers))
        listeners.add_metric(["websocket"], sockets)
        listeners.add_metric(["stream"], len(self._hub.subscribers) - sockets)
        yield listeners
        events = CounterMetricFamily("meshfleet_live_events", "Live events.", labels=["type"])
        for kind, count in sorted(self._hub.published.items()):
            events.add_metric([kind], count)
        yield events
        yield CounterMetricFamily(
            "meshfleet_live_resyncs",
            "Listeners that were told that they missed something, each time.",
            value=self._hub.resyncs,
        )
