"""Measurements of a real room, for the benchmark of positions."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshfleet.positioning.grid import FloorArea
from meshfleet.positioning.signal_model import Anchors

if TYPE_CHECKING:
    from meshfleet.positioning.arrays import Floats, Ints

_FOLDER: Final = Path(__file__).parent / "data" / "ble-rssi"
_TRACKS: Final = (
    "rectangular_without_rotation",
    "straight_01",
    "straight_03",
    "zigzagging_with_rotation",
)
AREA: Final = FloorArea(0, -0.1, -0.2, 20.7, 17.7)
WINDOW_SECONDS: Final = 3.0
_MINUTE_STEP: Final = 6
"""Every sixth minute is located: neighboring minutes are almost equal."""


class Windows(NamedTuple):
    """Mean RSSI by anchor in consecutive windows of a track, and the mean true place."""

    levels: Floats
    places: Floats


class Room(NamedTuple):
    """Measurements of the room."""

    anchors: Anchors
    points: Floats
    """True places of the static measurements."""
    fingerprints: Floats
    """Mean RSSI of each point by anchor."""
    minutes: Floats
    """Mean RSSI by anchor of single minutes."""
    point_of_minute: Ints
    sequences: list[Floats]
    """Mean RSSI by anchor of all minutes at each point, in the order of time."""
    tracks: list[Windows]


def load_room() -> Room:
    """Load the measurements."""
    anchor_rows, point_rows = _read("anchors"), _read("points")
    names = [row["anchor"] for row in anchor_rows]
    numbers = {row["point"]: number for number, row in enumerate(point_rows)}
    minute_rows = _read("static_minutes")
    minutes = np.array([[float(row[name] or "nan") for name in names] for row in minute_rows])
    points = np.array([numbers[row["point"]] for row in minute_rows])
    is_chosen = np.array([int(row["minute"]) % _MINUTE_STEP == 2 for row in minute_rows])  # noqa: PLR2004
    return Room(
        Anchors(np.zeros(len(names), dtype=np.int64), _read_places(anchor_rows)),
        _read_places(point_rows),
        np.array([np.nanmean(minutes[points == number], axis=0) for number in range(len(numbers))]),
        minutes[is_chosen],
        points[is_chosen],
        [minutes[points == number] for number in range(len(numbers))],
        [_load_track(name, names) for name in _TRACKS],
    )


def _load_track(track: str, anchors: list[str]) -> Windows:
    rows = _read(f"track_{track}")
    places = _read_places(rows)
    windows = np.array([int(float(row["t_s"]) // WINDOW_SECONDS) for row in rows])
    columns = np.array([anchors.index(row["anchor"]) for row in rows])
    readings = np.array([float(row["rssi_dbm"]) for row in rows])
    used = np.unique(windows)
    levels = np.full((len(used), len(anchors)), np.nan)
    for row, window in enumerate(used):
        for column in np.unique(columns[windows == window]):
            levels[row, column] = readings[(windows == window) & (columns == column)].mean()
    return Windows(levels, np.array([places[windows == window].mean(axis=0) for window in used]))


def _read_places(rows: list[dict[str, str]]) -> Floats:
    return np.array([(float(row["x_m"]), float(row["y_m"])) for row in rows])


def _read(name: str) -> list[dict[str, str]]:
    with (_FOLDER / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))
