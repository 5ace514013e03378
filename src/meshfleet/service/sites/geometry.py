"""Geometry of a site in meters: rectangles of floors, polygons, and the devices with a known place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from meshfleet.rest.sites import PLACE_SLACK

if TYPE_CHECKING:
    from meshfleet.rest.sites import Polygon


class Box(NamedTuple):
    """Rectangle that contains a floor."""

    min_x: float
    min_y: float
    max_x: float
    max_y: float

    def contains(self, x: float, y: float) -> bool:
        """Return whether a point is in the rectangle, or at most `PLACE_SLACK` outside. False for NaN."""
        return self.contains_x(x) and self.contains_y(y)

    def contains_x(self, x: float) -> bool:
        """Return whether `x` is within the rectangle, or at most `PLACE_SLACK` outside."""
        return self.min_x - PLACE_SLACK <= x <= self.max_x + PLACE_SLACK

    def contains_y(self, y: float) -> bool:
        """Return whether `y` is within the rectangle, or at most `PLACE_SLACK` outside."""
        return self.min_y - PLACE_SLACK <= y <= self.max_y + PLACE_SLACK

    def __str__(self) -> str:
        return f"x from {self.min_x:g} to {self.max_x:g} and y from {self.min_y:g} to {self.max_y:g}"


class FloorKey(NamedTuple):
    """Number of a site, and number of a floor on it."""

    site: int
    floor: int


class FloorGeometry(NamedTuple):
    """Rectangle and walkable areas of a floor."""

    floor: int
    box: Box
    walkable: tuple[Polygon, ...] | None
    """Areas in which devices can be, by the even-odd rule; None for the whole rectangle."""


class Anchor(NamedTuple):
    """Device with a known place; `device` is the MAC as an integer."""

    device: int
    floor: int
    x: float
    y: float


class SiteGeometry(NamedTuple):
    """Everything that is known about the space of a site."""

    site: int
    revision: int
    """Number that grows with every change of the floors and anchors."""
    floors: tuple[FloorGeometry, ...]
    """Floors in ascending order."""
    anchors: tuple[Anchor, ...]
    """Devices with a place on the site, sorted by device. Two may be at the same place."""
