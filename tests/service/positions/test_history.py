"""Positions of a device over time, from the steps of a recording."""

from __future__ import annotations

from math import hypot, log10
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.positioning.estimate import estimate_places
from meshfleet.positioning.motion import MotionFilter
from meshfleet.service.positions.history import locate_steps
from meshfleet.service.positions.reading_steps import Step
from meshfleet.service.positions.reading_store import AnchorLevel
from meshfleet.service.positions.site_model import SiteModel
from meshfleet.service.sites.geometry import Anchor, Box, FloorGeometry, SiteGeometry
from tests.positioning.rooms import ANCHOR_PLACES, EXPONENT, POWER
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.positioning.arrays import Floats32

DEVICE, MOVING_MS, MINUTE_MS = 99, 3_000, 60_000
ANCHORS = dict(enumerate(ANCHOR_PLACES, 1))
UNKNOWN = (101, 102, 103)
"""Anchors that have got a place since the model was built."""


class MeasuredModel(SiteModel):
    """Model that notes for how many steps at once it has computed the probabilities of all cells."""

    max_rows = 0

    def compute_log_likelihoods(self, *args: Any, **kwargs: Any) -> Floats32:
        rows = super().compute_log_likelihoods(*args, **kwargs)
        self.max_rows = max(self.max_rows, len(rows))
        return rows


@pytest.fixture(scope="module")
def model() -> MeasuredModel:
    """Build a model of a corridor without any readings; anchors are in the rooms on both sides."""
    floor = FloorGeometry(0, Box(0, 3, 20, 9), None)
    anchors = tuple(Anchor(number, 0, float(x), float(y)) for number, (x, y) in ANCHORS.items())
    return MeasuredModel(SiteGeometry(site=1, revision=1, floors=(floor,), anchors=anchors), [], [], {})


def _receive(x: float, y: float, anchors: Sequence[int] = tuple(ANCHORS)) -> dict[int, AnchorLevel]:
    """Return what anchors read of a device at a place, without noise."""
    return {
        anchor: AnchorLevel(
            POWER - 10 * EXPONENT * log10(max(hypot(x - ANCHORS[anchor][0], y - ANCHORS[anchor][1]), 0.5)), 3
        )
        for anchor in anchors
    }


def _walk(steps: int) -> list[Step]:
    """Return the steps of a device that walks back and forth."""
    there = [2 + number * 16 / 40 for number in range(40)]
    path = [*there, *reversed(there)]
    return [Step(number * MOVING_MS, _receive(path[number % len(path)], 6)) for number in range(steps)]


@pytest.mark.rule("rest-92", "rest-258")
@each_row("step_ms", [MOVING_MS, MINUTE_MS])
@each_row("known", [(), (1,), (1, 2)])
def test_a_step_with_too_few_anchors_of_the_model_has_no_position(
    model: MeasuredModel, known: tuple[int, ...], step_ms: int
) -> None:
    unknown = {anchor: AnchorLevel(-60.0, 3) for anchor in UNKNOWN}
    steps = [
        Step(0, _receive(4, 5)),
        Step(step_ms, _receive(4, 5, known) | unknown),
        Step(2 * step_ms, _receive(4, 5) | unknown),
    ]
    found = locate_steps(model, DEVICE, steps, step_ms)
    assert [each.time for each in found] == [0, 2 * step_ms]


@pytest.mark.rule("rest-258")
def test_a_long_walk_is_smoothed_in_slices_as_if_it_was_smoothed_at_once(model: MeasuredModel) -> None:
    steps = _walk(420)
    logs = model.compute_log_likelihoods(DEVICE, [each.levels for each in steps], seconds=3.0)
    smoothed = MotionFilter(model.grid).smooth(logs, [3.0] * (len(steps) - 1))
    expected = estimate_places(smoothed, model.grid)
    model.max_rows = 0
    found = locate_steps(model, DEVICE, steps, MOVING_MS)
    assert model.max_rows < 300
    assert [each.time for each in found] == [each.time for each in steps]
    for each, other in zip(found, expected, strict=True):
        assert (each.estimate.x, each.estimate.y) == pytest.approx((other.x, other.y), abs=0.001)
