"""Calibration: fits the signal model of a site to readings of devices.

The places of most devices are unknown. Expectation maximization needs none: it computes how probable each
cell is for each fingerprint with the model so far, then fits the model to all cells, weighted by their
probability, and repeats. Fingerprints with a known place (anchors that receive each other, survey points) are
simply certain.

The fit is a ridge regression in two blocks: exponent, floor loss, gains and offsets of all devices together;
then the direction effect of each anchor. How strong direction effects and differences between devices are at
this site is estimated too, so that a site without them pays nothing for the possibility.
"""

from __future__ import annotations

from math import erfc, pi, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshfleet.positioning.posterior import DEFAULT_SENSITIVITY, PosteriorSolver, Readings
from meshfleet.positioning.signal_model import (
    DIRECTION_VARIANCES,
    Offset,
    Paths,
    SignalMap,
    SignalModel,
    trace_paths,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.positioning.arrays import Bools, Floats, Floats32, Ints
    from meshfleet.positioning.grid import Grid
    from meshfleet.positioning.signal_model import Anchors

MAX_CALIBRATION_CELLS: Final = 2_500
"""Recommended maximum number of cells for a calibration: finer cells do not change the result."""

_ROUNDS: Final = 30
_DIRECTION_ROUNDS_FROM: Final = 10
"""Round from which direction effects are fitted: before, places are not known well enough."""


class Prior(NamedTuple):
    """Normal distribution: what is known about a parameter without readings."""

    mean: float
    deviation: float


_EXPONENT: Final = Prior(2.0, 0.3)
_FLOOR_LOSS: Final = Prior(12.0, 4.0)
_GAIN: Final = Prior(0.0, 2.0)
_POWER: Final = Prior(-50.0, 20.0)
"""Offset of a product: transmit power, less the loss of the first meter."""


class _VariancePrior(NamedTuple):
    """Variance that is expected, and the number of observations that this expectation is worth."""

    variance: float
    weight: float


_NOISE: Final = _VariancePrior(5.5**2, 50.0)
_SAME_PRODUCT: Final = _VariancePrior(1.0**2, 20.0)
"""Differences between the offsets of devices of a product."""
_UNKNOWN_PRODUCT: Final = _VariancePrior(3.0**2, 2.0)
"""Differences between the offsets of devices whose product is unknown: the readings decide."""
_DIRECTION_SCALE: Final = _VariancePrior(0.3, 50.0)
"""Strength of direction effects as a factor of `DIRECTION_VARIANCES`."""

_NEW_PRODUCT_DEVIATION: Final = 5.0
"""Standard deviation of the offset of a product that was not part of the calibration, in dB."""

UNKNOWN_PRODUCT: Final = -1
"""Number of the product of devices that have not reported what they are."""


class Fingerprints(NamedTuple):
    """Readings for a calibration: one row for each device and time."""

    levels: Floats
    """Mean RSSI in dBm by anchor; NaN where the anchor did not receive the device."""
    devices: Sequence[int]
    """Device of each row."""
    products: Sequence[int]
    """Product of the device of each row, or `UNKNOWN_PRODUCT`."""
    places: Sequence[tuple[int, float, float] | None]
    """Floor, x and y of the device of each row; None if unknown."""
    is_silent: Bools | None = None
    """Where an anchor was listening and did not receive the device. None if silence says nothing."""
    sensitivity: float | Floats = DEFAULT_SENSITIVITY
    """RSSI in dBm below which silent anchors are: one value, or one for each row."""


def calibrate(fingerprints: Fingerprints, grid: Grid, anchors: Anchors) -> SignalModel:
    """Fit the signal model of a site. The result without any fingerprint is what is known about all sites."""
    return _Fit(fingerprints, grid, anchors).run()


class _Fit:
    """Expectation maximization on the fingerprints of one site."""

    def __init__(self, fingerprints: Fingerprints, grid: Grid, anchors: Anchors) -> None:
        self._grid = grid
        self._paths = trace_paths(grid.xy, grid.floors, anchors)
        self._levels = np.where(np.isnan(fingerprints.levels), 0.0, fingerprints.levels)
        self._is_heard = ~np.isnan(fingerprints.levels)
        self._is_silent = fingerprints.is_silent
        self._sensitivity = np.broadcast_to(fingerprints.sensitivity, len(self._levels))
        # Pairs of fingerprint and anchor with a reading, or with silence: then the reading is estimated.
        self._is_used = self._is_heard if self._is_silent is None else self._is_heard | self._is_silent
        self._rows, self._columns = np.nonzero(self._is_used)
        self._is_estimated = ~self._is_heard[self._rows, self._columns]
        self._readings = self._levels[self._rows, self._columns]
        self._device_ids, self._device_of_row = _number(fingerprints.devices)
        products = dict(zip(fingerprints.devices, fingerprints.products, strict=True))
        self._product_ids, self._product_of_device = _number([products[each] for each in self._device_ids])
        self._known_rows, self._known_cells, self._known_paths = _find_known(fingerprints, grid, anchors)
        # Start: what is known about all sites, with the mean power that the readings show.
        self._exponent, self._floor_loss = _EXPONENT.mean, _FLOOR_LOSS.mean
        self._gains = np.zeros(anchors.size)
        self._directions = np.zeros((anchors.size, len(DIRECTION_VARIANCES)))
        self._direction_covariances = np.tile(np.diag(DIRECTION_VARIANCES * 0.0), (anchors.size, 1, 1))
        self._direction_scale = _DIRECTION_SCALE.variance
        self._powers = np.full(len(self._product_ids), self._guess_power())
        self._offsets = self._powers[self._product_of_device]
        self._product_variances = np.array([_get_prior(each).variance for each in self._product_ids])
        self._offset_variances = self._product_variances[self._product_of_device]
        self._noise2 = _NOISE.variance

    def run(self) -> SignalModel:
        """Fit the model and return it."""
        if self._is_heard.any():
            for number in range(_ROUNDS):
                probabilities = self._locate()
                self._estimate_silent_readings(probabilities)
                self._fit_parameters(probabilities)
                if number >= _DIRECTION_ROUNDS_FROM:
                    self._fit_directions(probabilities)
                self._fit_noise(probabilities)
        return SignalModel(
            exponent=float(self._exponent),
            floor_loss=float(self._floor_loss),
            gains=self._gains,
            directions=self._directions,
            direction_covariances=self._direction_covariances,
            devices={
                device: Offset(float(mean), float(variance))
                for device, mean, variance in zip(
                    self._device_ids, self._offsets, self._offset_variances, strict=True
                )
            },
            products={
                product: Offset(float(mean), float(variance))
                for product, mean, variance in zip(
                    self._product_ids, self._powers, self._product_variances, strict=True
                )
            },
            unknown=self._describe_unknown_product(),
            noise_db=float(np.sqrt(self._noise2)),
        )

    # Expectation

    def _locate(self) -> Floats32:
        """Return the probability of each cell for each fingerprint, with the model so far."""
        mean = self._predict(self._paths).T
        variance = np.einsum(
            "pak,akl,pal->ap",
            self._paths.directions,
            self._direction_covariances,
            self._paths.directions,
            optimize=True,
        )
        solver = PosteriorSolver(
            SignalMap(mean, variance + self._noise2), is_walkable=self._grid.is_walkable, drift_db2=0.0
        )
        probabilities = solver.solve(
            Readings(
                np.where(self._is_heard, self._levels, np.nan),
                self._offsets[self._device_of_row],
                self._offset_variances[self._device_of_row],
                self._is_silent,
                self._sensitivity,
            )
        )
        probabilities[self._known_rows] = 0.0
        probabilities[self._known_rows, self._known_cells] = 1.0
        return probabilities

    def _predict(self, paths: Paths) -> Floats:
        effect = np.einsum("pak,ak->pa", paths.directions, self._directions)
        predicted: Floats = (
            self._gains - self._exponent * paths.loss - self._floor_loss * paths.floors + effect
        )
        return predicted

    def _average(self, probabilities: Floats32, values: Floats, known: Floats) -> Floats:
        """Return the expected value of a property of paths for each fingerprint and anchor."""
        averages: Floats = probabilities @ values
        averages[self._known_rows] = known
        return averages

    def _estimate_silent_readings(self, probabilities: Floats32) -> None:
        """Replace the readings of silent anchors by what they are expected to be below the sensitivity.

        Without them, only the strongest readings of distant devices would count, and distance would seem to
        cost little.
        """
        if not self._is_estimated.any():
            return
        rows, columns = self._rows[self._is_estimated], self._columns[self._is_estimated]
        predicted = self._average(probabilities, self._predict(self._paths), self._predict(self._known_paths))
        expected = predicted[rows, columns] + self._offsets[self._device_of_row[rows]]
        deviation = float(np.sqrt(self._noise2))
        margin = np.clip((self._sensitivity[rows] - expected) / deviation, -_MAX_MARGIN, _MAX_MARGIN)
        estimates = expected - deviation * _compute_mills_ratio(margin)
        self._readings[self._is_estimated] = estimates
        self._levels[rows, columns] = estimates

    # Maximization

    def _fit_parameters(self, probabilities: Floats32) -> None:
        """Fit exponent, floor loss, gains, and the offsets of products and devices, by ridge regression."""
        rows, columns, devices = self._rows, self._columns, self._device_of_row[self._rows]
        paths, known = self._paths, self._known_paths
        effects = np.einsum("pak,ak->pa", paths.directions, self._directions)
        known_effects = np.einsum("pak,ak->pa", known.directions, self._directions)

        def average(values: Floats, at_known: Floats) -> Floats:
            return self._average(probabilities, values, at_known)[rows, columns]

        loss, floors = average(paths.loss, known.loss), average(paths.floors, known.floors)
        system = _NormalEquations(len(self._gains), len(self._product_ids), len(self._device_ids))
        system.add_slopes(
            loss2=average(paths.loss**2, known.loss**2),
            floors2=average(paths.floors**2, known.floors**2),
            cross=average(paths.loss * paths.floors, known.loss * known.floors),
        )
        system.add_groups(columns, devices, loss, floors)
        targets = self._readings - average(effects, known_effects)
        system.add_targets(
            targets,
            columns,
            devices,
            loss_products=self._readings * loss - average(effects * paths.loss, known_effects * known.loss),
            floor_products=self._readings * floors
            - average(effects * paths.floors, known_effects * known.floors),
        )
        system.scale(1.0 / self._noise2)
        system.add_priors(self._product_of_device, self._product_variances)
        self._offset_variances = system.compute_offset_variances()
        solution = system.solve()
        self._exponent, self._floor_loss = solution[0], solution[1]
        self._gains = solution[system.gains]
        self._powers, self._offsets = solution[system.products], solution[system.devices]
        self._fit_product_variances()

    def _fit_product_variances(self) -> None:
        """Estimate how much the devices of each product differ."""
        deviations = self._offsets - self._powers[self._product_of_device]
        squares = deviations**2 + self._offset_variances
        for index, product in enumerate(self._product_ids):
            mine, prior = squares[self._product_of_device == index], _get_prior(product)
            self._product_variances[index] = (prior.weight * prior.variance + mine.sum()) / (
                prior.weight + len(mine)
            )

    def _fit_directions(self, probabilities: Floats32) -> None:
        """Fit the direction effect of each anchor by ridge regression, then the strength of all of them."""
        weights = probabilities.copy()
        weights[self._known_rows] = 0.0
        base = self._gains - self._exponent * self._paths.loss - self._floor_loss * self._paths.floors
        known_base = (
            self._gains
            - self._exponent * self._known_paths.loss
            - self._floor_loss * self._known_paths.floors
        )
        offsets = self._offsets[self._device_of_row]
        precision = np.diag(1.0 / (DIRECTION_VARIANCES * self._direction_scale))
        strength = 0.0
        for anchor in range(len(self._gains)):
            heard = self._is_used[:, anchor]
            targets = self._levels[heard, anchor] - offsets[heard]
            basis, mass = self._paths.directions[:, anchor], weights[heard].sum(axis=0)
            moments = (basis * mass[:, None]).T @ basis
            products = basis.T @ (targets @ weights[heard] - base[:, anchor] * mass)
            is_known = heard[self._known_rows]
            if is_known.any():
                known_basis = self._known_paths.directions[is_known, anchor]
                residuals = (
                    self._levels[self._known_rows[is_known], anchor]
                    - offsets[self._known_rows[is_known]]
                    - known_base[is_known, anchor]
                )
                moments += known_basis.T @ known_basis
                products += known_basis.T @ residuals
            covariance = np.linalg.inv(moments / self._noise2 + precision)
            self._directions[anchor] = covariance @ products / self._noise2
            self._direction_covariances[anchor] = covariance
            strength += float(
                ((self._directions[anchor] ** 2 + np.diag(covariance)) / DIRECTION_VARIANCES).sum()
            )
        prior, count = _DIRECTION_SCALE, self._directions.size
        self._direction_scale = (prior.weight * prior.variance + strength) / (prior.weight + count)

    def _fit_noise(self, probabilities: Floats32) -> None:
        """Estimate the variance of the readings around the model."""
        predicted, at_known = self._predict(self._paths), self._predict(self._known_paths)
        mean = self._average(probabilities, predicted, at_known)[self._rows, self._columns]
        square = self._average(probabilities, predicted**2, at_known**2)[self._rows, self._columns]
        targets = self._readings - self._offsets[self._device_of_row[self._rows]]
        errors2 = (targets**2 - 2.0 * targets * mean + square)[~self._is_estimated]
        self._noise2 = (_NOISE.weight * _NOISE.variance + float(errors2.sum())) / (
            _NOISE.weight + len(errors2)
        )

    # Parts of the result

    def _guess_power(self) -> float:
        """Return the offset with which the readings fit to cells at a typical distance."""
        if not self._is_heard.any():
            return _POWER.mean
        return float(
            self._readings[~self._is_estimated].mean() + _EXPONENT.mean * np.median(self._paths.loss)
        )

    def _describe_unknown_product(self) -> Offset:
        """Return the offset of a device whose product was not part of the calibration."""
        if not self._is_heard.any():
            return Offset(_POWER.mean, _POWER.deviation**2)
        counts = np.bincount(self._product_of_device)
        mean = float((self._powers * counts).sum() / counts.sum())
        return Offset(mean, _NEW_PRODUCT_DEVIATION**2)


class _NormalEquations:
    """Normal equations of the ridge regression of `_fit_parameters`.

    Unknowns in this order: exponent, floor loss, gains of anchors, powers of products, offsets of devices.
    """

    def __init__(self, anchors: int, products: int, devices: int) -> None:
        self.gains = slice(2, 2 + anchors)
        self.products = slice(2 + anchors, 2 + anchors + products)
        self.devices = slice(2 + anchors + products, 2 + anchors + products + devices)
        size = self.devices.stop
        self._matrix, self._right = np.zeros((size, size)), np.zeros(size)
        self._anchor_count, self._device_count = anchors, devices

    def add_slopes(self, *, loss2: Floats, floors2: Floats, cross: Floats) -> None:
        """Add the squares of the slopes: those of exponent and floor loss are negative path properties."""
        self._matrix[0, 0], self._matrix[1, 1] = loss2.sum(), floors2.sum()
        self._matrix[0, 1] = self._matrix[1, 0] = cross.sum()

    def add_groups(self, anchors: Ints, devices: Ints, loss: Floats, floors: Floats) -> None:
        """Add the products of slopes, gains and offsets, for pairs of anchor and device with a reading."""
        matrix = self._matrix
        for group, members, count in (
            (self.gains, anchors, self._anchor_count),
            (self.devices, devices, self._device_count),
        ):
            for index, slopes in enumerate((loss, floors)):
                sums = -np.bincount(members, slopes, count)
                matrix[index, group] = sums
                matrix[group, index] = sums
            diagonal = np.arange(group.start, group.stop)
            matrix[diagonal, diagonal] = np.bincount(members, minlength=count)
        both = np.zeros((self._anchor_count, self._device_count))
        np.add.at(both, (anchors, devices), 1.0)
        matrix[self.gains, self.devices] = both
        matrix[self.devices, self.gains] = both.T

    def add_targets(
        self, targets: Floats, anchors: Ints, devices: Ints, *, loss_products: Floats, floor_products: Floats
    ) -> None:
        """Add the products of the targets with slopes, gains and offsets."""
        self._right[0], self._right[1] = -loss_products.sum(), -floor_products.sum()
        self._right[self.gains] = np.bincount(anchors, targets, self._anchor_count)
        self._right[self.devices] = np.bincount(devices, targets, self._device_count)

    def scale(self, weight: float) -> None:
        """Multiply everything so far by the weight of a reading."""
        self._matrix *= weight
        self._right *= weight

    def add_priors(self, product_of_device: Ints, product_variances: Floats) -> None:
        """Add what is known without readings; offsets of devices are near the power of their product."""
        matrix, right = self._matrix, self._right
        first_product = self.products.start
        slopes = (slice(0, 1), _EXPONENT), (slice(1, 2), _FLOOR_LOSS)
        for group, prior in (*slopes, (self.gains, _GAIN), (self.products, _POWER)):
            indexes = np.arange(group.start, group.stop)
            matrix[indexes, indexes] += 1.0 / prior.deviation**2
            right[indexes] += prior.mean / prior.deviation**2
        precisions = 1.0 / product_variances[product_of_device]
        devices = np.arange(self.devices.start, self.devices.stop)
        products = first_product + product_of_device
        matrix[devices, devices] += precisions
        np.add.at(matrix, (products, products), precisions)
        matrix[devices, products] -= precisions
        matrix[products, devices] -= precisions

    def compute_offset_variances(self) -> Floats:
        """Return how uncertain the offset of each device is if all other parameters are right.

        What all offsets have in common cannot be told from the exponent; it moves all cells alike.
        """
        precisions: Floats = np.diag(self._matrix)[self.devices]
        return 1.0 / precisions

    def solve(self) -> Floats:
        """Return the unknowns."""
        return np.linalg.solve(self._matrix, self._right).astype(np.float64)


_MAX_MARGIN: Final = 6.0


def _compute_mills_ratio(margin: Floats) -> Floats:
    """Return the mean of a normal distribution below a limit, in deviations below its center.

    `margin` is the limit, in deviations above the center.
    """
    density = np.exp(-0.5 * margin**2) / sqrt(2.0 * pi)
    below = np.array([0.5 * erfc(-each / sqrt(2.0)) for each in margin])
    ratio: Floats = density / np.maximum(below, 1e-12)
    return ratio


def _get_prior(product: int) -> _VariancePrior:
    """Return how much devices of a product are expected to differ."""
    return _UNKNOWN_PRODUCT if product == UNKNOWN_PRODUCT else _SAME_PRODUCT


def _number(items: Sequence[int]) -> tuple[list[int], Ints]:
    """Return the different items, and for each item its index among them."""
    numbers: dict[int, int] = {}
    indexes = [numbers.setdefault(each, len(numbers)) for each in items]
    return list(numbers), np.array(indexes, dtype=np.int64)


def _find_known(fingerprints: Fingerprints, grid: Grid, anchors: Anchors) -> tuple[Ints, Ints, Paths]:
    """Return the rows with a known place on a floor of the site, their cells and their exact paths."""
    known = [
        (row, cell, place)
        for row, place in enumerate(fingerprints.places)
        if place is not None and (cell := grid.find_cell(*place)) is not None
    ]
    rows = np.array([row for row, _, _ in known], dtype=np.int64)
    cells = np.array([cell for _, cell, _ in known], dtype=np.int64)
    xy = np.array([(x, y) for _, _, (_, x, y) in known], dtype=np.float64).reshape(-1, 2)
    floors = np.array([floor for _, _, (floor, _, _) in known], dtype=np.int64)
    return rows, cells, trace_paths(xy, floors, anchors)
