"""Sites with many anchors, of which gateways report only the six that receive a device best."""

from __future__ import annotations

from math import hypot, log10
from random import Random
from statistics import median

import pytest

from meshfleet.service.positions.reading_store import AnchorLevel, DeviceMinute
from meshfleet.service.positions.site_model import SiteModel
from meshfleet.service.sites.geometry import Anchor, Box, FloorGeometry, SiteGeometry

WIDTH, DEPTH = 60.0, 40.0
REPORTED = 6
ANCHORS = [
    Anchor(0xC0FFEE010000 + number, 0, 6.0 + 12.0 * (number % 5), 5.0 + 10.0 * (number // 5))
    for number in range(20)
]


def receive(random: Random, x: float, y: float) -> dict[int, AnchorLevel]:
    """Return the strongest readings of a device at a place."""
    levels = {
        each.device: round(-55 - 22 * log10(max(hypot(each.x - x, each.y - y), 0.5)) + random.gauss(0, 3))
        for each in ANCHORS
    }
    strongest = sorted(levels, key=levels.__getitem__)[-REPORTED:]
    return {anchor: AnchorLevel(levels[anchor], 6) for anchor in strongest}


@pytest.mark.rule("rest-91")
def test_devices_are_found_although_only_the_strongest_readings_are_known() -> None:
    random = Random(7)  # noqa: S311 # a fixed sequence
    places = [(random.uniform(0, WIDTH), random.uniform(0, DEPTH)) for _ in range(40)]
    readings = [receive(random, *place) for place in places]
    floor = FloorGeometry(0, Box(0, 0, WIDTH, DEPTH), None)
    minutes = [DeviceMinute(number, 60_000, levels) for number, levels in enumerate(readings)]
    model = SiteModel(SiteGeometry(1, 1, (floor,), tuple(ANCHORS)), minutes, [], {})
    located = [model.locate(number, levels, seconds=60.0).estimate for number, levels in enumerate(readings)]
    errors = [estimate.measure_distance(*place) for estimate, place in zip(located, places, strict=True)]
    assert median(errors) < 4
    assert median(each.radius for each in located) < 10
    inside = sum(error <= each.radius for error, each in zip(errors, located, strict=True))
    assert inside >= 0.8 * len(places)
