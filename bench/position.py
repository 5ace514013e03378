"""Positions from RSSI: errors in a real room and on emulated sites, honesty of the radius, and speed.

The constants of `meshfleet.positioning` were chosen with the measurements of this room, so its rows show what
the method can do. Leave-one-out rows locate a place with a map that does not know that place.
"""

from __future__ import annotations

import time
from itertools import pairwise
from math import hypot
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bench.position_anchors import measure_misplaced
from bench.position_room import AREA, WINDOW_SECONDS, Room, Windows, load_room
from bench.position_sites import DEPTH, FADING_DB2, READINGS_PER_MINUTE, WIDTH, EmulatedSite, SiteKind
from meshfleet.positioning.calibration import (
    MAX_CALIBRATION_CELLS,
    UNKNOWN_PRODUCT,
    Fingerprints,
    calibrate,
)
from meshfleet.positioning.estimate import estimate_places
from meshfleet.positioning.grid import Grid
from meshfleet.positioning.motion import MotionFilter, StillAverage, average_if_still
from meshfleet.positioning.posterior import PosteriorSolver, Readings, normalize
from meshfleet.positioning.signal_model import SignalMap
from meshfleet.positioning.survey_map import SURVEY_NOISE_DB2, KnownPoints, build_survey_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.positioning.arrays import Floats, Floats32, Ints
    from meshfleet.positioning.estimate import Estimate
    from meshfleet.positioning.signal_model import Anchors, SignalModel

_BEACON: Final = 1
"""Number of the beacon: the same device is at all places."""
_FIRST_DEVICE: Final = 100
_PRODUCT, _ANCHOR_PRODUCT = 1, 2
_OFFSET_DRIFT_DB2: Final = 1.0
_FOLDS: Final = 9
_DRAWS: Final = 12
_SURVEY_POINTS: Final = 20
_SITES: Final = 6
_MIN_SEPARATION: Final = 0.7
_SITE_KINDS: Final = tuple(
    SiteKind(anchors, has_walls, gain_db)
    for gain_db in (0.0, 3.0)
    for has_walls in (False, True)
    for anchors in (8, 12)
)
_STILL_MINUTES: Final = 15
_ROOM_READINGS: Final = 60
"""Approximate number of readings of an anchor in a minute in the room."""
_BUILDING: Final = SiteKind(8, has_walls=True, gain_db=3.0, floors=3)


class CalibratedSite(NamedTuple):
    """Cells of a site, with its calibrated model and map."""

    grid: Grid
    model: SignalModel
    signal_map: SignalMap


class Located(NamedTuple):
    """Estimated places with their radii, and the true places."""

    places: Floats
    radii: Floats
    truths: Floats

    @property
    def errors(self) -> Floats:
        """Distance between estimate and truth in meters."""
        distances: Floats = np.hypot(*(self.places - self.truths).T)
        return distances


def run(*, quick: bool) -> dict[str, Any]:
    """Measure positions in the room and on emulated sites."""
    room = load_room()
    return {
        "room": _measure_room(room, quick=quick),
        "emulated": _measure_sites(quick=quick),
        "floors": _measure_floors(quick=quick),
        "a still device, from one minute to the next": _measure_stillness(room, quick=quick),
        "anchors at wrong places": measure_misplaced(room, quick=quick),
        "speed": _measure_speed(room),
    }


# --- The real room ---


def _measure_room(room: Room, *, quick: bool) -> dict[str, Any]:
    grid = Grid([AREA])
    tracks, motion = room.tracks, MotionFilter(grid)
    truths = room.points[room.point_of_minute]
    track_truths = np.concatenate([each.places for each in tracks])
    track_levels = np.concatenate([each.levels for each in tracks])
    site = _build_map(room, grid, [])
    rows = {
        "static, nearest anchor": _describe(_locate_at_nearest(room.anchors, room.minutes, truths)),
        "static, weighted centroid": _describe(_locate_at_centroid(room.anchors, room.minutes, truths)),
        "static, level 0": _describe(_locate(site, room.minutes, truths)),
        "static, 20 points": _describe(_merge(_locate_with_draws(room, grid, 2 if quick else _DRAWS))),
        "static, 81 points, leave one out": _describe(
            _merge(_locate_left_out(room, grid, _FOLDS if quick else len(room.points)))
        ),
        "tracks, nearest anchor": _describe(_locate_at_nearest(room.anchors, track_levels, track_truths)),
        "tracks, weighted centroid": _describe(_locate_at_centroid(room.anchors, track_levels, track_truths)),
        "tracks, level 0": _describe(_locate(site, track_levels, track_truths)),
        "tracks, level 0, filtered": _describe(_merge([_follow(site, motion, each) for each in tracks])),
    }
    site = _build_map(room, grid, list(range(len(room.points))))
    rows["tracks, 81 points"] = _describe(_locate(site, track_levels, track_truths))
    rows["tracks, 81 points, filtered"] = _describe(_merge([_follow(site, motion, each) for each in tracks]))
    rows["tracks, 81 points, smoothed"] = _describe(
        _merge([_follow(site, motion, each, looks_ahead=True) for each in tracks])
    )
    return rows


