"""Follows the devices of all sites over time: where each one is, given its newest readings and where it was.

A device with frequent readings is followed with `MotionFilter`. For others, readings are averaged while the
device stands still. All methods are called in worker threads, one at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshfleet.positioning.estimate import estimate_places
from meshfleet.positioning.grid import contains_points
from meshfleet.positioning.motion import MotionFilter
from meshfleet.positioning.posterior import normalize
from meshfleet.service.positions.positions import MAX_MISFIT_DB, MIN_ANCHORS
from meshfleet.service.positions.still_levels import merge_if_still

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshfleet.positioning.arrays import Floats32
    from meshfleet.positioning.estimate import Estimate
    from meshfleet.positioning.grid import Grid
    from meshfleet.service.positions.reading_store import AnchorLevel
    from meshfleet.service.positions.site_model import SiteModel
    from meshfleet.service.positions.visit_store import ZoneArea

MAX_MOVING_DEVICES: Final = 2_000
"""Maximum number of devices whose probabilities are kept, up to 80 KB each; of more, those seen last."""
MAX_STILL_DEVICES: Final = 50_000
"""Maximum number of devices whose average readings are kept."""


class DeviceStep(NamedTuple):
    """Readings of a device since its last step."""

    device: int
    time: int
    """Time of the newest reading, as Unix time in milliseconds."""
    levels: Mapping[int, AnchorLevel]
    seconds: float
    """Length of the step."""
    is_frequent: bool
    """Whether readings are frequent enough to follow the device while it moves."""


class FollowedDevice(NamedTuple):
    """Where a device is after a step."""

    device: int
    time: int
    estimate: Estimate
    zone_shares: Mapping[int, float]
    """Share of the probability that is inside each zone of the site."""


class _Motion(NamedTuple):
    """Probabilities of all cells for a device at the time of its last step."""

    model: SiteModel
    time: int
    probabilities: Floats32


class _SiteView(NamedTuple):
    """Zones of a site as masks of its cells, and its motion filter; computed once for a model."""

    model: SiteModel
    zones: Sequence[ZoneArea]
    masks: Floats32
    motion_filter: MotionFilter


class DeviceMotion:
    """State of all devices that are followed."""

    def __init__(self) -> None:
        self._moving: OrderedDict[int, _Motion] = OrderedDict()
        self._still: OrderedDict[int, dict[int, AnchorLevel]] = OrderedDict()
        self._views: dict[int, _SiteView] = {}

    def follow(
        self, model: SiteModel, steps: Sequence[DeviceStep], zones: Sequence[ZoneArea]
    ) -> list[FollowedDevice]:
        """Return where devices on a site are. Devices with too few or contradicting readings are left out."""
        view = self._get_view(model, zones)
        found = []
        for step in steps:
            located = self._locate(model, view.motion_filter, step)
            if located is None:
                continue
            probabilities, levels = located
            (estimate,) = estimate_places(probabilities, model.grid)
            if model.measure_misfit(step.device, levels, probabilities[0], estimate) > MAX_MISFIT_DB:
                self._moving.pop(step.device, None)
                continue
            shares = (view.masks @ probabilities[0]).tolist()
            inside = {each.zone: share for each, share in zip(zones, shares, strict=True)}
            found.append(FollowedDevice(step.device, step.time, estimate, inside))
        return found

    def _get_view(self, model: SiteModel, zones: Sequence[ZoneArea]) -> _SiteView:
        site = model.geometry.site
        view = self._views.get(site)
        if view is None or view.model is not model or view.zones != zones:
            view = _SiteView(model, zones, _build_masks(model.grid, zones), MotionFilter(model.grid))
            self._views[site] = view
        return view

    def _locate(
        self, model: SiteModel, motion_filter: MotionFilter, step: DeviceStep
    ) -> tuple[Floats32, Mapping[int, AnchorLevel]] | None:
        """Return the probabilities of all cells, and the levels that they come from; None if unknown."""
        before = self._moving.get(step.device)
        if not step.is_frequent:
            self._moving.pop(step.device, None)
            levels = self._average(step)
            if len(levels) < MIN_ANCHORS:
                return None
            return normalize(
                model.compute_log_likelihoods(step.device, [levels], seconds=step.seconds)
            ), levels
        self._still.pop(step.device, None)
        is_known = before is not None and before.model is model and before.time < step.time
        if not is_known and len(step.levels) < MIN_ANCHORS:
            return None
        logs = model.compute_log_likelihoods(step.device, [step.levels], seconds=step.seconds)
        if before is not None and is_known:
            predicted = motion_filter.advance(before.probabilities, (step.time - before.time) / 1000)
            probabilities = motion_filter.update(predicted, logs)
        else:
            probabilities = normalize(logs)
        self._moving[step.device] = _Motion(model, step.time, probabilities)
        self._moving.move_to_end(step.device)
        if len(self._moving) > MAX_MOVING_DEVICES:
            self._moving.popitem(last=False)
        return probabilities, step.levels

    def _average(self, step: DeviceStep) -> dict[int, AnchorLevel]:
        """Return the average readings of a device since it last moved."""
        levels = merge_if_still(self._still.get(step.device, {}), step.levels)
        self._still[step.device] = levels
        self._still.move_to_end(step.device)
        if len(self._still) > MAX_STILL_DEVICES:
            self._still.popitem(last=False)
        return levels


def _build_masks(grid: Grid, zones: Sequence[ZoneArea]) -> Floats32:
    """Return for each zone which cells are inside: 1 or 0."""
    masks = np.zeros((len(zones), len(grid)), dtype=np.float32)
    cells = {each.floor: each.cells for each in grid.rasters}
    for row, area in enumerate(zones):
        if (on_floor := cells.get(area.floor)) is not None:
            masks[row, on_floor] = contains_points(area.polygon, grid.xy[on_floor])
    return masks
