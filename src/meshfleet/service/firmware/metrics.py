"""Figures of firmware for Prometheus."""

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
    """What became of questions for images, read when somebody asks."""

    def __init__(self, handler: ImageRequestHandler) -> None:
        self._handler = handler

    def collect(self) -> Iterator[Metric]:
        """Read them, when somebody asks."""
        family = CounterMetricFamily(
            "meshfleet_firmware_questions",
            "Questions of gateways for images, by what became of them.",
            labels=["outcome"],
        )
        for outcome in _OUTCOMES:
            family.add_metric([outcome], self._handler.outcomes[outcome])
        yield family