def _build_map(room: Room, grid: Grid, surveyed: Sequence[int]) -> CalibratedSite:
    """Calibrate with all fingerprints, of which those in `surveyed` have a known place; build the map."""
    places = [(0, float(x), float(y)) if i in surveyed else None for i, (x, y) in enumerate(room.points)]
    count = len(room.points)
    fingerprints = Fingerprints(room.fingerprints, [_BEACON] * count, [UNKNOWN_PRODUCT] * count, places)
    model = calibrate(fingerprints, Grid([AREA], max_cells=MAX_CALIBRATION_CELLS), room.anchors)
    chosen = np.array(surveyed, dtype=np.int64)
    floors = np.zeros(len(chosen), dtype=np.int64)
    points = _build_points(model, floors, room.points[chosen], room.fingerprints[chosen])
    return CalibratedSite(grid, model, build_survey_map(model, grid, room.anchors, points))


def _build_points(model: SignalModel, floors: Ints, xy: Floats, levels: Floats) -> KnownPoints:
    """Return survey points at which the beacon was read."""
    offset = model.get_offset(_BEACON, UNKNOWN_PRODUCT).mean
    return KnownPoints(floors, xy, levels, np.full(len(xy), offset), np.full(len(xy), SURVEY_NOISE_DB2))


def _locate_left_out(room: Room, grid: Grid, folds: int) -> list[Located]:
    """Locate every point with a map of the others."""
    located = []
    numbers = np.arange(len(room.points))
    for fold in range(folds):
        known = [int(each) for each in numbers[numbers % folds != fold]]
        site = _build_map(room, grid, known)
        is_left_out = room.point_of_minute % folds == fold
        located.append(
            _locate(
                site,
                room.minutes[is_left_out],
                room.points[room.point_of_minute[is_left_out]],
            )
        )
    return located


def _locate_with_draws(room: Room, grid: Grid, draws: int) -> list[Located]:
    """Locate all points that were not surveyed, with different choices of points spread over the room."""
    located = []
    random = np.random.default_rng(1)
    for _ in range(draws):
        chosen = [int(random.integers(len(room.points)))]
        while len(chosen) < _SURVEY_POINTS:
            offsets = room.points[:, None] - room.points[chosen][None]
            distances = np.hypot(offsets[..., 0], offsets[..., 1]).min(axis=1)
            chosen.append(int((distances * random.uniform(_MIN_SEPARATION, 1.0, len(distances))).argmax()))
        site = _build_map(room, grid, chosen)
        is_other = ~np.isin(room.point_of_minute, chosen)
        located.append(_locate(site, room.minutes[is_other], room.points[room.point_of_minute[is_other]]))
    return located


def _build_readings(model: SignalModel, levels: Floats) -> Readings:
    offset = model.get_offset(_BEACON, UNKNOWN_PRODUCT)
    count = len(levels)
    return Readings(levels, np.full(count, offset.mean), np.full(count, offset.variance + _OFFSET_DRIFT_DB2))


def _locate(site: CalibratedSite, levels: Floats, truths: Floats) -> Located:
    readings = _build_readings(site.model, levels)
    return _estimate(PosteriorSolver(site.signal_map).solve(readings), site.grid, truths)


def _follow(
    site: CalibratedSite, motion: MotionFilter, track: Windows, *, looks_ahead: bool = False
) -> Located:
    """Locate a moving device with the readings before each moment, and with those after it on request."""
    logs = PosteriorSolver(site.signal_map).compute_log_likelihoods(_build_readings(site.model, track.levels))
    if looks_ahead:
        steps = [WINDOW_SECONDS] * (len(logs) - 1)
        return _estimate(motion.smooth(logs, steps), site.grid, track.places)
    rows = []
    state = normalize(logs[:1].copy())
    for row in range(len(logs)):
        if row:
            state = motion.update(motion.advance(state, WINDOW_SECONDS), logs[row : row + 1])
        rows.append(state[0])
    return _estimate(np.array(rows), site.grid, track.places)


def _estimate(probabilities: Floats32, grid: Grid, truths: Floats) -> Located:
    estimates = estimate_places(probabilities, grid)
    return Located(
        np.array([(each.x, each.y) for each in estimates]),
        np.array([each.radius for each in estimates]),
        truths,
    )


def _locate_at_nearest(anchors: Anchors, levels: Floats, truths: Floats) -> Located:
    places = anchors.xy[np.nanargmax(levels, axis=1)]
    return Located(places, np.full(len(places), np.nan), truths)


