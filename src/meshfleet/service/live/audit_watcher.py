"""Polls the audit log for changes that any process made, to publish them as live events (auth-26)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError

from meshfleet.db.tables import audit
from meshfleet.errors import FleetError
from meshfleet.errors.protocol import MalformedId
from meshfleet.protocol.ids import mac_to_int, parse_device_id, to_mac
from meshfleet.service.alarms.views import ALARM_ID
from meshfleet.service.live.device_events import DeviceEvents, GatewayChange
from meshfleet.service.live.filters import JOB_ID

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.live.alarm_events import AlarmEvents
    from meshfleet.service.live.hub import EventHub
    from meshfleet.service.live.job_events import JobEvents
    from meshfleet.service.live.reauthorization import Reauthorizer

_log = logging.getLogger(__name__)

_RECENT_IDS: Final = 200
"""Number of the newest row ids of the audit log that every poll reads again.

A concurrent transaction may commit a row with a lower id than rows that were read before.
"""

_MAX_ROWS: Final = 10_000
"""Maximum number of audit log rows read per poll. If there are more, subscribers get a `resync`."""

_MAX_SKEW_MS: Final = 2000
"""Maximum milliseconds by which the clocks of two processes that write the audit log differ."""

_GATEWAY_CAUSES: Final = {
    "gateway.claim": "claimed",
    "gateway.register": "claimed",
    "gateway.release": "released",
    "device.rename": "renamed",
}
_ACCESS_ACTIONS: Final = ("auth.logout", "user.", "api-key.")
"""Prefixes of audit log actions that may revoke access."""


class _AuditEntry(NamedTuple):
    """Row of the audit log."""

    id: int
    time: int
    """Unix time in milliseconds of the change."""
    action: str
    target: str


class AuditWatcher:
    """Polls the audit log while there are subscribers, and marks changed devices, gateways and jobs."""

    def __init__(  # noqa: PLR0913, PLR0917 # the targets of the changes
        self,
        hub: EventHub,
        devices: DeviceEvents,
        jobs: JobEvents,
        alarms: AlarmEvents,
        reauthorizer: Reauthorizer,
        database: Database,
        *,
        poll_interval: float,
    ) -> None:
        """Create a watcher that polls the audit log every `poll_interval` seconds."""
        self._hub = hub
        self._devices = devices
        self._jobs = jobs
        self._alarms = alarms
        self._reauthorizer = reauthorizer
        self._database = database
        self._poll_interval = poll_interval
        self._newest: int | None = None
        """Highest row id of the audit log that was read; None before the first poll."""
        self._seen: set[int] = set()
        """Recent row ids that were read, because the next poll reads these rows again."""

    async def run(self) -> None:
        """Poll the audit log until canceled."""
        while True:
            await asyncio.sleep(self._poll_interval)
            if self._hub.publishing_since is None:
                self._newest = None
                self._seen.clear()
                continue
            try:
                await self._poll(self._hub.publishing_since)
            except (FleetError, DBAPIError) as exc:
                _log.warning("audit log could not be read for live events: %s; retrying", type(exc).__name__)

    async def _poll(self, since: int) -> None:
        """Read new rows of the audit log, and mark what they changed.

        `since` is the Unix time in milliseconds since when live events are published; older rows are ignored.
        """
        rows = await self._database.read(_load_recent_entries, self._newest)
        new = [row for row in rows if row.id not in self._seen and row.time >= since - _MAX_SKEW_MS]
        if len(rows) == _MAX_ROWS and new and new[0] is rows[0]:
            self._hub.publish_loss("device", "too many changes at once")
            self._hub.publish_loss("gateway", "too many changes at once")
        for row in new:
            self._publish_change(row)
        self._newest = max((row.id for row in rows), default=self._newest or 0)
        self._seen = {row.id for row in rows if row.id > self._newest - _RECENT_IDS}

    def _publish_change(self, row: _AuditEntry) -> None:
        """Mark the device, gateway or job that an audit log row names as changed, or recheck all access."""
        if row.action.startswith(_ACCESS_ACTIONS):
            self._reauthorizer.recheck_all()
        elif (job := JOB_ID.fullmatch(row.target)) is not None:
            self._jobs.mark_changed([int(job[1])], [])
        elif (alarm := ALARM_ID.fullmatch(row.target)) is not None:
            self._alarms.mark_changed([int(alarm[1])])
        elif row.action == "label.remove":
            self._hub.publish_loss("device", "a label was removed from all devices")
        elif row.action == "site.delete":
            self._hub.publish_loss("device", "a site was deleted, and the places of devices on it")
        elif (number := _parse_target(row.target)) is not None:
            if row.action == "device.forget":
                self._devices.mark_forgotten(number)
            else:
                self._devices.mark_changed([number])
            if row.action in _GATEWAY_CAUSES:
                self._devices.mark_gateways_changed({number: GatewayChange(_GATEWAY_CAUSES[row.action])})


def _parse_target(target: str) -> int | None:
    """Return the MAC as an integer if the target of an audit log row is a device id, else None."""
    try:
        return mac_to_int(to_mac(parse_device_id(target)))
    except MalformedId:
        return None


def _load_recent_entries(connection: Connection, newest: int | None) -> list[_AuditEntry]:
    """Load the newest audit log rows in ascending order of ids. `newest` is the highest id read so far.

    The 200 ids up to `newest` are read again: a row with such an id may have been committed only now.
    """
    query = select(audit.c.id, audit.c.time, audit.c.action, audit.c.target)
    query = query.order_by(audit.c.id.desc()).limit(_MAX_ROWS)
    if newest is not None:
        query = query.where(audit.c.id > newest - _RECENT_IDS)
    return [_AuditEntry(*row) for row in connection.execute(query)][::-1]
