"""Positions over time: a device that stands still, and a device that moves.

Multiplying the probabilities of many readings would be wrong for a device that stands still: errors of the
map are the same every time, and the result would be certain and false. So `average_if_still` recognizes
readings that have not changed; their average is located once. For a device that moves, `MotionFilter` passes
on what is known to the next step: the device is within walking distance of where it was.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.positioning.arrays import Bools, Floats, Floats32
    from meshfleet.positioning.grid import Grid, Raster

STEP_SECONDS: Final = 3.0
"""Time between two steps for which the constants below were measured."""
_STEP_METERS: Final = 2.0
"""Standard deviation of the distance that a device moves in a step, along each axis."""
_JUMP_SHARE: Final = 0.02
"""Probability that a device is anywhere: it was carried while no reports arrived, or the map was wrong."""
_POWER: Final = 0.7
"""Exponent of likelihoods: errors of the map at neighboring places are similar, so each counts less."""
_OTHER_FLOOR_SHARE: Final = 0.01
"""Probability that a device changes its floor in a step."""

_KERNEL_DEVIATIONS: Final = 3.0
_MAX_METERS: Final = 20.0
"""Distance after which a device may be nearly anywhere: some minutes of walking."""
_MAX_KERNELS: Final = 4
"""Maximum number of step lengths whose matrices are kept: those of a large floor take 30 MB."""


class MotionFilter:
    """Moves the probabilities of cells on by one step, and combines them with new readings."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._uniform = (grid.is_walkable / grid.is_walkable.sum()).astype(np.float32)
        self._kernels: OrderedDict[float, list[tuple[Floats32, Floats32]]] = OrderedDict()

    def advance(self, probabilities: Floats32, seconds: float) -> Floats32:
        """Return where a device may be some seconds later. `probabilities` has one row per device."""
        moved = np.empty_like(probabilities)
        for raster, (across, along) in zip(self._grid.rasters, self._get_kernels(seconds), strict=True):
            shape = (len(probabilities), raster.rows, raster.columns)
            cells = probabilities[:, raster.cells].reshape(shape)
            moved[:, raster.cells] = (across @ cells @ along).reshape(len(probabilities), -1)
        if len(self._grid.rasters) > 1:
            floors = np.stack([moved[:, each.cells].sum(axis=1) for each in self._grid.rasters], axis=1)
            moved *= 1.0 - _OTHER_FLOOR_SHARE
            for index, raster in enumerate(self._grid.rasters):
                elsewhere = 1.0 - floors[:, index : index + 1]
                moved[:, raster.cells] += (
                    _OTHER_FLOOR_SHARE * elsewhere / (raster.rows * raster.columns)
                ).astype(np.float32)
        moved *= self._grid.is_walkable
        moved *= (1.0 - _JUMP_SHARE) / moved.sum(axis=1, keepdims=True)
        moved += np.float32(_JUMP_SHARE) * self._uniform
        return moved

    def update(self, predicted: Floats32, log_likelihoods: Floats32) -> Floats32:
        """Return the probabilities after new readings."""
        with np.errstate(divide="ignore"):
            logs = np.log(predicted) + np.float32(_POWER) * log_likelihoods
        logs -= logs.max(axis=1, keepdims=True)
        result: Floats32 = np.exp(logs)
        result /= result.sum(axis=1, keepdims=True)
        return result

    def smooth(self, log_likelihoods: Floats32, seconds: Sequence[float]) -> Floats32:
        """Return the probabilities of one device at all steps, considering the readings before and after.

        `seconds` are the times between the steps, one less than there are rows.
        """
        count = len(log_likelihoods)
        forward = np.empty_like(log_likelihoods)
        predicted = self._uniform[None, :]
        for row in range(count):
            if row:
                predicted = self.advance(forward[row - 1 : row], seconds[row - 1])
            forward[row] = self.update(predicted, log_likelihoods[row : row + 1])[0]
        backward = np.ones_like(self._uniform)[None, :]
        for row in range(count - 2, -1, -1):
            later = self.update(backward, log_likelihoods[row + 1 : row + 2])
            backward = self.advance(later, seconds[row])
            forward[row] *= backward[0]
            forward[row] /= forward[row].sum()
        return forward

    def _get_kernels(self, seconds: float) -> list[tuple[Floats32, Floats32]]:
        """Return for each floor the matrices that blur rows and columns."""
        meters = min(round(_STEP_METERS * sqrt(max(seconds, 0.1) / STEP_SECONDS), 1), _MAX_METERS)
        if meters in self._kernels:
            self._kernels.move_to_end(meters)
        else:
            self._kernels[meters] = [_build_kernels(each, meters) for each in self._grid.rasters]
            if len(self._kernels) > _MAX_KERNELS:
                self._kernels.popitem(last=False)
        return self._kernels[meters]


