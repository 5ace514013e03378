"""Positions of devices for clients: now, at a moment in the past, and over time."""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.errors import CalibrationPending, DatabaseUnavailable
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest.positions import FloorProbability, Position, PositionAnswer, PositionReading
from meshfleet.rest.sites import format_site_id
from meshfleet.service.positions.current_positions import (
    CLOCK_SLACK_MS,
    MAX_MISFIT_DB,
    MIN_ANCHORS,
    CurrentPosition,
    CurrentPositions,
)
from meshfleet.service.positions.first_positions import FirstPositions
from meshfleet.service.positions.reading_windows import WindowLoader
from meshfleet.service.positions.slow_work import SlowWork

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from meshfleet.db import Database
    from meshfleet.db.samples.sample import SampleStore
    from meshfleet.service.clock import Now
    from meshfleet.service.ingest.rollups import Rollups
    from meshfleet.service.positions.reading_store import AnchorLevel, ReadingStore
    from meshfleet.service.positions.reading_windows import WindowLevels
    from meshfleet.service.positions.site_model import LocatedDevice, SiteModel
    from meshfleet.service.positions.site_models import SiteModels
    from meshfleet.service.sites.changes import SiteChanges

_SITE_CHECK_SECONDS: Final = 5.0
"""Seconds between two checks for sites that other processes have changed."""

STILL_WINDOW: Final = 60
"""Seconds from which on a window is too long to follow a device that moves. With such a window, earlier
minutes count too while a device stands still."""
_EARLIER_MS: Final = 900_000
"""Milliseconds before the window from which readings of a device that stands still are used."""
FOLLOWED_MS: Final = 6_000
"""Age after which the tracker has used all readings of a device that it follows while it moves."""
_FIRST_WAIT_SECONDS: Final = 20.0
"""Maximum seconds for which a request waits for the first calibration of a site."""


