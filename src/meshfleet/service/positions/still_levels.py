"""Averages what anchors read of a device while it stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshfleet.positioning.motion import StillAverage, average_if_still
from meshfleet.service.positions.reading_store import AnchorLevel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshfleet.positioning.arrays import Floats


def merge_if_still(
    average: Mapping[int, AnchorLevel], levels: Mapping[int, AnchorLevel]
) -> dict[int, AnchorLevel]:
    """Return the average with new levels added, or only the new levels if the device has moved."""
    if not average:
        return dict(levels)
    anchors = sorted({*average, *levels})
    still = average_if_still(StillAverage(*_to_arrays(average, anchors)), *_to_arrays(levels, anchors))
    if still is None:
        return dict(levels)
    return {
        anchor: AnchorLevel(float(level), max(round(float(count)), 1))
        for anchor, level, count in zip(anchors, still.levels, still.counts, strict=True)
        if count > 0
    }


def _to_arrays(levels: Mapping[int, AnchorLevel], anchors: Sequence[int]) -> tuple[Floats, Floats]:
    found = [levels.get(anchor) for anchor in anchors]
    return (
        np.array([np.nan if each is None else each.rssi for each in found]),
        np.array([0.0 if each is None else float(each.count) for each in found]),
    )
