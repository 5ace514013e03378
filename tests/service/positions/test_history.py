"""Positions of a device over time, from the steps of a recording."""

from __future__ import annotations

from math import hypot, log10
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.positions.history import locate_steps
from meshfleet.service.positions.reading_steps import Step
from meshfleet.service.positions.reading_store import AnchorLevel
from meshfleet.service.positions.site_model import SiteModel
from meshfleet.service.sites.geometry import Anchor, Box, FloorGeometry, SiteGeometry
from tests.positioning.rooms import ANCHOR_PLACES, EXPONENT, POWER
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Sequence

DEVICE, MOVING_MS, MINUTE_MS = 99, 3_000, 60_000
ANCHORS = dict(enumerate(ANCHOR_PLACES, 1))
UNKNOWN = (101, 102, 103)
"""Anchors that have got a place since the model was built."""


@pytest.fixture(scope="module")
def model() -> SiteModel:
    """Build a model of a corridor without any readings; anchors are in the rooms on both sides."""
    floor = FloorGeometry(0, Box(0, 3, 20, 9), None)
    anchors = tuple(Anchor(number, 0, float(x), float(y)) for number, (x, y) in ANCHORS.items())
    return SiteModel(SiteGeometry(site=1, revision=1, floors=(floor,), anchors=anchors), [], [], {})


def _receive(x: float, y: float, anchors: Sequence[int] = tuple(ANCHORS)) -> dict[int, AnchorLevel]:
    """Return what anchors read of a device at a place, without noise."""
    return {
        anchor: AnchorLevel(
            POWER - 10 * EXPONENT * log10(max(hypot(x - ANCHORS[anchor][0], y - ANCHORS[anchor][1]), 0.5)), 3
        )
        for anchor in anchors
    }


@pytest.mark.rule("rest-92", "rest-258")
@each_row("step_ms", [MOVING_MS, MINUTE_MS])
@each_row("known", [(), (1,), (1, 2)])
def test_a_step_with_too_few_anchors_of_the_model_has_no_position(
    model: SiteModel, known: tuple[int, ...], step_ms: int
) -> None:
    unknown = {anchor: AnchorLevel(-60.0, 3) for anchor in UNKNOWN}
    steps = [
        Step(0, _receive(4, 5)),
        Step(step_ms, _receive(4, 5, known) | unknown),
        Step(2 * step_ms, _receive(4, 5) | unknown),
    ]
    found = locate_steps(model, DEVICE, steps, step_ms)
    assert [each.time for each in found] == [0, 2 * step_ms]
