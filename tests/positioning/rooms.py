"""Synthetic rooms: anchors, a signal model of which everything is known, and readings drawn from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshfleet.positioning.calibration import UNKNOWN_PRODUCT, Fingerprints, calibrate
from meshfleet.positioning.estimate import Estimate, estimate_places
from meshfleet.positioning.grid import FloorArea, Grid
from meshfleet.positioning.posterior import PosteriorSolver, Readings
from meshfleet.positioning.signal_model import Anchors, build_signal_map, trace_paths

if TYPE_CHECKING:
    from meshfleet.positioning.arrays import Floats, Ints
    from meshfleet.positioning.signal_model import SignalMap, SignalModel

WIDTH, DEPTH = 20.0, 14.0
ANCHOR_PLACES = [(0.5, 0.5), (10, 0.5), (19.5, 0.5), (0.5, 13.5), (10, 13.5), (19.5, 13.5), (5, 7), (15, 7)]
POWER = -58.0
EXPONENT = 2.2
FLOOR_LOSS = 14.0
NOISE_DB = 3.0


class Room(NamedTuple):
    """Devices at known places, and what the anchors read from them."""

    areas: list[FloorArea]
    anchors: Anchors
    floors: Ints
    places: Floats
    levels: Floats

    @property
    def grid(self) -> Grid:
        """Cells of the room."""
        return Grid(self.areas)


def build_room(seed: int = 1, *, floors: int = 1, devices: int = 60, gains: Floats | None = None) -> Room:
    """Build a room with devices at random places."""
    random = np.random.default_rng(seed)
    count = len(ANCHOR_PLACES)
    anchors = Anchors(np.repeat(np.arange(floors), count), np.array(ANCHOR_PLACES * floors, dtype=np.float64))
    device_floors = random.integers(0, floors, devices)
    places = random.uniform((0, 0), (WIDTH, DEPTH), (devices, 2))
    paths = trace_paths(places, device_floors, anchors)
    mean = POWER - EXPONENT * paths.loss - FLOOR_LOSS * paths.floors
    levels = mean + (0 if gains is None else gains) + random.normal(0, NOISE_DB, mean.shape)
    areas = [FloorArea(floor, 0, 0, WIDTH, DEPTH) for floor in range(floors)]
    return Room(areas, anchors, device_floors, places, levels)


def build_fingerprints(room: Room) -> Fingerprints:
    """Return the readings of all devices of a room; none of their places is known."""
    count = len(room.levels)
    return Fingerprints(room.levels, range(count), [UNKNOWN_PRODUCT] * count, [None] * count)


def calibrate_room(room: Room, fingerprints: Fingerprints | None = None) -> SignalModel:
    """Calibrate with fingerprints of a room, by default with those of `build_fingerprints`."""
    grid = Grid(room.areas, max_cells=600)
    return calibrate(fingerprints or build_fingerprints(room), grid, room.anchors)


def locate(room: Room, model: SignalModel, *, signal_map: SignalMap | None = None) -> list[Estimate]:
    """Locate all devices of a room."""
    offsets = [model.get_offset(device, UNKNOWN_PRODUCT) for device in range(len(room.levels))]
    readings = Readings(
        room.levels, np.array([each.mean for each in offsets]), np.array([each.variance for each in offsets])
    )
    signal_map = signal_map or build_signal_map(model, room.grid, room.anchors)
    solver = PosteriorSolver(signal_map, is_walkable=room.grid.is_walkable)
    return estimate_places(solver.solve(readings), room.grid)


def compute_errors(estimates: list[Estimate], places: Floats) -> Floats:
    """Return the distances between estimates and true places in meters."""
    found = np.array([(each.x, each.y) for each in estimates])
    errors: Floats = np.hypot(*(found - places).T)
    return errors
