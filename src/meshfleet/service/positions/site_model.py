"""Calibrated model of a site in memory: computes the position of a device from the readings of anchors."""

from __future__ import annotations

from math import hypot, sqrt
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from meshfleet.positioning.anchor_check import find_misplaced_anchors
from meshfleet.positioning.calibration import (
    MAX_CALIBRATION_CELLS,
    UNKNOWN_PRODUCT,
    Fingerprints,
    calibrate,
)
from meshfleet.positioning.coverage import CoverageMap, Receivers, predict_coverage
from meshfleet.positioning.estimate import estimate_places
from meshfleet.positioning.grid import MAX_CELLS, FloorArea, Grid
from meshfleet.positioning.posterior import DEFAULT_SENSITIVITY, PosteriorSolver, Readings
from meshfleet.positioning.signal_model import Anchors
from meshfleet.positioning.survey_map import SURVEY_NOISE_DB2, KnownPoints, build_survey_map
from meshfleet.service.positions.current_positions import MIN_ANCHORS
from meshfleet.service.positions.model_anchors import (
    NEAR_ANCHORS,
    find_near_anchors,
    order_by_neighborhood,
    select_anchors,
)
from meshfleet.service.positions.reading_store import MAX_RSSI, MIN_RSSI
from meshfleet.service.positions.still_levels import average_since_moved

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from meshfleet.positioning.arrays import Bools, Floats, Floats32
    from meshfleet.positioning.estimate import Estimate
    from meshfleet.positioning.signal_model import SignalModel
    from meshfleet.service.positions.reading_store import AnchorLevel, DeviceMinute
    from meshfleet.service.sites.geometry import SiteGeometry

_OFFSET_DRIFT_DB2: Final = 1.0
"""Variance by which the offset of a device differs from the calibration: battery, orientation."""

_ANCHOR_NOISE_DB2: Final = 9.0
"""Variance of what anchors read of each other around what a device at that place would cause."""

_MAX_CAPPED_READINGS: Final = 8
"""If a device was ever received by more anchors, gateways do not report only the few best ones."""
_CAP: Final = 6
"""Gateways may report only this many anchors for a device: the others received it less well."""

_MIN_SILENCE_SECONDS: Final = 30.0
"""Minimum seconds of readings in which silence means something: single packets get lost."""

_SENSITIVITY_SHARE: Final = 0.01
"""Share of the readings that may be below the assumed sensitivity."""
_MIN_SENSITIVITY_READINGS: Final = 100
_MAX_SENSITIVITY: Final = -70.0
"""Highest assumed sensitivity in dBm: a site with only strong readings says nothing about weak ones."""


_MAX_MAP_VALUES: Final = 4_000_000
"""Maximum number of cells times anchors: 32 MB for each array of a map. More anchors get larger cells."""
_BATCH: Final = 64
"""Devices that are located at once."""


class SurveyedPlace(NamedTuple):
    """Place of a device at the time of known readings."""

    device: int
    floor: int
    x: float
    y: float
    levels: Mapping[int, AnchorLevel]


class DeviceLevels(NamedTuple):
    """Readings of a device at all anchors that received it."""

    device: int
    levels: Mapping[int, AnchorLevel]


class ReadingFit(NamedTuple):
    """How a reading fits to an estimated position."""

    anchor: int
    level: AnchorLevel
    distance: float
    residual: float


class LocatedDevice(NamedTuple):
    """Estimated position of a device, with the readings that it was computed from."""

    estimate: Estimate
    fits: Sequence[ReadingFit]

    @property
    def misfit_db(self) -> float:
        """Root mean square of the residuals in dB."""
        return sqrt(sum(each.residual**2 for each in self.fits) / len(self.fits))


