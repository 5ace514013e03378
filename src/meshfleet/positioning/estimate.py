"""Estimates: place, radius and floor from the probabilities of all cells."""

from __future__ import annotations

from math import hypot
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from meshfleet.positioning.arrays import Floats32
    from meshfleet.positioning.grid import Grid, Raster

CONFIDENCE: Final = 0.9
"""Probability that the device is within the radius."""

_RADIUS_BINS_PER_CELL: Final = 2


class Estimate(NamedTuple):
    """Estimated place of a device."""

    floor: int
    """Most probable floor."""
    x: float
    y: float
    radius: float
    """Radius in meters that holds the device with a probability of `CONFIDENCE`, if the floor is right."""
    floor_probabilities: tuple[float, ...]
    """Probability of each floor, in the order of the grid."""

    def measure_distance(self, x: float, y: float) -> float:
        """Return the distance in meters from a point on the same floor."""
        return hypot(self.x - x, self.y - y)


def estimate_places(probabilities: Floats32, grid: Grid) -> list[Estimate]:
    """Return the estimate of each row of cell probabilities."""
    by_floor = np.stack([probabilities[:, each.cells].sum(axis=1) for each in grid.rasters], axis=1)
    chosen = by_floor.argmax(axis=1)
    estimates: list[Estimate | None] = [None] * len(probabilities)
    for index, raster in enumerate(grid.rasters):
        rows = np.flatnonzero(chosen == index)
        if not len(rows):
            continue
        on_floor = probabilities[rows, raster.cells] if len(grid.rasters) > 1 else probabilities
        mass = on_floor.sum(axis=1)
        xy = grid.xy[raster.cells].astype(np.float32)
        centers = (on_floor @ xy) / mass[:, None]
        radii = _find_radii(on_floor, mass, xy, centers, raster)
        for row, (x, y), radius, floors in zip(rows, centers, radii, by_floor[rows], strict=True):
            shares = tuple(float(share) for share in floors / floors.sum())
            estimates[row] = Estimate(raster.floor, float(x), float(y), float(radius), shares)
    return [each for each in estimates if each is not None]


def _find_radii(
    probabilities: Floats32, mass: Floats32, xy: Floats32, centers: Floats32, raster: Raster
) -> Floats32:
    """Return the radius around each center that holds `CONFIDENCE` of the probability, at least one cell.

    Distances are counted in bins of half a cell: sorting all cells of each row would take twice as long.
    """
    step = max(raster.column_meters, raster.row_meters)
    bin_meters = np.float32(step / _RADIUS_BINS_PER_CELL)
    radii = np.empty(len(centers), dtype=np.float32)
    for row, (x, y) in enumerate(centers):
        distances = np.hypot(xy[:, 0] - x, xy[:, 1] - y)
        bins = (distances / bin_meters).astype(np.int64)
        inside = np.bincount(bins, weights=probabilities[row]).cumsum()
        radii[row] = (inside.searchsorted(CONFIDENCE * mass[row]) + 1) * bin_meters
    return np.maximum(radii, np.float32(step))
