"""Positions of devices that the tracker has not located yet, for lists of all devices on a site.

After a start there may be thousands of them, and a site with hundreds of anchors takes milliseconds for each.
So a list waits for them for about a second only, and those that are missing are part of a later one.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.service.positions.current_positions import (
    CLOCK_SLACK_MS,
    CURRENT_MS,
    MAX_MISFIT_DB,
    MIN_ANCHORS,
    CurrentPosition,
    UsedReadings,
)
from meshfleet.service.positions.reading_steps import choose_site
from meshfleet.service.positions.reading_store import AnchorLevel, average_readings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from meshfleet.service.clock import Now
    from meshfleet.service.positions.reading_store import AnchorReading, ReadingStore
    from meshfleet.service.positions.site_model import SiteModel

_MINUTE_MS: Final = 60_000
_MAX_SECONDS: Final = 1.0
"""Seconds after which a list does not wait for more positions."""
_KEPT_MS: Final = 10_000
"""Milliseconds for which a position is kept, as is the knowledge that a device has none."""
_BATCH: Final = 64
"""Number of devices that are located at once."""


class _Attempt(NamedTuple):
    """Result for a device, with the model that it was computed with."""

    model: SiteModel
    tried_at: int
    position: CurrentPosition | None


class FirstPositions:
    """Positions of devices that the tracker has not located yet.

    All methods are called in the thread of the event loop.
    """

    def __init__(self, readings: ReadingStore, now: Now, *, max_seconds: float = _MAX_SECONDS) -> None:
        self._readings = readings
        self._now = now
        self._max_seconds = max_seconds
        self._attempts: dict[int, dict[int, _Attempt]] = {}
        """Newest result of each device by site."""
        self._work: dict[int, asyncio.Task[None]] = {}

    async def locate(self, model: SiteModel, devices: Collection[int]) -> list[CurrentPosition]:
        """Return the positions of devices. Some may be missing if there are many."""
        site = model.geometry.site
        work = self._work.get(site)
        if work is None:
            work = self._work[site] = asyncio.create_task(
                self._compute(model, devices), name="positions.locate_all"
            )
            work.add_done_callback(lambda _: self._work.pop(site, None))
        await asyncio.shield(work)  # other clients may wait for it
        found = (self._attempts.get(site, {}).get(device) for device in devices)
        return [
            each.position
            for each in found
            if each is not None and each.model is model and each.position is not None
        ]

    def forget_site(self, site: int) -> None:
        """Forget the positions on a site that was deleted."""
        self._attempts.pop(site, None)

    async def _compute(self, model: SiteModel, devices: Collection[int]) -> None:
        """Compute the positions of devices without a current one: those first whose last one is oldest."""
        now, end = self._now(), monotonic() + self._max_seconds
        before = self._attempts.get(model.geometry.site, {})
        # Devices that the tracker has located meanwhile are not kept.
        attempts = {device: before[device] for device in sorted(devices) if device in before}
        self._attempts[model.geometry.site] = attempts
        due = [each for each in sorted(devices) if not _is_current(attempts.get(each), model, now)]
        due.sort(key=lambda each: attempts[each].tried_at if each in attempts else 0)
        for start in range(0, len(due), _BATCH):
            batch = due[start : start + _BATCH]
            located = await self._locate_batch(model, batch, now + CLOCK_SLACK_MS)
            attempts.update((each, _Attempt(model, now, located.get(each))) for each in batch)
            if monotonic() > end:
                break

    async def _locate_batch(
        self, model: SiteModel, devices: Sequence[int], until: int
    ) -> dict[int, CurrentPosition]:
        """Compute the positions of devices from their readings of the last minutes."""
        steps: dict[int, list[dict[int, AnchorLevel]]] = {}
        used: dict[int, UsedReadings] = {}
        since = until - CURRENT_MS
        for device in devices:
            readings = self._readings.list_readings(device, since, until, arrived_since=since)
            if found := self._split_minutes(readings, site=model.geometry.site):
                steps[device] = found
                used[device] = UsedReadings(
                    readings[0].time - 1, readings[-1].time, len(readings), is_frequent=False
                )
        located = await asyncio.to_thread(model.locate_all_still, steps, seconds=_MINUTE_MS / 1000)
        return {
            device: CurrentPosition(device, used[device], model, each)
            for device, each in located
            if each.misfit_db <= MAX_MISFIT_DB
        }

    def _split_minutes(
        self, readings: Sequence[AnchorReading], *, site: int
    ) -> list[dict[int, AnchorLevel]] | None:
        """Divide readings into minutes that end at the newest one. Return None if that one is not enough."""
        if not readings:
            return None
        newest = readings[-1].time
        minutes: dict[int, list[AnchorReading]] = {}
        for each in readings:
            minutes.setdefault((newest - each.time) // _MINUTE_MS, []).append(each)
        found = choose_site(average_readings(minutes[0]), self._readings.anchors)
        if found is None or found[0] != site or len(found[1]) < MIN_ANCHORS:
            return None
        return [
            self._select_site(average_readings(minutes[age]), site) for age in sorted(minutes, reverse=True)
        ]

    def _select_site(self, levels: Mapping[int, AnchorLevel], site: int) -> dict[int, AnchorLevel]:
        """Return the levels of the anchors of a site."""
        anchors = self._readings.anchors
        return {anchor: level for anchor, level in levels.items() if anchors.get(anchor) == site}


def _is_current(attempt: _Attempt | None, model: SiteModel, now: int) -> bool:
    """Return whether a result is still used: not for long, because there are new readings meanwhile."""
    return attempt is not None and attempt.model is model and 0 <= now - attempt.tried_at < _KEPT_MS
