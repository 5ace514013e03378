"""Follows all devices that anchors receive: publishes their positions, and stores their visits to zones."""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from sqlalchemy.exc import DBAPIError

from meshfleet.errors import DatabaseUnavailable
from meshfleet.rest.sites import format_site_id
from meshfleet.service.positions import visit_store
from meshfleet.service.positions.current_positions import (
    CLOCK_SLACK_MS,
    MIN_ANCHORS,
    CurrentPosition,
    UsedReadings,
)
from meshfleet.service.positions.reading_steps import choose_site
from meshfleet.service.positions.reading_store import average_readings
from meshfleet.service.positions.zone_presence import ZoneChange, ZonePresence

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from meshfleet.db import Database
    from meshfleet.positioning.estimate import Estimate
    from meshfleet.service.clock import Now
    from meshfleet.service.positions.device_motion import DeviceMotion, DeviceStep
    from meshfleet.service.positions.positions import PositionFinder
    from meshfleet.service.positions.reading_store import AnchorReading
    from meshfleet.service.positions.visit_store import ZoneArea

_log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 2.0
"""Seconds between two looks at new readings."""
_WINDOW_MS: Final = 60_000
"""Maximum age of readings that are used."""
_MAX_DEVICES: Final = 1_000
"""Maximum number of devices in one look; the others wait for the next one."""
_MAX_LOAD: Final = 0.25
"""Share of the time that looks take at most: with more devices, each is located less often (rest-262)."""
_DEVICES_PER_SLICE: Final = 100
"""Number of devices after which other tasks of the event loop get their turn."""
_CLEANUP_MS: Final = 60_000
"""Milliseconds between two deletions of visits whose retention has ended."""

FREQUENT_STEP_MS: Final = 3_000
"""Length of a step of a device with frequent readings."""
_FREQUENT_INTERVALS: Final = 5
_MIN_INTERVALS: Final = 3
"""Readings are frequent if there are some in at least this many of the last intervals."""
_SETTLED_MS: Final = 2_000
"""Age of the newest reading from which all anchors have reported that received the same transmission."""


_NOTHING_USED: Final = UsedReadings(0, 0, 0, is_frequent=True)


class TrackedPosition(NamedTuple):
    """New position of a device."""

    device: int
    site: int
    time: int
    estimate: Estimate


class PositionSubscriber(Protocol):
    """Receiver of positions, and of entries into zones and departures after they were stored."""

    def on_positions(self, positions: Sequence[TrackedPosition]) -> None:
        """Handle new positions of devices."""

    def on_zone_changes(self, changes: Sequence[ZoneChange]) -> None:
        """Handle devices that entered or left zones."""


