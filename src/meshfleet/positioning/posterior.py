"""Posterior: how probable each cell is, given readings of a device at several anchors.

The offset of the device is unknown up to a variance; it is integrated out in closed form, so that a device
with an unusual transmit power is not drawn towards or away from all anchors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshfleet.positioning.signal_model import DRIFT_DB2

if TYPE_CHECKING:
    from meshfleet.positioning.arrays import Bools, Floats, Floats32
    from meshfleet.positioning.signal_model import SignalMap


DEFAULT_SENSITIVITY: Final = -97.0
"""RSSI in dBm below which a receiver hears nothing, unless the readings of a site show another limit."""


class Readings(NamedTuple):
    """Mean RSSI of devices at all anchors: one row per device, one column per anchor."""

    levels: Floats
    """Mean RSSI in dBm; NaN where the anchor did not receive the device."""
    offsets: Floats
    """Expected offset of each device."""
    offset_variances: Floats
    """Variance of each device's offset in dB²; more than 0."""
    is_silent: Bools | None = None
    """Where an anchor was listening and did not receive the device. None if silence says nothing."""
    sensitivity: float | Floats = DEFAULT_SENSITIVITY
    """RSSI in dBm below which silent anchors are: one value, or one for each row."""


_MIN_VARIANCE: Final = 1e-3
_NEGLIGIBLE: Final = 40.0
"""Difference of log-likelihoods from the best cell from which a cell is excluded."""
_MAX_EXPONENT: Final = 80.0
_PROBIT_SCALE: Final = 1.702
"""Scale at which the logistic function is nearest to the normal distribution (within 0.01)."""


class PosteriorSolver:
    """Computes the posteriors of many devices on one signal map with a few matrix products."""

    def __init__(
        self, signal_map: SignalMap, *, is_walkable: Bools | None = None, drift_db2: float = DRIFT_DB2
    ) -> None:
        self._map = signal_map
        self._variance = signal_map.variance + drift_db2
        weight = 1.0 / self._variance
        weighted = weight * signal_map.mean
        constant = weighted * signal_map.mean - np.log(weight)
        # Rows for the products with levels: weights, weighted means, and the constant of the squares.
        self._rows = np.concatenate((weight, weighted, constant)).astype(np.float32)
        self._is_walkable = None if is_walkable is None or is_walkable.all() else is_walkable

    def solve(self, readings: Readings) -> Floats32:
        """Return the probability of each cell: one row per device."""
        return normalize(self.compute_log_likelihoods(readings))

    def compute_log_likelihoods(self, readings: Readings) -> Floats32:
        """Return the logarithm of the likelihood of each cell, up to a constant: one row per device."""
        is_heard = ~np.isnan(readings.levels)
        levels = np.where(is_heard, readings.levels - readings.offsets[:, None], 0.0).astype(np.float32)
        heard = is_heard.astype(np.float32)
        used = is_heard.any(axis=0)
        rows = self._rows
        if not used.all():  # large sites: most anchors are far away
            levels, heard, rows = levels[:, used], heard[:, used], rows[np.tile(used, 3)]
        count = levels.shape[1]
        result: Floats32 = np.concatenate((levels * levels, -2.0 * levels, heard), axis=1) @ rows
        total = np.concatenate((levels, -heard), axis=1) @ rows[: 2 * count]
        weight = heard @ rows[:count]
        precision = (1.0 / np.maximum(readings.offset_variances, _MIN_VARIANCE)).astype(np.float32)[:, None]
        weight += precision
        total *= total
        total /= weight
        result -= total
        weight /= precision
        result += np.log(weight, out=weight)
        result *= np.float32(-0.5)
        if self._is_walkable is not None:
            result[:, ~self._is_walkable] = -np.inf
        if readings.is_silent is not None:
            self._add_silence(result, readings)
        return result

    def _add_silence(self, result: Floats32, readings: Readings) -> None:
        """Add the probability that silent anchors do not receive the device, row by row.

        Cells that the readings exclude anyway are left out, which is most of the work on a large site.
        """
        assert readings.is_silent is not None  # noqa: S101 # the caller has checked
        limits = np.broadcast_to(readings.sensitivity, len(readings.is_silent))
        for row, is_silent in enumerate(readings.is_silent):
            if is_silent.any():
                is_possible = result[row] > result[row].max() - _NEGLIGIBLE
                pairs = np.ix_(is_silent, is_possible)
                spread = np.sqrt(self._variance[pairs] + readings.offset_variances[row]).astype(np.float32)
                excess = (self._map.mean[pairs] - (limits[row] - readings.offsets[row])).astype(np.float32)
                excess *= np.float32(_PROBIT_SCALE)
                excess /= spread
                # Like logaddexp(0, excess), at a fifth of the time; the limit is below the overflow of exp.
                np.exp(np.minimum(excess, _MAX_EXPONENT, out=excess), out=excess)
                result[row, is_possible] -= np.log(1.0 + excess).sum(axis=0)
                result[row, ~is_possible] = -np.inf


def normalize(log_likelihoods: Floats32) -> Floats32:
    """Convert logarithms of likelihoods to probabilities, in place; each row adds up to 1."""
    log_likelihoods -= log_likelihoods.max(axis=1, keepdims=True)
    np.exp(log_likelihoods, out=log_likelihoods)
    log_likelihoods /= log_likelihoods.sum(axis=1, keepdims=True)
    return log_likelihoods
