"""Readings of a device in steps of time, and the site that they are from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from meshfleet.service.positions.reading_store import AnchorLevel, average_readings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from meshfleet.service.positions.reading_store import AnchorReading


class Step(NamedTuple):
    """End of a step as Unix time in milliseconds, and what anchors have read in it."""

    time: int
    levels: Mapping[int, AnchorLevel]


class SiteLevels(NamedTuple):
    """Readings of a device by the anchors of one site."""

    site: int
    levels: dict[int, AnchorLevel]


def split_into_steps(readings: Sequence[AnchorReading], step_ms: int) -> list[Step]:
    """Divide readings, which are sorted by time, into steps."""
    steps: dict[int, list[AnchorReading]] = {}
    for reading in readings:
        steps.setdefault(-(-reading.time // step_ms) * step_ms, []).append(reading)
    return [Step(end, average_readings(each)) for end, each in sorted(steps.items())]


def merge_levels(steps: Iterable[Mapping[int, AnchorLevel]]) -> dict[int, AnchorLevel]:
    """Return the mean RSSI and the number of readings by anchor of several steps."""
    counts: dict[int, int] = {}
    sums: dict[int, float] = {}
    for levels in steps:
        for anchor, level in levels.items():
            counts[anchor] = counts.get(anchor, 0) + level.count
            sums[anchor] = sums.get(anchor, 0.0) + level.rssi * level.count
    return {anchor: AnchorLevel(sums[anchor] / count, count) for anchor, count in counts.items()}


def choose_site(levels: Mapping[int, AnchorLevel], anchors: Mapping[int, int]) -> SiteLevels | None:
    """Return the site whose anchors received the device; of several, the one with the most and best readings.

    `anchors` has the number of the site by anchor.
    """
    by_site: dict[int, dict[int, AnchorLevel]] = {}
    for anchor, level in levels.items():
        if (site := anchors.get(anchor)) is not None:
            by_site.setdefault(site, {})[anchor] = level
    if not by_site:
        return None
    best = max(
        by_site.items(), key=lambda each: (len(each[1]), max(level.rssi for level in each[1].values()))
    )
    return SiteLevels(*best)
