"""Values of metrics as Prometheus would read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from meshfleet.service.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable


def read_added_metrics(add: Callable[[Metrics], None]) -> dict[tuple[str, ...], float]:
    """Return the samples that a function adds to the metrics, by name and labels."""
    metrics = Metrics()
    own_samples = _read_samples(metrics)
    add(metrics)
    return {key: value for key, value in _read_samples(metrics).items() if key not in own_samples}


def _read_samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    text = metrics.render().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
