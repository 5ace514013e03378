"""Positions of a device over time, each with the readings before and after it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.positioning.motion import MotionFilter
from meshfleet.positioning.posterior import normalize
from meshfleet.service.positions.current_positions import MAX_MISFIT_DB, MIN_ANCHORS
from meshfleet.service.positions.reading_steps import Step
from meshfleet.service.positions.still_levels import merge_if_still

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from meshfleet.positioning.arrays import Floats32
    from meshfleet.positioning.estimate import Estimate
    from meshfleet.service.positions.reading_store import AnchorLevel
    from meshfleet.service.positions.site_model import SiteModel

MINUTE_STEP_MS: Final = 60_000
"""Length of a step of a device that reports about once a minute, and of minute roll-ups."""

_SLICE_STEPS: Final = 200
"""Number of steps that are located at once: the probabilities of one step take 80 KB on a large site."""
_MARGIN_STEPS: Final = 30
"""Number of steps before and after a slice with which it is smoothed: readings that are 90 s away move a
position by centimeters at most, with few and noisy anchors."""


class TimedEstimate(NamedTuple):
    """Estimated place of a device at a time."""

    time: int
    estimate: Estimate


def locate_steps(model: SiteModel, device: int, steps: Sequence[Step], step_ms: int) -> list[TimedEstimate]:
    """Estimate the place of a device at each step that enough anchors contributed to, without contradiction.

    Short steps are smoothed: a device that moves is within walking distance of where it is before and after.
    In a minute a device can be anywhere; minutes in which it stands still are averaged.
    """
    known = [Step(time, model.select_known(levels)) for time, levels in steps]
    used = [step for step in known if len(step.levels) >= MIN_ANCHORS]
    if step_ms >= MINUTE_STEP_MS:
        used = _average_still_steps(used)
    found = []
    for step, row in zip(used, _compute_probabilities(model, device, used, step_ms), strict=True):
        located = model.explain(device, step.levels, row)
        if located.misfit_db <= MAX_MISFIT_DB:
            found.append(TimedEstimate(step.time, located.estimate))
    return found


def _compute_probabilities(
    model: SiteModel, device: int, steps: Sequence[Step], step_ms: int
) -> Iterator[Floats32]:
    """Yield the probabilities of all cells at each step."""
    motion_filter = MotionFilter(model.grid) if step_ms < MINUTE_STEP_MS else None
    margin = 0 if motion_filter is None else _MARGIN_STEPS
    for start in range(0, len(steps), _SLICE_STEPS):
        first = max(start - margin, 0)
        near = steps[first : start + _SLICE_STEPS + margin]
        logs = model.compute_log_likelihoods(device, [step.levels for step in near], seconds=step_ms / 1000)
        if motion_filter is None:
            probabilities = normalize(logs)
        else:
            seconds = [(after.time - before.time) / 1000 for before, after in pairwise(near)]
            probabilities = motion_filter.smooth(logs, seconds)
        yield from probabilities[start - first : start - first + _SLICE_STEPS]


def _average_still_steps(steps: Sequence[Step]) -> list[Step]:
    """Replace the levels of each step by the average since the device last moved."""
    averaged: list[Step] = []
    average: dict[int, AnchorLevel] = {}
    for step in steps:
        average = merge_if_still(average, step.levels) or dict(step.levels)
        averaged.append(Step(step.time, average))
    return averaged
