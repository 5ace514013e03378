"""Signal model: which RSSI an anchor is expected to read from a device in a cell.

    RSSI = offset of the device + gain of the anchor - exponent * path loss - floor loss * floors
           + direction effect + shadowing

Anchors are mounted on walls and hidden in boxes: most receive better from one direction than from another.
The direction effect is a smooth function of the angle at which an anchor sees a cell. Together with offsets,
gains and exponent it can be learned from readings of devices whose places are unknown. Shadowing is what
remains: walls, shelves and people. It is unknown until a place has been surveyed (`survey_map`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.positioning.arrays import Floats, Ints
    from meshfleet.positioning.grid import Grid

# Measured in a hall of 21 x 18 m with 12 anchors (bench/data/ble-rssi), set A only.

SHADOWING_DB2: Final = 8.3
"""Variance of the shadowing between places that are meters apart, in dB²."""
SHADOWING_METERS: Final = 1.5
"""Distance at which the shadowing of two places is still similar (Matérn 3/2)."""
DRIFT_DB2: Final = 9.0
"""Variance of everything that changes later: bodies, orientation of the device, moved furniture, in dB²."""

_NEAR_METERS2: Final = 0.6**2
"""Added to squared distances: anchors and devices are at different heights, and never at one point."""
_FLOOR_METERS: Final = 3.0
"""Assumed height of a floor."""
_MAX_PATHS: Final = 500_000
"""Maximum number of paths that are traced at once: each takes 150 bytes."""


class Anchors(NamedTuple):
    """Places of the anchors of a site."""

    floors: Ints
    xy: Floats

    @property
    def size(self) -> int:
        """Number of anchors."""
        return len(self.floors)


class Paths(NamedTuple):
    """Paths from points to anchors: arrays with one row per point and one column per anchor."""

    loss: Floats
    """Path loss in dB with an exponent of 1."""
    floors: Floats
    """Number of floors between point and anchor."""
    directions: Floats
    """Basis functions of the direction effect, along a third axis."""


DIRECTION_VARIANCES: Final = np.array([4.0, 4.0, 1.0, 1.0])
"""Prior variances in dB² of the coefficients of cosine and sine of the angle, and of twice the angle."""


def trace_paths(xy: Floats, floors: Ints, anchors: Anchors) -> Paths:
    """Return the paths from points on floors to all anchors."""
    offset = xy[:, None, :] - anchors.xy[None, :, :]
    floor_count = np.abs(floors[:, None] - anchors.floors[None, :]).astype(np.float64)
    distance2 = (offset**2).sum(axis=2) + (_FLOOR_METERS * floor_count) ** 2 + _NEAR_METERS2
    angle = np.arctan2(offset[:, :, 1], offset[:, :, 0])
    directions = np.stack((np.cos(angle), np.sin(angle), np.cos(2 * angle), np.sin(2 * angle)), axis=2)
    return Paths(5.0 * np.log10(distance2), floor_count, directions)


class Offset(NamedTuple):
    """Estimated transmit power of a device or product, including the loss of the first meter, in dBm."""

    mean: float
    variance: float


class SignalModel(NamedTuple):
    """Calibrated parameters of a site."""

    exponent: float
    floor_loss: float
    """Loss per floor in dB, in addition to the loss of the distance."""
    gains: Floats
    """Gain of each anchor in dB."""
    directions: Floats
    """Coefficients of the direction effect: one row per anchor."""
    direction_covariances: Floats
    """Posterior covariance of the coefficients of each anchor."""
    devices: Mapping[int, Offset]
    """Offsets of the devices that were part of the calibration."""
    products: Mapping[int, Offset]
    """Offsets of products: expected value, and variance between devices of that product."""
    unknown: Offset
    """Offset of a device of an unknown product."""
    noise_db: float
    """Standard deviation of the readings around the model, in dB."""

    def get_offset(self, device: int, product: int) -> Offset:
        """Return the offset of a device, or what is known about devices of its product."""
        return self.devices.get(device) or self.products.get(product) or self.unknown

    def predict(self, paths: Paths) -> Floats:
        """Return the expected RSSI at each anchor from each point, of a device with offset 0."""
        effect = np.einsum("pak,ak->pa", paths.directions, self.directions)
        expected: Floats = self.gains - self.exponent * paths.loss - self.floor_loss * paths.floors + effect
        return expected

    def predict_direction_variance(self, paths: Paths) -> Floats:
        """Return the variance of the direction effect at each point and anchor, in dB²."""
        variance: Floats = np.einsum(
            "pak,akl,pal->pa", paths.directions, self.direction_covariances, paths.directions, optimize=True
        )
        return variance


class SignalMap(NamedTuple):
    """Expected RSSI, and its variance, at each anchor from each cell: one row per anchor."""

    mean: Floats
    variance: Floats
    """Variance in dB² of a reading around the expected RSSI, without that of the device's offset."""


def build_signal_map(model: SignalModel, grid: Grid, anchors: Anchors) -> SignalMap:
    """Build the map of a site without survey points."""
    mean, variance = np.empty((anchors.size, len(grid))), np.empty((anchors.size, len(grid)))
    step = max(_MAX_PATHS // max(anchors.size, 1), 1)
    for start in range(0, len(grid), step):
        cells = slice(start, start + step)
        paths = trace_paths(grid.xy[cells], grid.floors[cells], anchors)
        mean[:, cells] = model.predict(paths).T
        variance[:, cells] = model.predict_direction_variance(paths).T
    return SignalMap(mean, variance + SHADOWING_DB2)