class PositionFinder:
    """Computes positions from single readings, or from minute roll-ups where single readings are gone."""

    def __init__(  # noqa: PLR0913 # keyword-only
        self,
        database: Database,
        samples: SampleStore,
        rollups: Rollups,
        *,
        readings: ReadingStore,
        site_changes: SiteChanges,
        now: Now,
    ) -> None:
        self._database = database
        self.readings = readings
        self.windows = WindowLoader(samples, rollups, readings)
        self.slow_work = SlowWork()
        self._site_changes = site_changes
        self._now = now
        self._models: SiteModels | None = None
        self.current = CurrentPositions()
        """Positions of the devices that the tracker follows."""
        self._first_positions = FirstPositions(readings, now)
        site_changes.subscribe(self._handle_site_change)

    def _handle_site_change(self, site: int) -> None:
        self.update_anchors()
        if self._models is not None and site not in self._site_changes.revisions:
            self._models.forget(site)
            self.current.forget_site(site)
            self._first_positions.forget_site(site)

    @property
    def sites(self) -> Collection[int]:
        """Numbers of all sites."""
        return self._site_changes.revisions.keys()

    def update_anchors(self) -> None:
        """Keep the readings of the anchors that there are now."""
        self.readings.set_anchors(self._site_changes.anchors)

    async def watch_sites(self) -> None:
        """Notice regularly which sites other processes have changed, or lost an anchor with its device."""
        while True:
            await asyncio.sleep(_SITE_CHECK_SECONDS)
            try:
                await self._site_changes.check()
            except (DatabaseUnavailable, DBAPIError) as exc:
                _log.warning("changes of sites cannot be loaded (%s); trying again", type(exc).__name__)

    async def get_model(self, site: int) -> SiteModel | None:
        """Return the current model of a site; None if the site has too few anchors, or does not exist.

        Raise `CalibrationPending` if the first calibration of the site takes longer than a client waits.
        """
        return await self._load_model(site, first_wait=_FIRST_WAIT_SECONDS)

    async def wait_for_model(self, site: int) -> SiteModel | None:
        """Return the current model of a site as `get_model` does, however long its calibration takes."""
        return await self._load_model(site, first_wait=None)

    async def _load_model(self, site: int, *, first_wait: float | None) -> SiteModel | None:
        if (revision := self._site_changes.revisions.get(site)) is None:
            return None
        if self._models is None:
            # numpy takes a tenth of a second and 30 MB: most fleets have no site.
            module = import_module("meshfleet.service.positions.site_models")
            models: SiteModels = module.SiteModels(self._database, self.readings, now=self._now)
            self._models = models
        return await self._models.get(site, revision, first_wait=first_wait)

    async def locate(self, device: int, *, at: int | None, seconds: int) -> PositionAnswer:
        """Return the position of a device at a time, from the readings of the seconds before.

        The position is None with a reason if there are too few readings, or if they contradict each other.
        """
        until = self._now() + CLOCK_SLACK_MS if at is None else at
        since = until - seconds * 1000 - (CLOCK_SLACK_MS if at is None else 0)
        if at is None and seconds >= STILL_WINDOW and (current := self._find_current(device, since, until)):
            return PositionAnswer(
                position=build_position(current.model, current.located, current.time), reason=None
            )
        window = await self.windows.load_window(device, since, until)
        if window is None:
            return _explain(f"No anchor has received the device in the {seconds} s before this time.")
        if len(window.levels) < MIN_ANCHORS:
            return _explain(
                f"{_count(len(window.levels), 'anchor')} received the device in the {seconds} s before this"
                f" time; {MIN_ANCHORS} are needed."
            )
        return await self._locate_window(device, window, since, seconds=seconds)

    async def _locate_window(
        self, device: int, window: WindowLevels, since: int, *, seconds: int
    ) -> PositionAnswer:
        """Return the position of a device from a window, and from the minutes before if it stands still."""
        try:
            model = await self.get_model(window.site)
        except CalibrationPending as exc:
            return _explain(str(exc))
        if model is None:
            return _explain(
                f"The site has fewer than {MIN_ANCHORS} devices with a place that receive others."
            )
        earlier = [] if seconds < STILL_WINDOW else await self._load_earlier(device, since)
        steps = [model.select_known(each) for each in (*earlier, window.levels)]
        if len(steps[-1]) < MIN_ANCHORS:
            return _explain(
                f"The calibration of the site has fewer than {MIN_ANCHORS} of the anchors that received the"
                " device. It is repeated when places or readings change."
            )
        located = await asyncio.to_thread(model.locate_still, device, steps, seconds=seconds)
        if located.misfit_db > MAX_MISFIT_DB:
            return _explain("The readings contradict each other: no place fits to all of them.")
        return PositionAnswer(position=build_position(model, located, window.newest), reason=None)

    def _find_current(self, device: int, since: int, until: int) -> CurrentPosition | None:
        """Return the position of the tracker. Return None if places or newer readings have changed it."""
        current = self.current.find(device)
        if current is None or current.time <= since:
            return None
        geometry = current.model.geometry
        if self._site_changes.revisions.get(geometry.site) != geometry.revision:
            return None
        used = current.used
        readings = self.readings.list_readings(device, used.since, until, arrived_since=used.since)
        if used.is_frequent:
            unused = next((each.time for each in readings if each.time > used.newest), None)
            is_current = unused is None or unused > self._now() - FOLLOWED_MS
        else:
            is_current = len(readings) <= used.reading_count
        return current if is_current else None

    async def list_suspicious_anchors(self, site: int) -> Sequence[tuple[int, float]]:
        """Return the anchors that do not seem to be at their places, with the difference in dB."""
        model = await self.get_model(site)
        if model is None:
            return ()
        if (known := model.suspicious_anchors) is not None:
            return known
        return await self.slow_work.share(model.find_suspicious_anchors)

    async def list_current(self, site: int) -> list[CurrentPosition]:
        """Return the newest positions of all devices that a site received in the last minutes.

        Most of them come from the tracker. Those of devices that it has not followed yet, for example after
        a start, are computed here, as many as a second is enough for.
        """
        model = await self.get_model(site)
        if model is None:
            return []
        current = self.current.list_site(site, self._now())
        others = self.readings.list_devices(site) - {each.device for each in current}
        return [*current, *await self._first_positions.locate(model, others)]

    async def _load_earlier(self, device: int, until: int) -> list[Mapping[int, AnchorLevel]]:
        """Load the levels of the minutes before a time; the device may have been at the same place."""
        steps = await self.windows.load_steps(device, until - _EARLIER_MS, until)
        return [levels for time, levels in steps if time <= until]  # later ones are part of the window


def build_position(model: SiteModel, located: LocatedDevice, time: int) -> Position:
    """Build the body of an estimated position."""
    estimate = located.estimate
    floors = zip(model.geometry.floors, estimate.floor_probabilities, strict=True)
    return Position(
        site=format_site_id(model.geometry.site),
        floor=estimate.floor,
        x=round(estimate.x, 3),
        y=round(estimate.y, 3),
        radius=round(estimate.radius, 2),
        confidence=0.9,
        level=model.level,
        time=format_millis(time),
        floors=[FloorProbability(floor=each.floor, probability=round(share, 4)) for each, share in floors],
        readings=[
            PositionReading(
                anchor=mac_from_int(each.anchor),
                rssi=round(each.level.rssi, 1),
                count=each.level.count,
                distance=round(each.distance, 2),
                residual=round(each.residual, 1),
            )
            for each in located.fits
        ],
    )


def _explain(reason: str) -> PositionAnswer:
    return PositionAnswer(position=None, reason=reason)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
