"""Positions in synthetic rooms: right on average, honest, and independent of how a site is drawn."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.positioning.anchor_check import find_misplaced_anchors
from meshfleet.positioning.calibration import UNKNOWN_PRODUCT, Fingerprints, calibrate
from meshfleet.positioning.coverage import MAX_PARTS, Receivers, predict_coverage
from meshfleet.positioning.estimate import CONFIDENCE, estimate_places
from meshfleet.positioning.grid import FloorArea, Grid, contains_points
from meshfleet.positioning.motion import MotionFilter, StillAverage, average_if_still
from meshfleet.positioning.posterior import PosteriorSolver, Readings, normalize
from meshfleet.positioning.signal_model import Anchors, build_signal_map
from meshfleet.positioning.survey_map import KnownPoints, build_survey_map
from tests.positioning.rooms import (
    DEPTH,
    FLOOR_LOSS,
    WIDTH,
    Room,
    build_fingerprints,
    build_room,
    calibrate_room,
    compute_errors,
    locate,
)
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.positioning.arrays import Floats
    from meshfleet.positioning.signal_model import SignalModel


def _mirror(room: Room) -> Room:
    anchors = Anchors(
        room.anchors.floors, np.column_stack((WIDTH - room.anchors.xy[:, 0], room.anchors.xy[:, 1]))
    )
    places = np.column_stack((WIDTH - room.places[:, 0], room.places[:, 1]))
    return room._replace(anchors=anchors, places=places)


def _turn(room: Room) -> Room:
    areas = [FloorArea(each.floor, 0, 0, DEPTH, WIDTH) for each in room.areas]
    anchors = Anchors(room.anchors.floors, room.anchors.xy[:, ::-1].copy())
    return room._replace(areas=areas, anchors=anchors, places=room.places[:, ::-1].copy())


def _permute(room: Room) -> Room:
    order = np.random.default_rng(5).permutation(room.anchors.size)
    anchors = Anchors(room.anchors.floors[order], room.anchors.xy[order])
    return room._replace(anchors=anchors, levels=room.levels[:, order])


def _amplify(room: Room) -> Room:
    return room._replace(levels=room.levels + 7.0)


def _calibrate_nothing(grid: Grid, anchors: Anchors) -> SignalModel:
    return calibrate(Fingerprints(np.empty((0, anchors.size)), [], [], []), grid, anchors)


def test_positions_are_right_and_the_radius_is_honest() -> None:
    room = build_room()
    estimates = locate(room, calibrate_room(room))
    errors = compute_errors(estimates, room.places)
    radii = np.array([each.radius for each in estimates])
    nearest = room.anchors.xy[room.levels.argmax(axis=1)]
    assert errors.mean() < 0.7 * np.hypot(*(nearest - room.places).T).mean()
    assert 0.85 <= (errors <= radii).mean() <= 1.0
    assert np.median(radii) < WIDTH / 3


@pytest.mark.parametrize("change", [_mirror, _turn, _permute, _amplify])
def test_errors_do_not_depend_on_how_a_site_is_drawn(change: Callable[[Room], Room]) -> None:
    room = build_room()
    changed = change(room)
    errors = compute_errors(locate(room, calibrate_room(room)), room.places)
    assert compute_errors(locate(changed, calibrate_room(changed)), changed.places).mean() == pytest.approx(
        errors.mean(), abs=0.1
    )


def test_gains_of_anchors_are_learned_without_known_places() -> None:
    gains = np.array([0.0, 5.0, 0.0, -5.0, 0.0, 0.0, 0.0, 0.0])
    model = calibrate_room(build_room(gains=gains, devices=100))
    assert np.argmax(model.gains) == 1
    assert np.argmin(model.gains) == 3
    assert model.gains[1] - model.gains[3] == pytest.approx(10.0, abs=3.0)


def test_survey_points_improve_positions_near_them() -> None:
    room = build_room(devices=80)
    random = np.random.default_rng(9)
    waves = np.sin(room.places[:, :1] / 3.0 + np.arange(room.anchors.size)) * 6.0  # shadows of shelves
    room = room._replace(levels=room.levels + waves + random.normal(0, 0.1, room.levels.shape))
    surveyed = np.arange(0, 80, 2)
    places = [(0, float(x), float(y)) if i % 2 == 0 else None for i, (x, y) in enumerate(room.places)]
    model = calibrate_room(room, build_fingerprints(room)._replace(places=places))
    points = KnownPoints(
        room.floors[surveyed],
        room.places[surveyed],
        room.levels[surveyed],
        np.array([model.get_offset(int(i), UNKNOWN_PRODUCT).mean for i in surveyed]),
        np.full(len(surveyed), 4.1),
    )
    signal_map = build_survey_map(model, room.grid, room.anchors, points)
    others = np.arange(1, 80, 2)
    without = compute_errors(locate(room, calibrate_room(room)), room.places)[others].mean()
    assert (
        compute_errors(locate(room, model, signal_map=signal_map), room.places)[others].mean() < 0.9 * without
    )
    cell = room.grid.find_cell(0, *map(float, room.places[0]))
    plain = build_signal_map(model, room.grid, room.anchors)
    assert (signal_map.variance[:, cell] < plain.variance[:, cell]).all()


def test_the_floor_is_found() -> None:
    room = build_room(floors=3)
    model = calibrate_room(room)
    estimates = locate(room, model)
    assert np.mean([each.floor == floor for each, floor in zip(estimates, room.floors, strict=True)]) >= 0.95
    assert model.floor_loss == pytest.approx(FLOOR_LOSS, abs=3.0)
    for each in estimates:
        assert sum(each.floor_probabilities) == pytest.approx(1.0, abs=1e-5)
        assert each.floor_probabilities[each.floor] == max(each.floor_probabilities)


def test_silent_anchors_correct_the_exponent_and_the_positions() -> None:
    room = build_room(devices=80)
    limit = float(np.quantile(room.levels, 0.5))
    levels = np.where(room.levels < limit, np.nan, room.levels)
    fingerprints = build_fingerprints(room)._replace(levels=levels)
    blind = calibrate_room(room, fingerprints)
    aware = calibrate_room(room, fingerprints._replace(is_silent=np.isnan(levels), sensitivity=limit))
    true_exponent = calibrate_room(room).exponent
    assert abs(aware.exponent - true_exponent) < abs(blind.exponent - true_exponent)
    signal_map = build_signal_map(aware, room.grid, room.anchors)
    offsets = [aware.get_offset(i, UNKNOWN_PRODUCT) for i in range(len(levels))]
    readings = Readings(levels, np.array([e.mean for e in offsets]), np.array([e.variance for e in offsets]))
    errors = {
        name: compute_errors(
            estimate_places(PosteriorSolver(signal_map).solve(each), room.grid), room.places
        ).mean()
        for name, each in (
            ("ignored", readings),
            ("used", readings._replace(is_silent=np.isnan(levels), sensitivity=limit)),
        )
    }
    assert errors["used"] < errors["ignored"]


@pytest.mark.rule("rest-259")
def test_moved_and_swapped_anchors_are_found() -> None:
    failures: list[str] = []
    for seed in range(3):
        room = build_room(seed=seed, devices=50)
        for places, wrong in (
            (range(8), set()),
            ([7, *range(1, 8)], {0}),  # anchor 0 is said to be where anchor 7 is
            ([1, 0, *range(2, 8)], {0, 1}),
        ):
            stated = Anchors(room.anchors.floors, room.anchors.xy[list(places)])
            named = _name_misplaced(room._replace(anchors=stated))
            if not named <= wrong or bool(named) != bool(wrong):
                failures.append(f"seed {seed}: {named} instead of {wrong}")
    assert failures == []


def _name_misplaced(room: Room) -> set[int]:
    model = calibrate_room(room)
    offsets = [model.get_offset(device, UNKNOWN_PRODUCT) for device in range(len(room.levels))]
    readings = Readings(
        room.levels, np.array([each.mean for each in offsets]), np.array([each.variance for each in offsets])
    )
    return {each.anchor for each in find_misplaced_anchors(model, room.areas, room.anchors, readings)}


def test_a_moving_device_is_followed_better_than_by_single_readings() -> None:
    room = build_room()
    steps = np.linspace(0.1, 0.9, 40)
    places = np.column_stack((WIDTH * steps, DEPTH / 2 + 3 * np.sin(6 * steps)))
    walk = build_room(seed=3, devices=40)
    model = calibrate_room(room)
    mean = walk.levels - _compute_mean(walk.places, walk.anchors) + _compute_mean(places, walk.anchors)
    grid = room.grid
    solver = PosteriorSolver(build_signal_map(model, grid, room.anchors))
    logs = solver.compute_log_likelihoods(Readings(mean, np.full(40, model.unknown.mean), np.full(40, 4.0)))
    motion = MotionFilter(grid)
    state, rows = normalize(logs[:1].copy()), []
    for row in range(40):
        state = motion.update(motion.advance(state, 3.0), logs[row : row + 1]) if row else state
        rows.append(state[0])
    single = compute_errors(estimate_places(normalize(logs.copy()), grid), places).mean()
    filtered = compute_errors(estimate_places(np.array(rows), grid), places).mean()
    smoothed = compute_errors(estimate_places(motion.smooth(logs, [3.0] * 39), grid), places).mean()
    assert smoothed < filtered < single


def _compute_mean(places: Floats, anchors: Anchors) -> Floats:
    offset = places[:, None] - anchors.xy[None]
    mean: Floats = -58.0 - 11.0 * np.log10((offset**2).sum(axis=2) + 0.36)
    return mean


def test_readings_that_do_not_change_are_averaged_until_the_device_moves() -> None:
    nan = np.nan
    start = StillAverage(np.array([-60.0, -70.0, nan]), np.array([6.0, 6.0, 0.0]))
    still = average_if_still(start, np.array([-61.0, nan, -80.0]), np.array([6.0, 0.0, 3.0]))
    assert still is not None
    assert still.levels.tolist() == [-60.5, -70.0, -80.0]
    assert still.counts.tolist() == [12.0, 3.0, 3.0]
    assert average_if_still(still, np.array([-72.0, -58.0, -66.0]), np.array([6.0, 6.0, 6.0])) is None
    assert average_if_still(start, np.array([nan, nan, -80.0]), np.array([0.0, 0.0, 9.0])) is None


def test_a_device_has_moved_if_strong_anchors_are_replaced_by_others() -> None:
    # One anchor of six may receive a device alike at two places, if only six are reported at each.
    nan = np.nan
    before = np.array([-50.0, -55.0, -58.0, -60.0, -62.0, -70.0, nan, nan, nan, nan, nan])
    after = np.array([nan, nan, nan, nan, nan, -71.0, -50.0, -55.0, -58.0, -60.0, -62.0])

    def add(levels: Floats, counts: int, average: StillAverage) -> StillAverage | None:
        return average_if_still(average, levels, np.where(np.isnan(levels), 0.0, float(counts)))

    starts = [StillAverage(before, np.where(np.isnan(before), 0.0, count)) for count in (1.0, 6.0)]
    assert [add(after, readings, start) for readings, start in zip((1, 6), starts, strict=True)] == [
        None,
        None,
    ]
    # A weak anchor may be replaced by another one, and a strong one may be silent for a while.
    similar = np.array([-50.5, nan, -58.0, -60.0, -62.0, nan, nan, nan, nan, nan, -69.0])
    still = add(similar, 6, starts[1])
    assert still is not None
    assert still.levels[10] == -69.0
    for _ in range(9):
        still = add(np.where(np.arange(11) == 1, nan, before), 6, still)
        assert still is not None
    assert still.counts[1] == 0
    assert np.isnan(still.levels[1])


def test_few_or_contradicting_readings_give_a_large_radius() -> None:
    room = build_room()
    model = calibrate_room(room)
    one = np.full((3, room.anchors.size), np.nan)
    one[0, 6] = -70.0
    one[1, 0], one[1, 5] = -59.0, -59.0  # near two anchors that are far apart
    one[2, :3] = -75.0  # all on one line: on either side of it
    signal_map = build_signal_map(model, room.grid, room.anchors)
    readings = Readings(one, np.full(3, model.unknown.mean), np.full(3, 25.0))
    estimates = estimate_places(PosteriorSolver(signal_map).solve(readings), room.grid)
    usual = np.median([each.radius for each in locate(room, model)])
    assert all(each.radius > 1.3 * usual for each in estimates), (usual, [each.radius for each in estimates])


_READING = st.one_of(st.just(float("nan")), st.floats(-127, 20))


@given(st.lists(st.lists(_READING, min_size=8, max_size=8), min_size=1, max_size=5))
def test_any_readings_give_a_place_inside_the_site(levels: list[list[float]]) -> None:
    room = build_room(devices=0)
    grid = Grid(room.areas, max_cells=200)
    model = _calibrate_nothing(grid, room.anchors)
    solver = PosteriorSolver(build_signal_map(model, grid, room.anchors))
    rows = len(levels)
    estimates = estimate_places(
        solver.solve(Readings(np.array(levels), np.full(rows, -50.0), np.full(rows, 25.0))), grid
    )
    assert len(estimates) == rows
    for each in estimates:
        assert 0 <= each.x <= WIDTH
        assert 0 <= each.y <= DEPTH
        assert 0 < each.radius < 2 * WIDTH


def test_positions_stay_in_the_walkable_area() -> None:
    corridor = [(0.0, 6.0), (20.0, 6.0), (20.0, 8.0), (0.0, 8.0)]
    room = build_room()
    area = room.areas[0]._replace(walkable=[corridor])
    limited = room._replace(areas=[area])
    for each in locate(limited, calibrate_room(limited)):
        assert 5.5 <= each.y <= 8.5


def test_a_calibration_without_readings_is_what_is_known_of_all_sites() -> None:
    room = build_room(devices=0)
    model = _calibrate_nothing(room.grid, room.anchors)
    assert (model.exponent, model.floor_loss) == (2.0, 12.0)
    assert model.gains.tolist() == [0.0] * room.anchors.size
    assert model.get_offset(1, 2) == model.unknown


def test_cells_cover_large_sites_with_larger_cells() -> None:
    small = Grid([FloorArea(0, 0, 0, 10, 5)])
    assert (len(small), small.step) == (200, 0.5)
    large = Grid([FloorArea(floor, -500, -500, 1500, 1500) for floor in range(5)])
    assert len(large) <= 21_000
    assert large.find_cell(7, 0, 0) is None
    assert np.hypot(*(large.xy[large.find_cell(2, 100, 100)] - (100, 100))) < large.step
    assert small.find_cell(0, -99, 99) == 180  # the nearest cell


def test_points_are_inside_a_polygon_by_the_even_odd_rule() -> None:
    u_shape = [(0, 0), (6, 0), (6, 6), (4, 6), (4, 2), (2, 2), (2, 6), (0, 6)]
    points = np.array([(1.0, 5.0), (3.0, 5.0), (5.0, 5.0), (3.0, 1.0), (7.0, 1.0), (-1.0, 3.0)])
    assert contains_points(u_shape, points).tolist() == [True, False, True, True, False, False]


def test_the_radius_holds_the_stated_probability() -> None:
    grid = Grid([FloorArea(0, 0, 0, 20, 20)])
    distance = np.hypot(*(grid.xy - (8.0, 11.0)).T)
    probabilities = np.exp(-0.5 * (distance / 3.0) ** 2)[None].astype(np.float32)
    (estimate,) = estimate_places(probabilities / probabilities.sum(), grid)
    assert (estimate.x, estimate.y) == pytest.approx((8.0, 11.0), abs=0.1)
    assert estimate.radius == pytest.approx(3.0 * np.sqrt(-2.0 * np.log(1.0 - CONFIDENCE)), abs=0.5)


@pytest.mark.rule("rest-266")
@each_row(("width", "depth"), [(1, 1), (20, 14), (100, 50), (200, 2), (600, 3), (1500, 10), (2000, 1)])
def test_the_coverage_of_a_floor_of_any_shape_has_a_limited_number_of_parts(width: int, depth: int) -> None:
    anchors = Anchors(np.zeros(3, dtype=np.int64), np.array([(0.1, 0.1), (0.9, 0.1), (0.5, 0.9)]))
    grid = Grid([FloorArea(0, 0, 0, width, depth)])
    model = _calibrate_nothing(grid, anchors)
    signal_map = build_signal_map(model, grid, anchors)
    coverage = predict_coverage(
        PosteriorSolver(signal_map),
        signal_map,
        grid,
        grid.rasters[0],
        offset=model.unknown,
        receivers=Receivers(np.ones(3, dtype=np.bool_), min_level=20.0, max_reported=None),
        min_anchors=3,
    )
    parts = coverage.columns * coverage.rows
    assert parts == len(coverage.counts)
    assert parts <= MAX_PARTS
    assert parts >= min(len(grid), MAX_PARTS / 5)


def test_the_memory_for_a_map_does_not_grow_with_survey_points_or_anchors() -> None:
    areas = [FloorArea(0, 0, 0, 100, 50)]
    grid, random = Grid(areas), np.random.default_rng(1)

    def measure(*, points: int, anchors: int) -> float:
        """Return the memory for a map in MB, without the map."""
        receivers = Anchors(
            np.zeros(anchors, dtype=np.int64), random.uniform((0, 0), (100, 50), (anchors, 2))
        )
        levels = np.full((points, anchors), np.nan)
        levels[:10] = -70.0
        known = KnownPoints(
            np.zeros(points, dtype=np.int64),
            random.uniform((0, 0), (100, 50), (points, 2)),
            levels,
            np.full(points, -50.0),
            np.full(points, 4.1),
        )
        model = _calibrate_nothing(Grid(areas, max_cells=100), receivers)
        tracemalloc.start()
        signal_map = build_survey_map(model, grid, receivers, known)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return (peak - signal_map.mean.nbytes - signal_map.variance.nbytes) / 1e6

    assert measure(points=300, anchors=3) < 200
    assert measure(points=10, anchors=50) < 110