def _locate_at_centroid(anchors: Anchors, levels: Floats, truths: Floats) -> Located:
    weights = np.where(np.isnan(levels), 0.0, 10.0 ** (np.nan_to_num(levels, nan=-200.0) / 10.0))
    places = weights @ anchors.xy / weights.sum(axis=1, keepdims=True)
    return Located(places, np.full(len(places), np.nan), truths)


def _merge(parts: Sequence[Located]) -> Located:
    return Located(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _describe(located: Located) -> dict[str, float | str]:
    errors = located.errors
    row: dict[str, float | str] = {
        "median_m": round(float(np.median(errors)), 2),
        "p90_m": round(float(np.quantile(errors, 0.9)), 2),
        "mean_m": round(float(errors.mean()), 2),
    }
    if not np.isnan(located.radii).any():
        row["covered_percent"] = round(100.0 * float((errors <= located.radii).mean()), 1)
        row["radius_m"] = round(float(np.median(located.radii)), 2)
    return row


# --- Emulated sites ---


def _measure_sites(*, quick: bool) -> dict[str, Any]:
    """Compare the errors with those of a map that knows everything but the fading."""
    rows = {}
    for kind in _SITE_KINDS:
        found, best, nearest = [], [], []
        for seed in range(2 if quick else _SITES):
            site = EmulatedSite(kind, seed)
            levels, calibrated = site.measure_minute(0), _calibrate_site(site, [])
            found.append(_estimate(_solve_devices(calibrated, levels), calibrated.grid, site.places))
            grid = calibrated.grid
            truth = site.compute_mean(grid.floors, grid.xy).T
            solver = PosteriorSolver(SignalMap(truth, np.zeros_like(truth)), drift_db2=FADING_DB2)
            exact = Readings(levels, np.zeros(len(levels)), np.full(len(levels), 1e-3))
            best.append(_estimate(solver.solve(exact), grid, site.places))
            nearest.append(_locate_at_nearest(site.anchors, levels, site.places))
        merged, ideal = _merge(found), _merge(best)
        rows[kind.name] = {
            "rms_m": round(_rms(merged), 2),
            "rms_with_true_map_m": round(_rms(ideal), 2),
            "ratio": round(_rms(merged) / _rms(ideal), 3),
            "rms_nearest_anchor_m": round(_rms(_merge(nearest)), 2),
            "covered_percent": round(100.0 * float((merged.errors <= merged.radii).mean()), 1),
        }
    return rows


def _calibrate_site(site: EmulatedSite, surveyed: Sequence[tuple[int, float, float]]) -> CalibratedSite:
    """Calibrate with a minute of all devices, what anchors read of each other, and survey points."""
    device_levels = site.measure_minute(0)
    anchors = site.anchors
    anchor_levels = site.measure_at(anchors.floors, anchors.xy, 0)
    np.fill_diagonal(anchor_levels, np.nan)
    floors = np.array([floor for floor, _, _ in surveyed], dtype=np.int64)
    xy = np.array([(x, y) for _, x, y in surveyed], dtype=np.float64).reshape(-1, 2)
    survey_levels = site.measure_at(floors, xy, 0)
    count = len(device_levels)
    levels = np.concatenate((device_levels, anchor_levels, survey_levels))
    is_silent = np.isnan(levels)
    is_silent[count : count + anchors.size] = False  # an anchor does not receive itself
    fingerprints = Fingerprints(
        levels,
        [*range(_FIRST_DEVICE, _FIRST_DEVICE + count + anchors.size), *[_BEACON] * len(surveyed)],
        [*[_PRODUCT] * count, *[_ANCHOR_PRODUCT] * anchors.size, *[UNKNOWN_PRODUCT] * len(surveyed)],
        [
            *[None] * count,
            *((int(floor), float(x), float(y)) for floor, (x, y) in zip(*anchors, strict=True)),
            *surveyed,
        ],
        is_silent,
    )
    model = calibrate(fingerprints, Grid(site.areas, max_cells=MAX_CALIBRATION_CELLS), anchors)
    grid = Grid(site.areas)
    points = _build_points(model, floors, xy, survey_levels)
    return CalibratedSite(grid, model, build_survey_map(model, grid, anchors, points))


def _solve_devices(site: CalibratedSite, levels: Floats) -> Floats32:
    offsets = [site.model.get_offset(_FIRST_DEVICE + number, _PRODUCT) for number in range(len(levels))]
    return PosteriorSolver(site.signal_map).solve(
        Readings(
            levels,
            np.array([each.mean for each in offsets]),
            np.array([each.variance + _OFFSET_DRIFT_DB2 for each in offsets]),
            np.isnan(levels),
        )
    )


def _rms(located: Located) -> float:
    return float(np.sqrt((located.errors**2).mean()))


def _measure_floors(*, quick: bool) -> dict[str, Any]:
    """Measure how often the floor is right in buildings with three floors."""
    is_right: dict[str, list[bool]] = {"level 0 and 1": [], "level 2": []}
    for seed in range(2 if quick else _SITES):
        site = EmulatedSite(_BUILDING, 1000 + seed, devices=60)
        random = np.random.default_rng(seed)
        surveyed = [
            (floor, float(random.uniform(0.0, WIDTH)), float(random.uniform(0.0, DEPTH)))
            for floor in range(site.kind.floors)
            for _ in range(_SURVEY_POINTS)
        ]
        for name, points in (("level 0 and 1", []), ("level 2", surveyed)):
            calibrated = _calibrate_site(site, points)
            now = estimate_places(_solve_devices(calibrated, site.measure_minute(0)), calibrated.grid)
            is_right[name] += [each.floor == floor for each, floor in zip(now, site.floors, strict=True)]
    return {
        name: {"right_percent": round(100.0 * sum(found) / len(found), 1)} for name, found in is_right.items()
    }


# --- Devices that do not move ---


def _measure_stillness(room: Room, *, quick: bool) -> dict[str, Any]:
    """Measure how far a device that stands still jumps, with single minutes and with averages as in REST."""
    site = _build_map(room, Grid([AREA]), [])
    rows = {}
    for name, sequences in (
        ("in the room", room.sequences),
        ("in the room, averaged", [_average_sequence(each, _ROOM_READINGS) for each in room.sequences]),
    ):
        rows[name] = _describe_jumps(
            [
                estimate_places(
                    PosteriorSolver(site.signal_map).solve(_build_readings(site.model, each)), site.grid
                )
                for each in sequences
            ]
        )
    single: list[list[Estimate]] = []
    averaged: list[list[Estimate]] = []
    for seed in range(2 if quick else _SITES):
        emulated = EmulatedSite(_BUILDING, 1000 + seed, devices=30)
        calibrated = _calibrate_site(emulated, [])
        minutes = np.array([emulated.measure_minute(minute) for minute in range(_STILL_MINUTES)])
        means = np.stack(
            [
                _average_sequence(minutes[:, device], READINGS_PER_MINUTE)
                for device in range(minutes.shape[1])
            ],
            axis=1,
        )
        for levels, found in ((minutes, single), (means, averaged)):
            by_minute = [
                estimate_places(_solve_devices(calibrated, each), calibrated.grid) for each in levels
            ]
            found += [list(each) for each in zip(*by_minute, strict=True)]
    rows["in emulated buildings"] = _describe_jumps(single)
    rows["in emulated buildings, averaged"] = _describe_jumps(averaged)
    return rows


def _average_sequence(minutes: Floats, readings: int) -> Floats:
    """Return the average since the device last moved after each of its minutes."""
    averages: list[Floats] = []
    still: StillAverage | None = None
    for levels in minutes:
        counts = np.where(np.isnan(levels), 0.0, float(readings))
        still = (still and average_if_still(still, levels, counts)) or StillAverage(levels, counts)
        averages.append(still.levels)
    return np.array(averages)


def _describe_jumps(devices: Sequence[Sequence[Estimate]]) -> dict[str, float]:
    """Describe the distances between the positions of successive minutes of devices."""
    jumps = [
        hypot(after.x - before.x, after.y - before.y)
        for estimates in devices
        for before, after in pairwise(estimates)
    ]
    return {
        "median_jump_m": round(float(np.median(jumps)), 2),
        "p90_jump_m": round(float(np.quantile(jumps, 0.9)), 2),
    }


# --- Speed ---


def _measure_speed(room: Room) -> dict[str, Any]:
    """Measure the CPU of positions, with an anchor of the same run: the matrix product alone."""
    grid = Grid([AREA])
    site = _build_map(room, grid, [])
    solver, readings = PosteriorSolver(site.signal_map), _build_readings(site.model, room.minutes)
    count = len(room.minutes)

    def per_second(work: Any) -> int:
        work()
        started = time.process_time()
        for _ in range(5):
            work()
        return round(5 * count / (time.process_time() - started))

    product = np.random.default_rng(1).random((count, 6 * room.anchors.size), dtype=np.float32)
    matrix = np.ones((6 * room.anchors.size, len(grid)), dtype=np.float32)
    started = time.process_time()
    _build_map(room, grid, list(range(len(room.points))))
    calibration = time.process_time() - started
    return {
        f"positions with radius, {len(grid)} cells": {
            "per_second": per_second(lambda: estimate_places(solver.solve(readings), grid))
        },
        "positions without radius": {"per_second": per_second(lambda: solver.solve(readings))},
        "anchor: matrix product of the same size": {"per_second": per_second(lambda: product @ matrix)},
        "calibration and map, 81 points": {"cpu_seconds": round(calibration, 2)},
    }
