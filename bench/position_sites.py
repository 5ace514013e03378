"""Emulated sites for the benchmark of positions: the radio model of the emulator, with true places known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshfleet.emulator.simulation import radio
from meshfleet.emulator.simulation.noise import derive_noise_key
from meshfleet.emulator.simulation.site import SitePosition, Walls
from meshfleet.positioning.grid import FloorArea
from meshfleet.positioning.signal_model import Anchors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.positioning.arrays import Floats, Ints

WIDTH: Final = 40.0
DEPTH: Final = 25.0
READINGS_PER_MINUTE: Final = 6
FADING_DB2: Final = 3.14**2
"""Variance of the mean of a minute around the mean RSSI of the radio model."""


class SiteKind(NamedTuple):
    """Kind of an emulated site."""

    anchors: int
    """Anchors on each floor."""
    has_walls: bool
    gain_db: float
    """Standard deviation of the gains of anchors."""
    floors: int = 1

    @property
    def name(self) -> str:
        """Name of the row in the report."""
        floors = f"{self.floors} floors, " if self.floors > 1 else ""
        walls = "walls" if self.has_walls else "open"
        return f"{floors}{walls}, {self.anchors} anchors, gains {self.gain_db:g} dB"


class EmulatedSite:
    """Site with anchors and devices at random places, and what the anchors read from the devices."""

    def __init__(self, kind: SiteKind, seed: int, *, devices: int = 40) -> None:
        random = np.random.default_rng(seed)
        self.kind = kind
        self._seed = seed
        self._walls = _place_walls(random) if kind.has_walls else Walls()
        floors = np.repeat(np.arange(kind.floors), kind.anchors)
        xy = np.concatenate([_place_anchors(kind.anchors, random) for _ in range(kind.floors)])
        self.anchors = Anchors(floors, xy)
        self._gains = random.normal(0.0, kind.gain_db, len(xy)) if kind.gain_db else np.zeros(len(xy))
        self.floors: Ints = random.integers(0, kind.floors, devices)
        self.places: Floats = random.uniform((0.0, 0.0), (WIDTH, DEPTH), (devices, 2))
        self._keys = [derive_noise_key("position", seed, number) for number in range(devices + len(xy))]

    @property
    def areas(self) -> list[FloorArea]:
        """Floors of the site."""
        return [FloorArea(floor, 0.0, 0.0, WIDTH, DEPTH) for floor in range(self.kind.floors)]

    def compute_mean(self, floors: Ints, xy: Floats) -> Floats:
        """Return the mean RSSI at all anchors from points: one row per point."""
        anchors = [SitePosition(int(f), *map(float, p)) for f, p in zip(*self.anchors, strict=True)]
        return (
            np.array(
                [
                    [
                        radio.estimate_mean_rssi(
                            SitePosition(int(floor), float(x), float(y)), each, self._walls
                        )
                        for each in anchors
                    ]
                    for floor, (x, y) in zip(floors, xy, strict=True)
                ]
            ).reshape(len(floors), len(anchors))
            + self._gains
        )

    def measure_minute(self, minute: int) -> Floats:
        """Return the mean RSSI of each device at each anchor in a minute; NaN where it was not received."""
        return self._measure(self.compute_mean(self.floors, self.places), self._keys, minute)

    def measure_at(self, floors: Ints, xy: Floats, minute: int) -> Floats:
        """Return what anchors read in a minute from one device that stands at each point in turn."""
        keys = [derive_noise_key("survey", self._seed, number) for number in range(len(xy))]
        return self._measure(self.compute_mean(floors, xy), keys, minute)

    def _measure(self, mean: Floats, keys: Sequence[int], minute: int) -> Floats:
        anchor_keys = self._keys[-len(self._gains) :]
        levels = np.full(mean.shape, np.nan)
        for row, column in np.ndindex(*mean.shape):
            pair = keys[row] ^ anchor_keys[column]
            readings = [
                round(
                    float(mean[row, column])
                    + radio.compute_slow_fading(pair, 60.0 * minute + 10.0 * number)
                    + radio.compute_fast_fading(pair, minute * READINGS_PER_MINUTE + number)
                )
                for number in range(READINGS_PER_MINUTE)
            ]
            heard = [each for each in readings if each >= radio.MIN_AUDIBLE_DBM]
            if heard:
                levels[row, column] = sum(heard) / len(heard)
        return levels


def _place_walls(random: np.random.Generator) -> Walls:
    """Return five walls across the site and three along it."""
    across, along = random.uniform(2.0, WIDTH - 2.0, 5), random.uniform(2.0, DEPTH - 2.0, 3)
    return Walls(tuple(sorted(map(float, across))), tuple(sorted(map(float, along))))


def _place_anchors(count: int, random: np.random.Generator) -> Floats:
    """Return places for anchors: most along the edge, the others inside."""
    inside = max(count // 3, 1) if count > 4 else 0  # noqa: PLR2004 # four anchors: the corners
    edge = count - inside
    turn = (np.arange(edge) + 0.5) / edge * 2.0 * (WIDTH + DEPTH)
    x = np.clip(np.where(turn < WIDTH + DEPTH, turn, 2 * WIDTH + DEPTH - turn), 0.0, WIDTH)
    y = np.clip(np.where(turn < WIDTH + DEPTH, turn - WIDTH, 2.0 * (WIDTH + DEPTH) - turn), 0.0, DEPTH)
    middle = np.column_stack(
        (
            (np.arange(inside) + 0.5) / inside * WIDTH if inside else [],
            DEPTH * (0.35 + 0.3 * (np.arange(inside) % 2)),
        )
    )
    places = np.concatenate((np.column_stack((x, y)), middle))
    return np.clip(places + random.uniform(-1.5, 1.5, places.shape), 0.3, (WIDTH - 0.3, DEPTH - 0.3))
