"""Calibrated models of all sites: builds them in threads, and again when their inputs have changed."""

from __future__ import annotations

import asyncio
from math import sqrt
from time import thread_time
from typing import TYPE_CHECKING, Final, NamedTuple, ParamSpec, TypeVar

from meshfleet.errors import CalibrationPending, UnknownSite
from meshfleet.service.positions import survey_store
from meshfleet.service.positions.current_positions import MIN_ANCHORS
from meshfleet.service.positions.fingerprints import select_fingerprints
from meshfleet.service.positions.reading_steps import split_into_steps
from meshfleet.service.positions.reading_store import DeviceMinute
from meshfleet.service.positions.site_model import SiteModel, SurveyedPlace
from meshfleet.service.sites.places import load_site_geometry

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.positions.reading_store import ReadingStore
    from meshfleet.service.positions.survey_store import StoredSurveyPoint
    from meshfleet.service.sites.geometry import SiteGeometry

Params = ParamSpec("Params")
Result = TypeVar("Result")

_GROWTH: Final = 1.15
"""Factor by which the number of received minutes must grow for a new calibration."""
_MAX_AGE_MS: Final = 600_000
"""Milliseconds after which new minutes are used in any case."""
_WAIT_SECONDS: Final = 5.0
"""Maximum seconds that requests wait for a calibration if there is an earlier model."""
_MAX_LOAD: Final = 0.1
"""Share of a processor that repeated calibrations of all sites take together."""
_FREE_SECONDS: Final = 5.0
"""CPU time of one calibration of each site, all together, up to which no site waits for its next one."""
_MAX_CONCURRENT: Final = 2
"""Maximum number of calibrations at once: each may take 200 MB and, for a minute, a processor."""
_MAX_DEVICES: Final = 800
"""Maximum number of devices whose minutes are compared; of more, every second or third is chosen."""
_SAMPLED_MS: Final = 900_000
"""Milliseconds of readings that are used of so many devices."""
_MINUTE_MS: Final = 60_000


class _Inputs(NamedTuple):
    """Stored inputs of a model, without the readings in memory."""

    geometry: SiteGeometry
    stored: list[DeviceMinute]
    survey: list[StoredSurveyPoint]


class _Entry(NamedTuple):
    """Model of a site, and the state of its inputs when it was built."""

    model: SiteModel
    minute_count: int
    built_at: int
    seconds: float
    """CPU time of the calibration."""


