"""Follows the devices of all sites over time: where each one is, given its newest readings and where it was.

While a device stands still, its readings are averaged. A device that moves, and has frequent readings, is
followed with `MotionFilter`. All methods are called in worker threads, one at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshfleet.positioning.grid import contains_points
from meshfleet.positioning.motion import MotionFilter
from meshfleet.positioning.posterior import normalize
from meshfleet.service.positions.current_positions import MAX_MISFIT_DB, MIN_ANCHORS
from meshfleet.service.positions.site_model import DeviceLevels
from meshfleet.service.positions.still_levels import Stillness

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from meshfleet.positioning.arrays import Floats32
    from meshfleet.positioning.grid import Grid
    from meshfleet.service.positions.reading_store import AnchorLevel
    from meshfleet.service.positions.site_model import LocatedDevice, SiteModel
    from meshfleet.service.positions.visit_store import ZoneArea

MAX_MOVING_DEVICES: Final = 2_000
"""Maximum number of devices whose probabilities are kept, up to 80 KB each; of more, those seen last."""
MAX_STILL_DEVICES: Final = 50_000
"""Maximum number of devices whose average readings are kept."""


STILL_SECONDS: Final = 60.0
"""Seconds of readings as which averages count: long enough that silence of anchors means something."""


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
    is_repeated: bool
    """Whether this is the last step once more, with readings that came late."""


class FollowedDevice(NamedTuple):
    """Where a device is after a step."""

    device: int
    time: int
    located: LocatedDevice
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
        self._still: OrderedDict[int, Stillness] = OrderedDict()
        self._views: dict[int, _SiteView] = {}

    def follow(
        self, model: SiteModel, steps: Sequence[DeviceStep], zones: Sequence[ZoneArea]
    ) -> list[FollowedDevice]:
        """Return where devices on a site are. Devices with too few or contradicting readings are left out."""
        view = self._get_view(model, zones)
        by_device = {each.device: each for each in steps}
        found = []
        for (device, levels), probabilities in self._locate(model, view.motion_filter, steps):
            located = model.explain(device, levels, probabilities)
            if located.misfit_db > MAX_MISFIT_DB:
                self._moving.pop(device, None)
                continue
            shares = (view.masks @ probabilities).tolist()
            inside = {each.zone: share for each, share in zip(zones, shares, strict=True)}
            step = by_device[device]
            found.append(FollowedDevice(device, step.time, located, inside))
        return found

    def keep_sites(self, sites: Collection[int]) -> None:
        """Forget everything about other sites, which were deleted: a model takes megabytes."""
        self._views = {site: view for site, view in self._views.items() if site in sites}
        self._forget_motions(lambda motion: motion.model.geometry.site not in sites)

    def _forget_motions(self, is_old: Callable[[_Motion], bool]) -> None:
        for device in [device for device, motion in self._moving.items() if is_old(motion)]:
            del self._moving[device]

    def _get_view(self, model: SiteModel, zones: Sequence[ZoneArea]) -> _SiteView:
        site = model.geometry.site
        view = self._views.get(site)
        if view is None or view.model is not model or view.zones != zones:
            view = _SiteView(model, zones, _build_masks(model.grid, zones), MotionFilter(model.grid))
            self._views[site] = view
            self._forget_motions(
                lambda motion: motion.model.geometry.site == site and motion.model is not model
            )
        return view

    def _locate(
        self, model: SiteModel, motion_filter: MotionFilter, steps: Sequence[DeviceStep]
    ) -> Iterator[tuple[DeviceLevels, Floats32]]:
        """Return the levels that locate each device now, and the probabilities of all cells."""
        still: list[DeviceLevels] = []
        for each in steps:
            step = each._replace(levels=model.select_known(each.levels))
            average = self._average(step)
            if average is not None:
                still.append(DeviceLevels(step.device, average))
                self._moving.pop(step.device, None)
            elif (probabilities := self._move(model, motion_filter, step)) is not None:
                yield DeviceLevels(step.device, step.levels), probabilities
        yield from model.locate_many(still, seconds=STILL_SECONDS)

    def _average(self, step: DeviceStep) -> dict[int, AnchorLevel] | None:
        """Return the average readings of a device since it last moved. Return None if it is moving."""
        stillness = self._still.setdefault(step.device, Stillness())
        self._still.move_to_end(step.device)
        if len(self._still) > MAX_STILL_DEVICES:
            self._still.popitem(last=False)
        if step.is_frequent:
            return stillness.add_frequent(step.time, step.levels)
        return stillness.add(step.levels, is_repeated=step.is_repeated)

    def _move(self, model: SiteModel, motion_filter: MotionFilter, step: DeviceStep) -> Floats32 | None:
        """Return the probabilities of all cells for a device that moves; None if they are unknown."""
        before = self._moving.get(step.device)
        is_known = before is not None and before.model is model and before.time < step.time
        if not step.levels or (not is_known and len(step.levels) < MIN_ANCHORS):
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
        now: Floats32 = probabilities[0]
        return now


def _build_masks(grid: Grid, zones: Sequence[ZoneArea]) -> Floats32:
    """Return for each zone which cells are inside: 1 or 0."""
    masks = np.zeros((len(zones), len(grid)), dtype=np.float32)
    cells = {each.floor: each.cells for each in grid.rasters}
    for row, area in enumerate(zones):
        if (on_floor := cells.get(area.floor)) is not None:
            masks[row, on_floor] = contains_points(area.polygon, grid.xy[on_floor])
    return masks
