"""Prometheus metrics of live events."""

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
    """Metrics of the event hub."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        subscribers = GaugeMetricFamily(
            "meshfleet_live_listeners", "Connected subscribers of live events.", labels=["door"]
        )
        sockets = sum(each.encoder is encode_websocket_frame for each in list(self._hub.subscribers))
        subscribers.add_metric(["websocket"], sockets)
        subscribers.add_metric(["stream"], len(self._hub.subscribers) - sockets)
        yield subscribers
        events = CounterMetricFamily("meshfleet_live_events", "Published live events.", labels=["type"])
        for event_type, count in sorted(self._hub.published.items()):
            events.add_metric([event_type], count)
        yield events
        yield CounterMetricFamily(
            "meshfleet_live_resyncs",
            "Resyncs sent to single subscribers that missed events.",
            value=self._hub.resyncs,
        )