class _CpuTimer:
    """Runs the parts of a calibration in threads, one after the other, and adds up their CPU time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def run(
        self, work: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs
    ) -> Result:
        """Run a function in a thread and return its result."""

        def measure() -> Result:
            started = thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                self.seconds += thread_time() - started

        return await asyncio.to_thread(measure)


class SiteModels:
    """Keeps the model of each site that positions were asked for.

    A site with hundreds of anchors takes a minute to calibrate. Until the new model is complete, positions
    come from the one before; and the longer calibrations took, the later the next ones begin. Changes of
    places and survey points do not wait.
    """

    def __init__(
        self,
        database: Database,
        readings: ReadingStore,
        *,
        free_seconds: float = _FREE_SECONDS,
        now: Now,
    ) -> None:
        self._database = database
        self._readings = readings
        self._free_seconds = free_seconds
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._now = now
        self._entries: dict[int, _Entry] = {}
        self._builds: dict[int, asyncio.Task[_Entry | None]] = {}

    async def get(self, site: int, revision: int, *, first_wait: float | None = None) -> SiteModel | None:
        """Return a current model of a site. Return None if the site has too few anchors, or was deleted.

        `revision` is the revision of the site, which changes with its floors, places and survey points. Raise
        `CalibrationPending` if there is no model yet after `first_wait` seconds.
        """
        while True:
            before = self._entries.get(site)
            if before is not None and self._is_current(before, site, revision):
                return before.model
            build = self._start_build(site)
            # A client that leaves does not cancel the build: others wait for it.
            await asyncio.wait({build}, timeout=_choose_wait(before, first_wait))
            if not build.done():
                if before is None:
                    raise CalibrationPending(
                        "the site is being calibrated for the first time, which takes minutes with hundreds"
                        " of anchors; try again in a minute"
                    )
                return before.model
            entry = build.result()
            if entry is None:
                return None
            if entry.model.geometry.revision >= revision:
                return entry.model  # else the build began before the change

    def _start_build(self, site: int) -> asyncio.Task[_Entry | None]:
        """Start to build the model of a site, or return the task that does it already."""
        build = self._builds.get(site)
        if build is None:
            build = self._builds[site] = asyncio.create_task(self._build(site), name="positions.calibrate")
            build.add_done_callback(lambda _: self._builds.pop(site, None))
        return build

    def forget(self, site: int) -> None:
        """Forget the model of a site that was deleted, and the one that is being built."""
        self._entries.pop(site, None)
        self._builds.pop(site, None)

    def _is_current(self, entry: _Entry, site: int, revision: int) -> bool:
        if entry.model.geometry.revision != revision:
            return False
        count, before = self._readings.count_minutes(site), entry.minute_count
        age = self._now() - entry.built_at
        if 0 <= age < self._compute_pause(entry) * 1000:
            return True
        return count == before or (count < before * _GROWTH + 1 and age < _MAX_AGE_MS)

    def _compute_pause(self, entry: _Entry) -> float:
        """Return the seconds for which a site keeps its model although there are new readings.

        All sites together calibrate for `_MAX_LOAD` of the time. With the square root, a large site waits
        longer than a small one, but not as much as its calibration takes longer.
        """
        seconds = [each.seconds for each in self._entries.values()]
        if sum(seconds) < self._free_seconds:
            return 0.0
        return sqrt(entry.seconds) * sum(map(sqrt, seconds)) / _MAX_LOAD

    async def _build(self, site: int) -> _Entry | None:
        """Build the model of a site, and keep it unless the site was deleted meanwhile."""
        async with self._slots:
            entry = await self._calibrate(site)
        if entry is None or self._builds.get(site) is not asyncio.current_task():
            self._entries.pop(site, None)
            return None
        self._entries[site] = entry
        return entry

    async def _calibrate(self, site: int) -> _Entry | None:
        """Calibrate a site with all inputs that there are now. Return None if it has too few anchors."""
        count, now, timer = self._readings.count_minutes(site), self._now(), _CpuTimer()
        try:
            inputs = await self._database.read(_load_inputs, site)
        except UnknownSite:  # it was deleted after its revision was read, maybe by another process
            return None
        if len(inputs.geometry.anchors) < MIN_ANCHORS:
            return None
        new = await self._list_minutes(site, {each.device for each in inputs.geometry.anchors}, timer)
        minutes = await timer.run(select_fingerprints, [*new, *inputs.stored])
        devices = {each.device for each in minutes} | {each.device for each in inputs.survey}
        devices |= self._readings.list_devices(site)
        products = await self._database.read(survey_store.load_products, devices)
        survey = [
            SurveyedPlace(each.device, each.floor, each.x, each.y, each.levels) for each in inputs.survey
        ]
        model = await timer.run(SiteModel, inputs.geometry, minutes, survey, products)
        if minutes != inputs.stored:
            await self._database.write(survey_store.save_calibration, site, minutes, now=now)
        return _Entry(model, count, now, timer.seconds)

    async def _list_minutes(
        self, site: int, anchors: AbstractSet[int], timer: _CpuTimer
    ) -> list[DeviceMinute]:
        """Return the minutes of all devices on a site; of thousands, the newest minutes of some."""
        devices = self._readings.list_devices(site)
        if len(devices) <= _MAX_DEVICES:
            return await timer.run(self._readings.take_snapshot(site).list_minutes)
        others = sorted(devices - anchors)
        # A whole number of times: each calibration has other devices only if devices come or go.
        chosen = [*sorted(devices & anchors), *others[:: -(-len(others) // _MAX_DEVICES)]]
        now, minutes = self._now(), []
        for device in chosen:
            await asyncio.sleep(0)  # each takes a millisecond
            readings = self._readings.list_readings(
                device, now - _SAMPLED_MS, now, arrived_since=now - _SAMPLED_MS
            )
            minutes += [
                DeviceMinute(device, end - _MINUTE_MS, dict(levels))
                for end, levels in split_into_steps(readings, _MINUTE_MS)
            ]
        return minutes


def _choose_wait(before: _Entry | None, first_wait: float | None) -> float | None:
    """Return the seconds for which a request waits for a calibration; None if there is no limit."""
    if before is None:
        return first_wait
    # It would be in vain if the last calibration took longer.
    return _WAIT_SECONDS if before.seconds < _WAIT_SECONDS else 0.0


def _load_inputs(connection: Connection, site: int) -> _Inputs:
    return _Inputs(
        load_site_geometry(connection, site),
        survey_store.load_calibration(connection, site),
        survey_store.load_points(connection, site),
    )