class SiteModel:
    """Model of a site at one moment; it does not change. Build and use it in worker threads."""

    def __init__(
        self,
        geometry: SiteGeometry,
        minutes: Sequence[DeviceMinute],
        survey: Sequence[SurveyedPlace],
        products: Mapping[int, int],
    ) -> None:
        """Calibrate a site with minutes of devices and with survey points.

        `products` has the products of devices that have reported what they are.
        """
        self._places = {each.device: (each.floor, each.x, each.y) for each in geometry.anchors}
        received = [*(each.levels for each in minutes), *(each.levels for each in survey)]
        selected = select_anchors(geometry.anchors, received)
        self.geometry = geometry = geometry._replace(anchors=selected)
        """Floors of the site, and the anchors that the model uses."""
        self._areas = areas = [
            FloorArea(each.floor, *each.box, walkable=each.walkable or ()) for each in geometry.floors
        ]
        anchor_count = max(len(geometry.anchors), 1)
        self.grid = Grid(areas, max_cells=min(MAX_CELLS, _MAX_MAP_VALUES // anchor_count))
        self._columns = {each.device: column for column, each in enumerate(geometry.anchors)}
        self._anchors = Anchors(
            np.array([each.floor for each in geometry.anchors], dtype=np.int64),
            np.array([(each.x, each.y) for each in geometry.anchors], dtype=np.float64).reshape(-1, 2),
        )
        self._order = order_by_neighborhood(self._anchors)
        self._near = find_near_anchors(self._anchors)
        self._products = products
        minutes = [each for each in minutes if self._count_anchors(each.levels)]
        survey = [each for each in survey if self._count_anchors(each.levels)]
        own_levels = self._build_levels([each.levels for each in minutes])
        levels = np.concatenate((own_levels, self._build_levels([each.levels for each in survey])))
        heard = (~np.isnan(own_levels)).sum(axis=1)
        self._is_capped = not len(heard) or int(heard.max()) <= _MAX_CAPPED_READINGS
        self._is_active: Bools = np.any(~np.isnan(levels), axis=0)
        self._sensitivity = _estimate_sensitivity(own_levels)
        devices = [*(each.device for each in minutes), *(each.device for each in survey)]
        self.model: SignalModel = calibrate(
            Fingerprints(
                levels,
                devices,
                [products.get(each, UNKNOWN_PRODUCT) for each in devices],
                [
                    *(self._places.get(each.device) for each in minutes),
                    *((each.floor, each.x, each.y) for each in survey),
                ],
                self._find_silent(levels, devices),
                self._find_limits(levels),
            ),
            Grid(areas, max_cells=MAX_CALIBRATION_CELLS),
            self._anchors,
        )
        pairs = [
            SurveyedPlace(each.device, *self._places[each.device], each.levels)
            for each in minutes
            if each.device in self._places
        ]
        self.level: Literal[0, 1, 2] = 2 if survey else 1 if pairs else 0
        self._signal_map = build_survey_map(
            self.model, self.grid, self._anchors, self._build_points(survey, _average_pairs(pairs))
        )
        self._solver = PosteriorSolver(self._signal_map, is_walkable=self.grid.is_walkable)
        self._minutes = minutes
        self._suspicious: Sequence[tuple[int, float]] | None = None

    def locate(self, device: int, levels: Mapping[int, AnchorLevel], *, seconds: float) -> LocatedDevice:
        """Estimate the position of a device from readings of some seconds.

        `levels` must have a reading of an anchor of this site.
        """
        readings = self._build_readings([device], [levels], seconds=seconds)
        return self.explain(device, levels, self._solver.solve(readings)[0])

    def locate_still(
        self, device: int, steps: Sequence[Mapping[int, AnchorLevel]], *, seconds: float
    ) -> LocatedDevice:
        """Estimate the position of a device from the last steps between which it has not moved.

        The last step must have a reading of an anchor of this site.
        """
        return self.locate(device, average_since_moved(steps), seconds=seconds)

    def locate_all_still(
        self, steps: Mapping[int, Sequence[Mapping[int, AnchorLevel]]], *, seconds: float
    ) -> list[tuple[int, LocatedDevice]]:
        """Estimate the positions of many devices, each from its last steps between which it has not moved."""
        levels = [DeviceLevels(device, average_since_moved(each)) for device, each in steps.items()]
        return [
            (each.device, self.explain(each.device, each.levels, probabilities))
            for each, probabilities in self.locate_many(levels, seconds=seconds)
        ]

    def explain(
        self, device: int, levels: Mapping[int, AnchorLevel], probabilities: Floats32
    ) -> LocatedDevice:
        """Return the position that the probabilities of all cells give, and how readings fit to it."""
        readings = self._build_readings([device], [levels], seconds=0.0)
        (estimate,) = estimate_places(probabilities[None], self.grid)
        return LocatedDevice(estimate, self._compare_readings(readings, levels, probabilities, estimate))

    def locate_many(
        self, readings: Sequence[DeviceLevels], *, seconds: float
    ) -> Iterator[tuple[DeviceLevels, Floats32]]:
        """Compute the probabilities of all cells for each of many devices, in any order.

        Devices with too few readings are left out. Devices near each other share a matrix product: it needs
        only the anchors that received one of them.
        """
        known = [DeviceLevels(each.device, self.select_known(each.levels)) for each in readings]
        usable = [each for each in known if len(each.levels) >= MIN_ANCHORS]
        ordered = sorted(usable, key=lambda each: self._order[self._find_strongest(each.levels)])
        for start in range(0, len(ordered), _BATCH):
            batch = ordered[start : start + _BATCH]
            rows = self._solver.solve(
                self._build_readings(
                    [each.device for each in batch], [each.levels for each in batch], seconds=seconds
                )
            )
            yield from zip(batch, rows, strict=True)

    def compute_log_likelihoods(
        self, device: int, steps: Sequence[Mapping[int, AnchorLevel]], *, seconds: float
    ) -> Floats32:
        """Return the logarithms of the likelihoods of all cells for each step of a device.

        Each step has the readings of some seconds.
        """
        return self._solver.compute_log_likelihoods(
            self._build_readings([device] * len(steps), steps, seconds=seconds)
        )

    @property
    def suspicious_anchors(self) -> Sequence[tuple[int, float]] | None:
        """Anchors that do not seem to be at their places; None before the first `find_suspicious_anchors`."""
        return self._suspicious

    def find_suspicious_anchors(self) -> Sequence[tuple[int, float]]:
        """Return the anchors that do not seem to be at their places, with the difference in dB.

        The first call may take seconds on a large site.
        """
        if self._suspicious is None:
            self._suspicious = self._check_anchors()
        return self._suspicious

    def _check_anchors(self) -> Sequence[tuple[int, float]]:
        others = [each for each in self._minutes if each.device not in self._places]
        if not others:
            return ()
        readings = self._build_readings(
            [each.device for each in others], [each.levels for each in others], seconds=0.0
        )
        return [
            (self.geometry.anchors[each.anchor].device, each.difference_db)
            for each in find_misplaced_anchors(self.model, self._areas, self._anchors, readings)
        ]

    def select_known(self, levels: Mapping[int, AnchorLevel]) -> dict[int, AnchorLevel]:
        """Return the levels of the anchors of this model. Others may have got a place since it was built."""
        return {anchor: level for anchor, level in levels.items() if anchor in self._columns}

    def _find_strongest(self, levels: Mapping[int, AnchorLevel]) -> int:
        """Return the column of the anchor with the strongest reading."""
        known = [
            (level.rssi, self._columns[anchor]) for anchor, level in levels.items() if anchor in self._columns
        ]
        return max(known)[1]

    @property
    def sensitivity(self) -> float:
        """RSSI in dBm below which the anchors of the site receive nothing."""
        return self._sensitivity

    def predict_coverage(self, floor: int, *, min_level: float) -> CoverageMap | None:
        """Predict how anchors receive a device of usual transmit power on a floor.

        Readings below `min_level` do not count. Return None if the site does not have the floor.
        """
        raster = next((each for each in self.grid.rasters if each.floor == floor), None)
        if raster is None:
            return None
        # Before the first reading, all anchors count as switched on.
        is_listening = self._is_active if self._is_active.any() else ~self._is_active
        return predict_coverage(
            self._solver,
            self._signal_map,
            self.grid,
            raster,
            offset=self.model.unknown,
            receivers=Receivers(is_listening, min_level, _CAP if self._is_capped else None),
            min_anchors=MIN_ANCHORS,
        )

    def _count_anchors(self, levels: Mapping[int, AnchorLevel]) -> int:
        return sum(anchor in self._columns for anchor in levels)

    def _build_levels(self, rows: Sequence[Mapping[int, AnchorLevel]]) -> Floats:
        """Return the mean RSSI of each row by anchor; NaN without readings."""
        levels = np.full((len(rows), len(self._columns)), np.nan)
        for row, by_anchor in enumerate(rows):
            for anchor, level in by_anchor.items():
                column = self._columns.get(anchor)
                if column is not None and MIN_RSSI <= level.rssi <= MAX_RSSI:
                    levels[row, column] = level.rssi
        return levels

    def _find_silent(self, levels: Floats, devices: Sequence[int]) -> Bools:
        """Return where the silence of an anchor means that it does not receive the device.

        An anchor that has received nothing may be switched off. What anchors report of each other says
        nothing about anchors that they do not report. Anchors far from the one that receives the device best
        are always silent.
        """
        is_heard = ~np.isnan(levels)
        is_silent: Bools = ~is_heard & self._is_active
        if len(self._columns) > NEAR_ANCHORS:
            is_silent &= self._near[np.where(is_heard, levels, -np.inf).argmax(axis=1)]
        is_silent[[row for row, device in enumerate(devices) if device in self._places]] = False
        return is_silent

    def _find_limits(self, levels: Floats) -> Floats:
        """Return the RSSI below which the silent anchors of each row are.

        If gateways report only the best few anchors of a device, the others received it too, but weaker than
        those. Without this, a calibration would see nothing but strong readings, and conclude that distance
        costs nothing.
        """
        limits = np.full(len(levels), self._sensitivity)
        if self._is_capped:
            is_heard = ~np.isnan(levels)
            is_full = is_heard.sum(axis=1) >= _CAP
            limits[is_full] = np.where(is_heard[is_full], levels[is_full], np.inf).min(axis=1)
        return limits

    def _build_readings(
        self, devices: Sequence[int], rows: Sequence[Mapping[int, AnchorLevel]], *, seconds: float
    ) -> Readings:
        offsets = [self.model.get_offset(each, self._products.get(each, UNKNOWN_PRODUCT)) for each in devices]
        levels = self._build_levels(rows)
        return Readings(
            levels,
            np.array([each.mean for each in offsets]),
            np.array([each.variance + _OFFSET_DRIFT_DB2 for each in offsets]),
            self._find_silent(levels, devices) if seconds >= _MIN_SILENCE_SECONDS else None,
            self._find_limits(levels),
        )

    def _build_points(self, survey: Sequence[SurveyedPlace], pairs: Sequence[SurveyedPlace]) -> KnownPoints:
        known = [*survey, *pairs]
        offsets = [
            self.model.get_offset(each.device, self._products.get(each.device, UNKNOWN_PRODUCT)).mean
            for each in known
        ]
        return KnownPoints(
            np.array([each.floor for each in known], dtype=np.int64),
            np.array([(each.x, each.y) for each in known], dtype=np.float64).reshape(-1, 2),
            self._build_levels([each.levels for each in known]),
            np.array(offsets, dtype=np.float64),
            np.array([SURVEY_NOISE_DB2] * len(survey) + [_ANCHOR_NOISE_DB2] * len(pairs)),
        )

    def _compare_readings(
        self,
        readings: Readings,
        levels: Mapping[int, AnchorLevel],
        probabilities: Floats32,
        estimate: Estimate,
    ) -> list[ReadingFit]:
        """Return how each reading fits to the estimate, the strongest reading first.

        The expected RSSI is averaged over the cells, weighted by their probability. The offset of the device
        is chosen so that the readings fit on average.
        """
        used = [
            (anchor, level, self._columns[anchor])
            for anchor, level in levels.items()
            if anchor in self._columns
        ]
        cells = np.flatnonzero(probabilities > _MIN_PROBABILITY)  # few of a large site
        columns = np.array([column for _, _, column in used])
        expected = self._signal_map.mean[np.ix_(columns, cells)] @ (
            probabilities[cells] / probabilities[cells].sum()
        )
        differences = np.array([level.rssi for _, level, _ in used]) - expected
        offset = (differences.sum() + readings.offsets[0] / readings.offset_variances[0] * _READING_DB2) / (
            len(used) + _READING_DB2 / readings.offset_variances[0]
        )
        fits = []
        for (anchor, level, column), difference in zip(used, differences, strict=True):
            place = self.geometry.anchors[column]
            distance = hypot(estimate.x - place.x, estimate.y - place.y)
            fits.append(ReadingFit(anchor, level, distance, float(difference - offset)))
        return sorted(fits, key=lambda each: -each.level.rssi)


_MIN_PROBABILITY: Final = 1e-6
_READING_DB2: Final = 16.0
"""Typical variance of a reading around the model in dB²."""


def _estimate_sensitivity(levels: Floats) -> float:
    """Return the RSSI below which the anchors of a site receive nothing."""
    readings = levels[~np.isnan(levels)]
    if len(readings) < _MIN_SENSITIVITY_READINGS:
        return DEFAULT_SENSITIVITY
    return min(float(np.quantile(readings, _SENSITIVITY_SHARE)), _MAX_SENSITIVITY)


def _average_pairs(pairs: Sequence[SurveyedPlace]) -> list[SurveyedPlace]:
    """Return one place for each anchor that other anchors receive: the minute with the most readings."""
    best: dict[int, SurveyedPlace] = {}
    for each in pairs:
        if each.device not in best or len(each.levels) > len(best[each.device].levels):
            best[each.device] = each
    return list(best.values())
