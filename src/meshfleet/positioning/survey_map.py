"""Survey map: corrects the signal map around places that are known.

The signal model cannot know a shelf or a wall. At a surveyed place, the readings show what the
model misses there; nearby places miss almost the same (a Gaussian process with a Matérn 3/2 kernel, one for
each anchor). So the map is right around survey points, and as good as before everywhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshfleet.positioning.signal_model import (
    SHADOWING_DB2,
    SHADOWING_METERS,
    SignalMap,
    build_signal_map,
    trace_paths,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.positioning.arrays import Bools, Floats, Ints
    from meshfleet.positioning.grid import Grid, Raster
    from meshfleet.positioning.signal_model import Anchors, SignalModel

SURVEY_NOISE_DB2: Final = 4.1
"""Variance of the readings of a survey point around what an exact repetition would read, in dB²."""

_MAX_COVARIANCES: Final = 4_000_000
"""Maximum number of covariances of points and cells that are computed at once: as many as 2,000 survey points
have between each other. They take 200 MB."""


class KnownPoints(NamedTuple):
    """Places with known readings: survey points, or anchors that other anchors receive."""

    floors: Ints
    xy: Floats
    levels: Floats
    """Mean RSSI in dBm by anchor; NaN where the anchor did not receive the device."""
    offsets: Floats
    """Offset of the device at each point."""
    noise_db2: Floats
    """Variance of the readings of each point in dB²."""


def build_survey_map(model: SignalModel, grid: Grid, anchors: Anchors, points: KnownPoints) -> SignalMap:
    """Build the signal map of a site with known points."""
    signal_map = build_signal_map(model, grid, anchors)
    predicted = model.predict(trace_paths(points.xy, points.floors, anchors))
    residuals = points.levels - points.offsets[:, None] - predicted
    for raster in grid.rasters:
        on_floor = np.flatnonzero(points.floors == raster.floor)
        if not len(on_floor):
            continue
        kernel = _Kernel(points.xy[on_floor], points.noise_db2[on_floor])
        groups = _group_columns(~np.isnan(residuals[on_floor]))
        for cells in _slice_cells(raster, len(on_floor)):
            to_cells = kernel.compare(grid.xy[cells])
            for is_heard, columns in groups:
                correction, reduction = kernel.interpolate(
                    to_cells, is_heard, residuals[np.ix_(on_floor[is_heard], columns)]
                )
                signal_map.mean[columns, cells] += correction.T
                signal_map.variance[columns, cells] -= reduction
    return signal_map


def _slice_cells(raster: Raster, points: int) -> Iterator[slice]:
    """Divide the cells of a floor into ranges whose covariances with a number of points fit into memory."""
    step = max(_MAX_COVARIANCES // points, 1)
    for start in range(raster.cells.start, raster.cells.stop, step):
        yield slice(start, min(start + step, raster.cells.stop))


class _Kernel:
    """Covariances of the shadowing at the known points of a floor."""

    def __init__(self, xy: Floats, noise_db2: Floats) -> None:
        self._xy = xy
        self._between_points = _compute_covariance(xy, xy) + np.diag(noise_db2)

    def compare(self, cells: Floats) -> Floats:
        """Return the covariances of all points with some cells: one row per point."""
        return _compute_covariance(self._xy, cells)

    def interpolate(self, to_cells: Floats, is_heard: Bools, residuals: Floats) -> tuple[Floats, Floats]:
        """Return the expected shadowing of each cell and anchor, and by how much its variance is reduced."""
        to_cells = to_cells[is_heard]
        weights = np.linalg.solve(self._between_points[np.ix_(is_heard, is_heard)], to_cells)
        return weights.T @ residuals, (weights * to_cells).sum(axis=0)


def _compute_covariance(a: Floats, b: Floats) -> Floats:
    """Return the covariance of the shadowing at two lists of points (Matérn 3/2)."""
    distance = np.hypot(a[:, None, 0] - b[None, :, 0], a[:, None, 1] - b[None, :, 1])
    scaled = np.sqrt(3.0) * distance / SHADOWING_METERS
    covariance: Floats = SHADOWING_DB2 * (1.0 + scaled) * np.exp(-scaled)
    return covariance


def _group_columns(is_heard: Bools) -> list[tuple[Bools, Ints]]:
    """Group the anchors that have readings at the same points: they share the costly part of the work."""
    groups: dict[bytes, list[int]] = {}
    for column in range(is_heard.shape[1]):
        if is_heard[:, column].any():
            groups.setdefault(is_heard[:, column].tobytes(), []).append(column)
    return [(is_heard[:, columns[0]], np.array(columns)) for columns in groups.values()]