class PositionTracker:
    """Task that follows devices while there are sites. Without sites it does nothing, and loads no numpy."""

    def __init__(
        self,
        database: Database,
        positions: PositionFinder,
        subscriber: PositionSubscriber,
        *,
        retention_ms: int | None,
        now: Now,
    ) -> None:
        self._database = database
        self._positions = positions
        self._subscriber = subscriber
        self.retention_ms = retention_ms
        """Milliseconds for which ended visits are kept; None keeps them forever."""
        self._now = now
        self._presence = ZonePresence()
        self._motion: DeviceMotion | None = None
        self._waiting: dict[int, None] = {}
        """Devices with readings that are not used yet, those that wait longest first."""
        self._used: dict[int, UsedReadings] = {}
        """Readings of the last step of each device."""
        self._cleaned_at = 0
        self._seconds = 0.0
        """Seconds that the last look took, without waiting for a calibration or the database."""

    async def restore(self) -> None:
        """Load the devices that were in zones when the previous process ended. Call this before `run`."""
        self._presence.restore(await self._database.read(visit_store.load_stays))

    async def run(self) -> None:
        """Follow devices until canceled."""
        while True:
            await asyncio.sleep(max(_TICK_SECONDS, self._seconds * (1 / _MAX_LOAD - 1)))
            self._seconds = 0.0
            try:
                await self.track()
                await self._clean_up()
            except (DatabaseUnavailable, DBAPIError) as exc:
                _log.warning("visits to zones cannot be stored (%s); trying again", type(exc).__name__)

    async def track(self) -> None:
        """Locate all devices with new readings, publish their positions, and store their visits to zones."""
        self._waiting |= dict.fromkeys(self._positions.readings.take_updated_devices())
        if not self._waiting:
            return
        chosen = list(islice(self._waiting, _MAX_DEVICES))
        for device in chosen:
            del self._waiting[device]
        started = monotonic()
        by_site = await self._collect_steps(chosen)
        self._seconds += monotonic() - started
        if not by_site:
            return
        areas = await self._database.read(visit_store.load_areas)
        self._presence.keep_zones({each.zone for each in areas})
        changes: list[ZoneChange] = []
        for site, steps in by_site.items():
            try:
                changes += await self._follow(site, steps, [each for each in areas if each.site == site])
            except (DatabaseUnavailable, DBAPIError):
                raise
            except Exception:  # noqa: BLE001 # one site must not end the positions of all others, or the service
                _log.exception("%s: positions cannot be computed: internal error", format_site_id(site))
        if changes:
            written = await self._database.write(visit_store.write_changes, changes)
            self._presence.apply(written)
            self._presence.forget(each.stay for each in changes if each not in written)
            self._subscriber.on_zone_changes(written)

    async def _collect_steps(self, devices: Collection[int]) -> dict[int, list[DeviceStep]]:
        """Return the next step of each device that has enough new readings, by site."""
        by_site: dict[int, list[DeviceStep]] = {}
        now = self._now()
        for number, device in enumerate(devices):
            if number % _DEVICES_PER_SLICE == _DEVICES_PER_SLICE - 1:
                await asyncio.sleep(0)
            readings = self._positions.readings.list_readings(
                device, now - _WINDOW_MS, now + CLOCK_SLACK_MS, arrived_since=now - _WINDOW_MS
            )
            found = self._choose_step(device, readings, now)
            if found is not None:
                by_site.setdefault(found[0], []).append(found[1])
        return by_site

    def _choose_step(
        self, device: int, readings: Sequence[AnchorReading], now: int
    ) -> tuple[int, DeviceStep] | None:
        """Return the site and the next step of a device; None if it must wait for readings."""
        used = self._used.get(device, _NOTHING_USED)
        if used.newest > now + CLOCK_SLACK_MS:  # the clock was set back
            used = _NOTHING_USED
        is_frequent = _are_frequent(readings)
        is_late = not (is_frequent or used.is_frequent) and used.reading_count < sum(
            used.since < each.time <= used.newest for each in readings
        )
        if not readings or (readings[-1].time <= used.newest and not is_late):
            return None
        newest = readings[-1].time
        since = max(used.since if is_late else used.newest, now - _WINDOW_MS)
        if is_frequent:
            since = max(since, newest - FREQUENT_STEP_MS)
        new = [each for each in readings if each.time > since]
        is_early = now - newest < _SETTLED_MS
        if is_frequent:
            is_early &= newest - used.newest < FREQUENT_STEP_MS
        found = choose_site(average_readings(new), self._positions.readings.anchors)
        if is_early or found is None:
            self._waiting[device] = None
            return None
        site, levels = found
        if not is_frequent and len(levels) < MIN_ANCHORS and now - new[0].time < _WINDOW_MS // 2:
            self._waiting[device] = None
            return None
        self._used[device] = UsedReadings(since, newest, len(new), is_frequent)
        seconds = FREQUENT_STEP_MS / 1000 if is_frequent else _WINDOW_MS / 1000
        # Imported with numpy, which most fleets never need.
        step: DeviceStep = import_module("meshfleet.service.positions.device_motion").DeviceStep(
            device, newest, levels, seconds, is_frequent, is_late
        )
        return site, step

    async def _follow(
        self, site: int, steps: Sequence[DeviceStep], areas: Sequence[ZoneArea]
    ) -> list[ZoneChange]:
        """Publish the positions of devices on a site. Return their changes of zones."""
        model = await self._positions.wait_for_model(site)
        if model is None:
            return []
        if self._motion is None:
            motion: DeviceMotion = import_module("meshfleet.service.positions.device_motion").DeviceMotion()
            self._motion = motion
        started = monotonic()
        followed = await asyncio.to_thread(self._motion.follow, model, steps, areas)
        self._seconds += monotonic() - started
        self._positions.current.keep(
            CurrentPosition(each.device, self._used[each.device], model, each.located) for each in followed
        )
        self._subscriber.on_positions(
            [TrackedPosition(each.device, site, each.time, each.located.estimate) for each in followed]
        )
        return [
            change
            for each in followed
            for change in self._presence.find_changes(each.device, each.time, each.zone_shares)
        ]

    async def _clean_up(self) -> None:
        """Delete visits whose retention has ended, and forget devices without new readings, now and then."""
        now = self._now()
        if 0 <= now - self._cleaned_at < _CLEANUP_MS:
            return
        self._cleaned_at = now
        self._positions.current.drop_old(now)
        if self._motion is not None:
            self._motion.keep_sites(self._positions.sites)
        self._used = {device: used for device, used in self._used.items() if used.newest > now - _WINDOW_MS}
        self._presence.keep_stays((await self._database.read(visit_store.load_stays)).keys())
        if self.retention_ms is not None:
            await self._database.write(visit_store.delete_ended_visits, now - self.retention_ms)


def _are_frequent(readings: Sequence[AnchorReading]) -> bool:
    """Return whether the last readings of a device are frequent enough to follow it while it moves."""
    intervals = {
        (readings[-1].time - each.time) // FREQUENT_STEP_MS
        for each in readings
        if readings[-1].time - each.time < _FREQUENT_INTERVALS * FREQUENT_STEP_MS
    }
    return len(intervals) >= _MIN_INTERVALS
