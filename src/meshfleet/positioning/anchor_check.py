"""Anchor check: finds anchors that do not seem to be where they are said to be.

Each device is located without the readings of the checked anchor. Then the anchor itself is located with its
own readings: which place on a coarse grid explains them best? Errors of the map make some other place fit a
little better even if the anchor is where it should be, usually one nearby. So an anchor is named if another
place fits much better, or better and far away.

Direction effects of the checked anchor are left out: they were learned with its stated place, and would
explain half of what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshfleet.positioning.grid import Grid
from meshfleet.positioning.posterior import PosteriorSolver
from meshfleet.positioning.signal_model import Anchors, build_signal_map, trace_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.positioning.arrays import Floats, Ints
    from meshfleet.positioning.grid import FloorArea
    from meshfleet.positioning.posterior import Readings
    from meshfleet.positioning.signal_model import SignalModel

MIN_FINGERPRINTS: Final = 8
"""Minimum number of readings of an anchor for a judgment."""
_MAX_FINGERPRINTS: Final = 100
"""Maximum number of readings of an anchor for a judgment; more do not change it."""
_MAX_CELLS: Final = 500
_LIMIT: Final = 0.4
"""Score above which an anchor is named. Right anchors reach 0.28 on emulated sites with walls, and 0.27 in
the room of `bench/data/ble-rssi`."""
_SHARE_OF_WORST: Final = 0.4
"""Share of the highest score that an anchor needs too: one wrong place makes others seem wrong."""
_GAIN_WEIGHT: Final = 4.0
"""Number of readings that the expectation of a gain of 0 dB is worth."""


class AnchorSuspicion(NamedTuple):
    """Anchor whose readings do not fit to its place."""

    anchor: int
    """Index of the anchor."""
    difference_db: float
    """Root mean square difference between its readings and those expected at its place, in dB."""


class _Fit(NamedTuple):
    """How the readings of an anchor fit to its place."""

    difference_db: float
    score: float
    """Logarithm of the ratio to the difference at the best place, times the distance of that place.

    The distance is relative to the spacing of anchors.
    """


def find_misplaced_anchors(
    model: SignalModel, areas: Sequence[FloorArea], anchors: Anchors, readings: Readings
) -> list[AnchorSuspicion]:
    """Return the anchors whose readings do not fit to their places, the worst first."""
    check = _AnchorCheck(model, areas, anchors, readings)
    fits = [(each, check.fit(each)) for each in range(anchors.size)]
    limit = max(_LIMIT, _SHARE_OF_WORST * max((fit.score for _, fit in fits), default=0.0))
    named = sorted((each for each in fits if each[1].score > limit), key=lambda each: -each[1].score)
    return [AnchorSuspicion(anchor, fit.difference_db) for anchor, fit in named]


class _AnchorCheck:
    """Readings of a site, and a coarse grid of places where an anchor or a device may be."""

    def __init__(
        self, model: SignalModel, areas: Sequence[FloorArea], anchors: Anchors, readings: Readings
    ) -> None:
        self._model, self._anchors, self._readings = model, anchors, readings
        self._grid = grid = Grid(areas, max_cells=_MAX_CELLS)
        self._solver = PosteriorSolver(build_signal_map(model, grid, anchors), is_walkable=grid.is_walkable)
        self._between_cells = self._trace(Anchors(grid.floors, grid.xy))
        self._to_anchors = self._trace(anchors)
        surface = sum((each.max_x - each.min_x) * (each.max_y - each.min_y) for each in areas)
        self._spacing = float(np.sqrt(surface / anchors.size))

    def _trace(self, receivers: Anchors) -> Floats:
        """Return the RSSI that receivers without gain expect from a device in each cell."""
        paths = trace_paths(self._grid.xy, self._grid.floors, receivers)
        expected: Floats = -self._model.exponent * paths.loss - self._model.floor_loss * paths.floors
        return expected

    def fit(self, anchor: int) -> _Fit:
        """Compare the stated place of an anchor with all cells."""
        rows = np.flatnonzero(~np.isnan(self._readings.levels[:, anchor]))
        rows = rows[:: -(-len(rows) // _MAX_FINGERPRINTS) or 1]
        if len(rows) < MIN_FINGERPRINTS:
            return _Fit(0.0, 0.0)
        own = self._readings.levels[rows, anchor] - self._readings.offsets[rows]
        probabilities = self._locate_without(anchor, rows)
        stated = float(_measure_differences(own, probabilities @ self._to_anchors[:, [anchor]])[0])
        differences = _measure_differences(own, probabilities @ self._between_cells)
        best = int(differences.argmin())
        ratio = max(stated / max(float(differences[best]), 1e-3), 1.0)
        return _Fit(stated, float(np.log(ratio)) * self._measure_distance(anchor, best) / self._spacing)

    def _locate_without(self, anchor: int, rows: Ints) -> Floats:
        """Return the probability of each cell for each row of readings, without those of an anchor."""
        levels = self._readings.levels[rows].copy()
        levels[:, anchor] = np.nan
        others = self._readings._replace(
            levels=levels,
            offsets=self._readings.offsets[rows],
            offset_variances=self._readings.offset_variances[rows],
            is_silent=None,
        )
        return self._solver.solve(others).astype(np.float64)

    def _measure_distance(self, anchor: int, cell: int) -> float:
        """Return the distance of a cell from an anchor in meters; a floor counts as their spacing."""
        floors = abs(int(self._grid.floors[cell]) - int(self._anchors.floors[anchor]))
        x, y = self._grid.xy[cell] - self._anchors.xy[anchor]
        return float(np.hypot(x, y)) + floors * self._spacing


def _measure_differences(own: Floats, expected: Floats) -> Floats:
    """Return the root mean square difference in dB for each column of expected readings.

    The gain of the anchor is the one that fits best.
    """
    residuals = own[:, None] - expected
    gains = residuals.sum(axis=0) / (len(own) + _GAIN_WEIGHT)
    differences: Floats = np.sqrt(((residuals - gains) ** 2).mean(axis=0))
    return differences
