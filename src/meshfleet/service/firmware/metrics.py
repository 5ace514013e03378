"""Prometheus metrics of the image requests of gateways."""

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
    """Exports the number of image requests of gateways, by outcome."""

    def __init__(self, handler: ImageRequestHandler) -> None:
        self._handler = handler

    def collect(self) -> Iterator[Metric]:
        """Yield the current number of image requests by outcome."""
        family = CounterMetricFamily(
            "meshfleet_firmware_questions",
            "Requests of gateways for firmware images, by outcome.",
            labels=["outcome"],
        )
        for outcome in _OUTCOMES:
            family.add_metric([outcome], self._handler.outcomes[outcome])
        yield family
