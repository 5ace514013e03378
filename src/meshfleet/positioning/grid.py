"""Grid of cells on the floors of a site: the places between which the engine decides."""

from __future__ import annotations

from math import ceil, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.positioning.arrays import Bools, Floats, Ints

FINEST_STEP: Final = 0.5
"""Smallest edge of a cell in meters. Finer cells do not improve positions."""

MAX_CELLS: Final = 20_000
"""Maximum number of cells of a site; larger sites get larger cells."""

Polygon: TypeAlias = "Sequence[tuple[float, float]]"
"""Corners of a polygon as x and y in meters."""


class FloorArea(NamedTuple):
    """Floor of a site: its number, its bounding box in meters, and where one can walk."""

    floor: int
    min_x: float
    min_y: float
    max_x: float
    max_y: float
    walkable: Sequence[Polygon] = ()
    """Polygons in which devices can be; empty if they can be everywhere in the box."""


class Raster(NamedTuple):
    """Cells of one floor as a rectangle of rows and columns."""

    floor: int
    first_cell: int
    """Index in the grid of the cell in the first row and column."""
    columns: int
    rows: int
    column_meters: float
    row_meters: float

    @property
    def cells(self) -> slice:
        """Range of this floor's cells in the grid."""
        return slice(self.first_cell, self.first_cell + self.columns * self.rows)


class Grid:
    """Cells of all floors of a site, one floor after the other.

    Cells outside the walkable area stay part of the grid, so that every floor is a full rectangle.
    """

    def __init__(self, areas: Sequence[FloorArea], *, max_cells: int = MAX_CELLS) -> None:
        """Divide the floors into square cells: of `FINEST_STEP`, or larger if `max_cells` requires it."""
        surface = sum((each.max_x - each.min_x) * (each.max_y - each.min_y) for each in areas)
        self.step = max(FINEST_STEP, sqrt(surface / max_cells))
        """Approximate edge of a cell in meters."""
        self.rasters: list[Raster] = []
        centers, floors, walkable = [], [], []
        first = 0
        for area in areas:
            raster, xy = _divide(area, self.step, first)
            self.rasters.append(raster)
            first += len(xy)
            centers.append(xy)
            floors.append(np.full(len(xy), area.floor))
            walkable.append(_find_walkable(area, xy))
        self.xy: Floats = np.concatenate(centers)
        """Center of each cell in meters."""
        self.floors: Ints = np.concatenate(floors)
        """Floor of each cell."""
        self.is_walkable: Bools = np.concatenate(walkable)
        """Whether a device can be in the cell."""

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.xy)

    def find_cell(self, floor: int, x: float, y: float) -> int | None:
        """Return the cell that is nearest to a point. Return None if the site does not have that floor."""
        for raster in self.rasters:
            if raster.floor == floor:
                left, low = self.xy[raster.first_cell] - (raster.column_meters / 2, raster.row_meters / 2)
                column = min(max(int((x - left) / raster.column_meters), 0), raster.columns - 1)
                row = min(max(int((y - low) / raster.row_meters), 0), raster.rows - 1)
                return raster.first_cell + row * raster.columns + column
        return None


def _divide(area: FloorArea, step: float, first_cell: int) -> tuple[Raster, Floats]:
    """Divide a floor into cells. Return its raster and the centers of its cells."""
    width, depth = area.max_x - area.min_x, area.max_y - area.min_y
    columns, rows = max(ceil(width / step - 1e-9), 1), max(ceil(depth / step - 1e-9), 1)
    raster = Raster(area.floor, first_cell, columns, rows, width / columns, depth / rows)
    x = area.min_x + (np.arange(columns) + 0.5) * raster.column_meters
    y = area.min_y + (np.arange(rows) + 0.5) * raster.row_meters
    grid_x, grid_y = np.meshgrid(x, y)
    return raster, np.column_stack((grid_x.ravel(), grid_y.ravel()))


def _find_walkable(area: FloorArea, xy: Floats) -> Bools:
    """Return for each cell whether its center is in the floor's walkable polygons, by the even-odd rule.

    If no cell is, the polygons are too small for the cells, and all cells count as walkable.
    """
    inside = np.zeros(len(xy), dtype=np.bool_)
    for polygon in area.walkable:
        inside ^= contains_points(polygon, xy)  # a polygon inside another one is a hole
    return inside if inside.any() else np.ones(len(xy), dtype=np.bool_)


def contains_points(polygon: Polygon, xy: Floats) -> Bools:
    """Return for each point whether it is inside a polygon, by the even-odd rule."""
    corners = np.asarray(polygon, dtype=np.float64)
    inside = np.zeros(len(xy), dtype=np.bool_)
    for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y1 == y2:
            continue  # a ray along x cannot cross a side that is parallel to it
        is_between = (xy[:, 1] < y1) != (xy[:, 1] < y2)
        crossing = x1 + (xy[:, 1] - y1) * (x2 - x1) / (y2 - y1)
        inside ^= is_between & (xy[:, 0] < crossing)
    return inside
