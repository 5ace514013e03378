"""Coverage: how anchors are expected to receive a device in each part of a floor.

It follows from the signal map alone, and so does how exact positions are there.
"""

from __future__ import annotations

from itertools import count
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshfleet.positioning.estimate import estimate_places
from meshfleet.positioning.posterior import PosteriorSolver, Readings

if TYPE_CHECKING:
    from meshfleet.positioning.arrays import Bools, Floats, Ints
    from meshfleet.positioning.grid import Grid, Raster
    from meshfleet.positioning.signal_model import Offset, SignalMap

MAX_PARTS: Final = 1_000
"""Maximum number of parts of a floor: each one needs a position, and a picture does not need more."""
_PARTS_PER_SLICE: Final = 100
"""Number of positions computed at once, to limit the memory."""


class Receivers(NamedTuple):
    """Anchors of a site as receivers: which ones listen, and which readings of them count."""

    is_listening: Bools
    """Whether each anchor is switched on."""
    min_level: float
    """RSSI in dBm from which a reading counts."""
    max_reported: int | None
    """Maximum number of anchors that are reported for a device; None for all."""


class CoverageMap(NamedTuple):
    """Coverage of the parts of a floor, row by row from the lower left corner."""

    columns: int
    rows: int
    column_meters: float
    row_meters: float
    is_walkable: Bools
    counts: Ints
    """Number of anchors that receive a device."""
    levels: Floats
    """Strongest RSSI in dBm; NaN where no anchor receives a device."""
    radii: Floats
    """Radius of the position of a device in meters; NaN where too few anchors receive it."""
    located_share: float
    """Share of the walkable cells in which enough anchors for a position receive a device."""


def predict_coverage(  # noqa: PLR0913 # keyword-only
    solver: PosteriorSolver,
    signal_map: SignalMap,
    grid: Grid,
    raster: Raster,
    *,
    offset: Offset,
    receivers: Receivers,
    min_anchors: int,
) -> CoverageMap:
    """Predict the coverage of a floor for devices with an offset.

    Radii are those of readings without noise. Silence of anchors is not used, so they are rather too large.
    """
    step = next(
        each for each in count(1) if ceil(raster.columns / each) * ceil(raster.rows / each) <= MAX_PARTS
    )
    columns, rows = _choose_middles(raster.columns, step), _choose_middles(raster.rows, step)
    parts = (raster.first_cell + rows[:, None] * raster.columns + columns).ravel()
    levels = _predict_levels(signal_map.mean[:, parts], offset, receivers)
    counts = (~np.isnan(levels)).sum(axis=1)
    is_walkable = grid.is_walkable[parts]
    radii = np.full(len(parts), np.nan)
    located = np.flatnonzero((counts >= min_anchors) & is_walkable)
    for start in range(0, len(located), _PARTS_PER_SLICE):
        chosen = located[start : start + _PARTS_PER_SLICE]
        readings = _keep_strongest(levels[chosen], receivers.max_reported)
        radii[chosen] = _compute_radii(solver, grid, readings, offset)
    every = ~np.isnan(_predict_levels(signal_map.mean[:, raster.cells], offset, receivers))
    return CoverageMap(
        columns=len(columns),
        rows=len(rows),
        column_meters=raster.column_meters * step,
        row_meters=raster.row_meters * step,
        is_walkable=is_walkable,
        counts=counts,
        levels=np.where(counts > 0, np.fmax.reduce(levels, axis=1, initial=-np.inf), np.nan),
        radii=radii,
        located_share=_measure_share(every.sum(axis=1) >= min_anchors, grid.is_walkable[raster.cells]),
    )


def _choose_middles(cells: int, step: int) -> Ints:
    """Divide a row of cells into parts of `step` cells. Return the middle cell of each part."""
    return np.minimum(np.arange(0, cells, step) + step // 2, cells - 1)


def _predict_levels(mean: Floats, offset: Offset, receivers: Receivers) -> Floats:
    """Return the expected RSSI by cell and anchor; NaN where an anchor does not receive a device."""
    levels = mean.T + offset.mean
    is_received = (levels >= receivers.min_level) & receivers.is_listening
    return np.where(is_received, levels, np.nan)


def _keep_strongest(levels: Floats, count: int | None) -> Floats:
    """Return the strongest readings of each row; NaN instead of the others."""
    if count is None or levels.shape[1] <= count:
        return levels
    limits = -np.sort(-levels, axis=1)[:, count - 1]  # NaN comes last
    return np.where(np.isnan(limits)[:, None] | (levels >= limits[:, None]), levels, np.nan)


def _compute_radii(solver: PosteriorSolver, grid: Grid, levels: Floats, offset: Offset) -> list[float]:
    count = len(levels)
    readings = Readings(levels, np.full(count, offset.mean), np.full(count, offset.variance))
    return [each.radius for each in estimate_places(solver.solve(readings), grid)]


def _measure_share(is_covered: Bools, is_walkable: Bools) -> float:
    """Return the share of the walkable cells that are covered; 0 if no cell of the floor is walkable."""
    return float(is_covered[is_walkable].mean()) if is_walkable.any() else 0.0
