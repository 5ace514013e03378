"""Selects the minutes of devices with which a site is calibrated: few, and as different as possible.

A device that stands still sends the same minute again and again. Only the first tells something new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.service.positions.reading_store import AnchorLevel, DeviceMinute

MAX_FINGERPRINTS: Final = 400
"""Maximum number of minutes for a calibration; more do not improve it."""

_SAME_DB: Final = 3.0
"""Root mean square difference in dB below which two minutes count as the same place."""
_MISSING_DB: Final = 6.0
"""Difference that counts for an anchor with a reading in one minute only."""


def select_fingerprints(minutes: Iterable[DeviceMinute]) -> list[DeviceMinute]:
    """Select different minutes of each device; if there are too many, fewer of devices with many of them."""
    by_device: dict[int, list[DeviceMinute]] = {}
    for minute in minutes:
        chosen = by_device.setdefault(minute.device, [])
        if len(chosen) < MAX_FINGERPRINTS and all(
            _compute_difference(minute.levels, each.levels) >= _SAME_DB for each in reversed(chosen)
        ):
            chosen.append(minute)
    groups = sorted(by_device.values(), key=len)
    selected: list[DeviceMinute] = []
    for index, group in enumerate(groups):
        share = max((MAX_FINGERPRINTS - len(selected)) // (len(groups) - index), 1)
        step = max(-(-len(group) // share), 1)
        selected += group[::step]
        if len(selected) >= MAX_FINGERPRINTS:
            break
    return selected


def _compute_difference(a: Mapping[int, AnchorLevel], b: Mapping[int, AnchorLevel]) -> float:
    """Return the root mean square difference of two minutes in dB."""
    squares = sum(
        (a[anchor].rssi - b[anchor].rssi) ** 2 if anchor in a and anchor in b else _MISSING_DB**2
        for anchor in a.keys() | b.keys()
    )
    return float((squares / max(len(a.keys() | b.keys()), 1)) ** 0.5)
