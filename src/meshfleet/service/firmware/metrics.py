"""Prometheus metrics of firmware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from meshfleet.service.firmware.image_requests import ImageRequestHandler

_OUTCOMES: Final = ("answered", "dropped", "malformed", "unknown")


class ImageRequestMetrics(Collector):
    """Collector of the outcomes of image requests of gateways."""

    def __init__(self, handler: ImageRequestHandler) -> None:
        self._handler = handler

    def collect(self) -> Iterator[Metric]:
        """Collect the current counts."""
        family = CounterMetricFamily(
            "meshfleet_firmware_questions",
            "Requests of gateways for firmware images, by outcome.",
            labels=["outcome"],
        )
        for outcome in _OUTCOMES:
            family.add_metric([outcome], self._handler.outcomes[outcome])
        yield family
