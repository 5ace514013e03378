"""Publishes alarms as live events, in their REST representation."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.errors import FleetError
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.service.alarms import views
from meshfleet.service.live.event import NO_GATEWAY

if TYPE_CHECKING:
    from collections.abc import Collection

    from meshfleet.db import Database
    from meshfleet.rest.alarms import Alarm
    from meshfleet.service.clock import Now
    from meshfleet.service.live.hub import EventHub

_log = logging.getLogger(__name__)

_GATHER_SECONDS: Final = 0.25
"""Seconds for which changes are collected: an alarm is published at most four times per second (rest-274)."""
_RETRY_SECONDS: Final = 1.0
_MAX_ALARMS: Final = 200
"""Maximum number of alarms published at once; if there are more, subscribers get a `resync`."""


class AlarmEvents:
    """Publishes alarms that callers have marked as changed. Runs in the event loop of the hub."""

    def __init__(self, hub: EventHub, database: Database, now: Now) -> None:
        self._hub = hub
        self._database = database
        self._now = now
        self._interest = hub.interest["alarm"]
        self._changed: set[int] = set()
        self._wakeup = asyncio.Event()

    def mark_changed(self, numbers: Collection[int]) -> None:
        """Mark alarms as changed. They are published if there is a filter that may match them."""
        if self._interest and numbers:
            self._changed.update(numbers)
            self._wakeup.set()

    async def run(self) -> None:
        """Load and publish marked alarms until canceled."""
        while True:
            await self._wakeup.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._wakeup.clear()
            try:
                await self._publish_changed()
            except (FleetError, DBAPIError) as exc:
                _log.warning("alarms could not be loaded for live events: %s", type(exc).__name__)
                self._hub.publish_loss("alarm", "the database is unavailable")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _publish_changed(self) -> None:
        changed, self._changed = self._changed, set()
        if len(changed) > _MAX_ALARMS:
            self._hub.publish_loss("alarm", "too many changes at once")
            return
        for body in await self._database.read(views.load_alarms, changed, now=self._now()):
            self._hub.publish("alarm", body, gateway=_find_gateway(body))


def _find_gateway(body: Alarm) -> int:
    """Return the gateway by which filters select an alarm."""
    mac = body.cause.params.get("gateway")
    return mac_to_int(Mac(mac)) if mac else NO_GATEWAY
