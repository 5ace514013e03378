"""Averages what anchors read of a device while it stands still, and notices when it moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from meshfleet.positioning.motion import StillAverage, average_if_still
from meshfleet.service.positions.reading_steps import merge_levels
from meshfleet.service.positions.reading_store import AnchorLevel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from meshfleet.positioning.arrays import Floats

_BLOCK_MS: Final = 15_000
"""Length of a block of frequent readings. In the room of `bench/data/ble-rssi`, all blocks of people that
walk at 0.3 m/s differ from those before, and one of 600 blocks of a device that stands still."""
_STILL_BLOCKS: Final = 2
"""Blocks with similar readings after which a device with frequent readings stands still."""


def merge_if_still(
    average: Mapping[int, AnchorLevel], levels: Mapping[int, AnchorLevel]
) -> dict[int, AnchorLevel] | None:
    """Return the average with new levels added. Return None if the device has moved."""
    anchors = sorted({*average, *levels})
    still = average_if_still(StillAverage(*_to_arrays(average, anchors)), *_to_arrays(levels, anchors))
    if still is None:
        return None
    return {
        anchor: AnchorLevel(float(level), max(round(float(count)), 1))
        for anchor, level, count in zip(anchors, still.levels, still.counts, strict=True)
        if count > 0
    }


def average_since_moved(steps: Iterable[Mapping[int, AnchorLevel]]) -> dict[int, AnchorLevel]:
    """Return the average levels of the last steps between which a device has not moved."""
    average: dict[int, AnchorLevel] = {}
    for levels in steps:
        average = merge_if_still(average, levels) or dict(levels)
    return average


class Stillness:
    """Average readings of a device since it last moved."""

    __slots__ = ("_average", "_average_before", "_block", "_block_started_at", "_blocks")

    def __init__(self) -> None:
        self._average: dict[int, AnchorLevel] = {}
        self._average_before: dict[int, AnchorLevel] = {}
        """Average before the last rare step."""
        self._block: list[Mapping[int, AnchorLevel]] = []
        """Levels of the frequent steps that are not part of the average yet."""
        self._block_started_at = 0
        self._blocks = 0
        """Number of blocks of frequent steps in the average."""

    def add(self, levels: Mapping[int, AnchorLevel], *, is_repeated: bool) -> dict[int, AnchorLevel]:
        """Add a rare step, in which the device may have moved anywhere. Return the average.

        A step is repeated, with more readings, when some of them came late: it replaces the one before.
        """
        self._block.clear()
        if not is_repeated:
            self._average_before = self._average
        self._average = merge_if_still(self._average_before, levels) or dict(levels)
        self._blocks = _STILL_BLOCKS
        return self._average

    def add_frequent(self, time: int, levels: Mapping[int, AnchorLevel]) -> dict[int, AnchorLevel] | None:
        """Add a short step that ends at a Unix time in milliseconds. Return None if the device moves."""
        if self._average and merge_if_still(self._average, levels) is None:
            self._average, self._blocks = {}, 0
            self._block.clear()
        if time < self._block_started_at:  # the clock was set back
            self._block.clear()
        if not self._block:
            self._block_started_at = time
        self._block.append(levels)
        if time - self._block_started_at >= _BLOCK_MS:
            self._end_block()
        return self._average if self._blocks >= _STILL_BLOCKS else None

    def _end_block(self) -> None:
        levels = merge_levels(self._block)
        self._block.clear()
        merged = merge_if_still(self._average, levels)
        self._blocks = 1 if merged is None else self._blocks + 1
        self._average = levels if merged is None else merged


def _to_arrays(levels: Mapping[int, AnchorLevel], anchors: Sequence[int]) -> tuple[Floats, Floats]:
    found = [levels.get(anchor) for anchor in anchors]
    return (
        np.array([np.nan if each is None else each.rssi for each in found]),
        np.array([0.0 if each is None else float(each.count) for each in found]),
    )
