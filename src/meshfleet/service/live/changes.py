"""What people change, in whatever process: the audit log is followed (auth-26)."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from meshfleet.db.tables import audit
from meshfleet.errors import FleetError, MalformedId
from meshfleet.service.live.devices import GatewayNews
from meshfleet.wire.ids import mac_number, mac_of, parse_device_id

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.live.devices import Devices
    from meshfleet.service.live.guard import Guard
    from meshfleet.service.live.hub import Hub
    from meshfleet.service.live.jobs import Jobs

_log = logging.getLogger(__name__)

_RECENT: Final = 200
"""Numbers among which rows of transactions that run side by side may still appear."""

_MOST: Final = 10_000
"""Rows that are read at once; more changes than that in a second are not told one by one."""

_SKEW: Final = 2000
"""Milliseconds by which the clocks of processes may differ."""

_GATEWAYS: Final = {
    "gateway.claim": "claimed",
    "gateway.register": "claimed",
    "gateway.release": "released",
    "device.rename": "renamed",
}
_JOB: Final = re.compile(r"job-([1-9][0-9]{0,17})")
_ACCESS: Final = ("auth.logout", "user.", "api-key.")
"""How actions begin that may take something away from somebody."""


class _Row(NamedTuple):
    id: int
    time: int
    action: str
    target: str


class Changes:
    """Follows the audit log while somebody listens."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        hub: Hub,
        devices: Devices,
        jobs: Jobs,
        guard: Guard,
        database: Database,
        *,
        look: float,
    ) -> None:
        """`look` is how many seconds pass between two looks at the audit log."""
        self._hub = hub
        self._devices = devices
        self._jobs = jobs
        self._guard = guard
        self._database = database
        self._pause = look
        self._newest: int | None = None
        self._seen: set[int] = set()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await asyncio.sleep(self._pause)
            if self._hub.since is None:
                self._newest = None
                self._seen.clear()
                continue
            try:
                await self._look(self._hub.since)
            except (FleetError, DBAPIError) as exc:
                _log.warning("changes cannot be told yet: %s", type(exc).__name__)

    async def _look(self, since: int) -> None:
        rows = await self._database.read(_read, self._newest)
        new = [row for row in rows if row.id not in self._seen and row.time >= since - _SKEW]
        if len(rows) == _MOST and new and new[0] is rows[0]:
            self._hub.publish_loss("device", "more was changed than can be told")
            self._hub.publish_loss("gateway", "more was changed than can be told")
        for row in new:
            self._tell(row)
        self._newest = max((row.id for row in rows), default=self._newest or 0)
        self._seen = {row.id for row in rows if row.id > self._newest - _RECENT}

    def _tell(self, row: _Row) -> None:
        if row.action.startswith(_ACCESS):
            self._guard.suspect()
        elif (job := _JOB.fullmatch(row.target)) is not None:
            self._jobs.changed([int(job[1])], [])
        elif row.action == "label.remove":
            self._hub.publish_loss("device", "a label was removed from all devices")
        elif (number := _number(row.target)) is not None:
            if row.action == "device.forget":
                self._devices.touch_forgotten(number)
            else:
                self._devices.touch([number])
            if row.action in _GATEWAYS:
                self._devices.touch_gateways({number: GatewayNews(_GATEWAYS[row.action])})


def _number(target: str) -> int | None:
    try:
        return mac_number(mac_of(parse_device_id(target)))
    except MalformedId:
        return None


def _read(connection: Connection, newest: int | None) -> list[_Row]:
    """The newest rows, if there are too many; those that may have been seen already are among them."""
    query = select(audit.c.id, audit.c.time, audit.c.action, audit.c.target)
    query = query.order_by(audit.c.id.desc()).limit(_MOST)
    if newest is not None:
        query = query.where(audit.c.id > newest - _RECENT)
    return [_Row(*row) for row in connection.execute(query)][::-1]
