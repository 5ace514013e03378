"""Calibrated models of all sites: builds them in threads, and again when their inputs have changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import UnknownSite
from meshfleet.service.positions import survey_store
from meshfleet.service.positions.fingerprints import select_fingerprints
from meshfleet.service.positions.site_model import MIN_ANCHORS, SiteModel, SurveyedPlace
from meshfleet.service.sites.places import load_site_geometry

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.positions.reading_store import DeviceMinute, ReadingStore
    from meshfleet.service.positions.survey_store import StoredSurveyPoint
    from meshfleet.service.sites.geometry import SiteGeometry

_GROWTH: Final = 1.15
"""Factor by which the number of received minutes must grow for a new calibration."""
_MAX_AGE_MS: Final = 600_000
"""Milliseconds after which new minutes are used in any case."""


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


class SiteModels:
    """Keeps the model of each site that positions were asked for."""

    def __init__(self, database: Database, readings: ReadingStore, *, now: Now) -> None:
        self._database = database
        self._readings = readings
        self._now = now
        self._entries: dict[int, _Entry] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    async def get(self, site: int, revision: int) -> SiteModel | None:
        """Return a current model of a site. Return None if the site has too few anchors, or was deleted.

        `revision` is the revision of the site, which changes with its floors, places and survey points.
        """
        lock = self._locks.setdefault(site, asyncio.Lock())
        async with lock:
            entry = self._entries.get(site)
            if entry is None or not self._is_current(entry, site, revision):
                entry = await self._build(site)
                if entry is None:
                    self._entries.pop(site, None)
                    return None
                self._entries[site] = entry
            return entry.model

    def forget(self, site: int) -> None:
        """Forget the model of a site that was deleted."""
        self._entries.pop(site, None)

    def _is_current(self, entry: _Entry, site: int, revision: int) -> bool:
        if entry.model.geometry.revision != revision:
            return False
        count, before = self._readings.count_minutes(site), entry.minute_count
        is_old = self._now() - entry.built_at >= _MAX_AGE_MS
        return count == before or (count < before * _GROWTH + 1 and not is_old)

    async def _build(self, site: int) -> _Entry | None:
        count, now = self._readings.count_minutes(site), self._now()
        try:
            inputs = await self._database.read(_load_inputs, site)
        except UnknownSite:  # it was deleted after its revision was read, maybe by another process
            return None
        if len(inputs.geometry.anchors) < MIN_ANCHORS:
            return None
        snapshot = self._readings.take_snapshot()
        minutes = await asyncio.to_thread(
            lambda: select_fingerprints([*snapshot.list_minutes(site), *inputs.stored])
        )
        devices = {each.device for each in minutes} | {each.device for each in inputs.survey}
        devices |= self._readings.list_devices(site)
        products = await self._database.read(survey_store.load_products, devices)
        survey = [
            SurveyedPlace(each.device, each.floor, each.x, each.y, each.levels) for each in inputs.survey
        ]
        model = await asyncio.to_thread(SiteModel, inputs.geometry, minutes, survey, products)
        if minutes != inputs.stored:
            await self._database.write(survey_store.save_calibration, site, minutes, now=now)
        return _Entry(model, count, now)


def _load_inputs(connection: Connection, site: int) -> _Inputs:
    return _Inputs(
        load_site_geometry(connection, site),
        survey_store.load_calibration(connection, site),
        survey_store.load_points(connection, site),
    )
