"""Anchors at wrong places: how many of those that were moved or swapped are named, and how many others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bench.position_room import AREA
from bench.position_sites import DEPTH, WIDTH, EmulatedSite, SiteKind
from meshfleet.positioning.anchor_check import find_misplaced_anchors
from meshfleet.positioning.calibration import Fingerprints, calibrate
from meshfleet.positioning.grid import Grid
from meshfleet.positioning.posterior import Readings
from meshfleet.positioning.signal_model import Anchors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.position_room import Room
    from meshfleet.positioning.arrays import Floats
    from meshfleet.positioning.grid import FloorArea

_SITES: Final = 6
_KINDS: Final = (
    SiteKind(12, has_walls=False, gain_db=3.0),
    SiteKind(12, has_walls=True, gain_db=3.0),
    SiteKind(8, has_walls=True, gain_db=3.0),
)
_MIN_METERS: Final = 5.0
_CELLS: Final = 500
_PRODUCT: Final = 1


class _Case(NamedTuple):
    """Places of anchors as a user has entered them, of which some are wrong."""

    name: str
    anchors: Anchors
    wrong: Sequence[int]


def measure_misplaced(room: Room, *, quick: bool) -> dict[str, Any]:
    """Count named anchors in the room and on emulated sites."""
    rows: dict[str, dict[str, list[int]]] = {}
    areas, beacon = [AREA], [1] * len(room.points)
    for case in _build_cases(room.anchors, (AREA.max_x, AREA.max_y), seed=7, moves=1 if quick else 12):
        _count(rows, "the room", case, _find_named(areas, case, room.fingerprints, beacon))
    for kind in _KINDS:
        for seed in range(1 if quick else _SITES):
            site = EmulatedSite(kind, 100 + seed)
            levels = site.measure_minute(0)
            for case in _build_cases(site.anchors, (WIDTH, DEPTH), seed=seed, moves=1):
                _count(rows, kind.name, case, _find_named(site.areas, case, levels, range(len(levels))))
    return {
        name: {
            f"{case}_{column}": number
            for case, numbers in cases.items()
            for column, number in zip(("wrong", "named", "others_named"), numbers, strict=True)
        }
        for name, cases in rows.items()
    }


def _build_cases(anchors: Anchors, size: tuple[float, float], *, seed: int, moves: int) -> Iterator[_Case]:
    """Build a case with right places, some with a moved anchor, and as many with a swapped pair."""
    random = np.random.default_rng(seed)
    yield _Case("right", anchors, [])
    for _ in range(moves):
        moved, (first, second) = anchors.xy.copy(), (0, 0)
        anchor = int(random.integers(anchors.size))
        while np.hypot(*(moved[anchor] - anchors.xy[anchor])) < _MIN_METERS:
            moved[anchor] = random.uniform((0.0, 0.0), size)
        yield _Case("moved", Anchors(anchors.floors, moved), [anchor])
        swapped = anchors.xy.copy()
        while np.hypot(*(anchors.xy[first] - anchors.xy[second])) < _MIN_METERS:
            first, second = map(int, random.choice(anchors.size, 2, replace=False))
        swapped[[first, second]] = swapped[[second, first]]
        yield _Case("swapped", Anchors(anchors.floors, swapped), [first, second])


def _find_named(areas: Sequence[FloorArea], case: _Case, levels: Floats, devices: Sequence[int]) -> set[int]:
    """Calibrate with the entered places, and return the anchors that are named."""
    count = len(levels)
    fingerprints = Fingerprints(levels, devices, [_PRODUCT] * count, [None] * count, np.isnan(levels))
    model = calibrate(fingerprints, Grid(areas, max_cells=_CELLS), case.anchors)
    offsets = [model.get_offset(each, _PRODUCT) for each in devices]
    readings = Readings(
        levels, np.array([each.mean for each in offsets]), np.array([each.variance + 1.0 for each in offsets])
    )
    return {each.anchor for each in find_misplaced_anchors(model, areas, case.anchors, readings)}


def _count(rows: dict[str, dict[str, list[int]]], name: str, case: _Case, named: set[int]) -> None:
    counts = rows.setdefault(name, {}).setdefault(case.name, [0, 0, 0])
    counts[0] += len(case.wrong)
    counts[1] += len(named & set(case.wrong))
    counts[2] += len(named - set(case.wrong))