def _build_kernels(raster: Raster, meters: float) -> tuple[Floats32, Floats32]:
    """Return matrices that spread a probability over a floor: first along its rows, then its columns."""
    return (
        _build_band(raster.rows, meters / raster.row_meters),
        _build_band(raster.columns, meters / raster.column_meters),
    )


def _build_band(size: int, deviation: float) -> Floats32:
    """Return a symmetric matrix that blurs a line of cells by a normal distribution."""
    reach = ceil(_KERNEL_DEVIATIONS * deviation)
    offset = np.abs(np.arange(size)[:, None] - np.arange(size)[None, :])
    band = np.where(offset <= reach, np.exp(-0.5 * (offset / max(deviation, 1e-3)) ** 2), 0.0)
    total = 1.0 + 2.0 * np.exp(-0.5 * (np.arange(1, reach + 1) / max(deviation, 1e-3)) ** 2).sum()
    matrix: Floats32 = (band / total).astype(np.float32)
    return matrix


_READING_NOISE_DB2: Final = 6.0
"""Variance of a single reading of a device that does not move, in dB²."""
_STILL_NOISE_DB2: Final = 1.5
"""Variance between averages of a device that does not move: people and doors, in dB²."""
_MOVED_RATIO: Final = 3.0
"""Mean squared change, relative to that of a still device, above which the device has moved."""
_CLEAR_DB: Final = 6.0
"""Difference to the weakest other reading from which the silence of an anchor means something: gateways may
report only the anchors that receive a device best."""
_SILENT_RATIO: Final = 6.0
"""Squared change as which the silence of an anchor counts at most; less if others have few readings."""
_SILENT_HALF: Final = 0.5
"""Number of readings of others with which silence counts half: single packets get lost."""
_SILENT_SHARE: Final = 0.5
"""Share of its weight that an anchor keeps in the average when it is silent."""
_MAX_STEP_WEIGHT: Final = 12.0
"""Weight in readings of a step at most: more readings of one moment share the same disturbance."""
_MAX_AVERAGE_WEIGHT: Final = 120.0
"""Weight in readings of the average at most: older readings fade."""


class StillAverage(NamedTuple):
    """Average of the readings of a device since it last moved."""

    levels: Floats
    """Mean RSSI in dBm by anchor; NaN where the anchor has not received the device."""
    counts: Floats
    """Number of readings by anchor."""


def average_if_still(average: StillAverage, levels: Floats, counts: Floats) -> StillAverage | None:
    """Add the readings of a device to its average. Return None if they show that the device has moved."""
    was_received, is_received = average.counts > 0, counts > 0
    is_common = was_received & is_received
    if not is_common.any():
        return None
    change = levels[is_common] - average.levels[is_common]
    expected = (
        _READING_NOISE_DB2 * (1.0 / counts[is_common] + 1.0 / average.counts[is_common]) + _STILL_NOISE_DB2
    )
    is_silent = was_received & ~is_received & _is_clear(average.levels, levels[is_received])
    is_new = is_received & ~was_received & _is_clear(levels, average.levels[was_received])
    silence = is_silent.sum() * _weigh_silence(counts) + is_new.sum() * _weigh_silence(average.counts)
    compared = is_common.sum() + is_silent.sum() + is_new.sum()
    if float((change**2 / expected).sum() + silence) > _MOVED_RATIO * compared:
        return None
    before, added = np.minimum(average.counts, _MAX_AVERAGE_WEIGHT), np.minimum(counts, _MAX_STEP_WEIGHT)
    before = np.where(is_silent, _SILENT_SHARE * before, before)
    before[before < 1.0] = 0.0
    sums = np.nan_to_num(average.levels) * before + np.nan_to_num(levels) * added
    with np.errstate(invalid="ignore"):
        mean = np.where(before + added > 0, sums / (before + added), np.nan)
    return StillAverage(mean, np.where(is_silent, before, average.counts) + counts)


def _weigh_silence(counts: Floats) -> float:
    """Return what silence counts as a squared change, while anchors that are not silent have `counts`."""
    readings = float(counts.max())
    return _SILENT_RATIO * readings / (readings + _SILENT_HALF)


def _is_clear(levels: Floats, others: Floats) -> Bools:
    """Return which readings are clearly above the weakest of others; none that are missing."""
    with np.errstate(invalid="ignore"):
        is_clear: Bools = levels > others.min() + _CLEAR_DB
    return is_clear
