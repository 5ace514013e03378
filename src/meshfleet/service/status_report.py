"""Reports to systemd when the service is ready, its status, and that it is alive."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.devices import summary

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.gateways.traffic import GatewayTraffic
    from meshfleet.service.ingest.commit_timer import CommitTimer
    from meshfleet.service.readiness import Readiness
    from meshfleet.service.systemd import SystemdNotifier

_log = logging.getLogger(__name__)

_START_POLL_SECONDS: Final = 0.5
"""Seconds between two checks whether the service is ready for the first time."""

_STATUS_SECONDS: Final = 10.0
"""Seconds between two status lines."""


class StatusReporter:
    """Sends readiness, status and watchdog messages of a running service."""

    def __init__(
        self,
        notifier: SystemdNotifier,
        readiness: Readiness,
        database: Database,
        *,
        traffic: GatewayTraffic,
        commit_timer: CommitTimer,
    ) -> None:
        self._notifier = notifier
        self._readiness = readiness
        self._database = database
        self._traffic = traffic
        self._commit_timer = commit_timer

    async def run(self) -> None:
        """Send messages until canceled. Return at once if the service was not started by systemd."""
        if not self._notifier.is_enabled:
            return
        try:
            await self._wait_until_ready()
            async with asyncio.TaskGroup() as tasks:
                # In a task of its own: a slow database must not delay the watchdog.
                tasks.create_task(self._notifier.run_watchdog(self._commit_timer.is_progressing))
                tasks.create_task(self._run_status())
        finally:
            self._notifier.send("STOPPING=1")

    async def _wait_until_ready(self) -> None:
        """Wait until the service is ready. systemd waits too: a restart would not bring a broker back."""
        while text := await self._describe_problems():
            self._notifier.send_starting(text)
            await asyncio.sleep(_START_POLL_SECONDS)
        self._notifier.send_ready()

    async def _run_status(self) -> None:
        """Send the status line to systemd periodically, until canceled."""
        while True:
            self._notifier.send_status(await self._describe_problems() or await self._describe_fleet())
            await asyncio.sleep(_STATUS_SECONDS)

    async def _describe_problems(self) -> str:
        """Return the reasons why the service is not ready as text; empty if it is ready."""
        try:
            reasons = await self._readiness.list_reasons(self._database)
        except Exception:  # noqa: BLE001 # logged, and the service goes on
            _log.exception("cannot determine whether the service is ready")
            return "Cannot determine whether the service is ready."
        return f"Not ready: {' '.join(each.text for each in reasons)}" if reasons else ""

    async def _describe_fleet(self) -> str:
        """Return the numbers of devices, gateways and reports per second as text."""
        try:
            connected, disconnected = await self._database.read(summary.count_connected_devices)
        except (DatabaseUnavailable, DBAPIError):
            return "The database does not respond."
        gateways, rate = len(self._traffic.recent_gateways()), self._traffic.reports_per_second()
        return f"{connected} of {connected + disconnected} devices, {gateways} gateways, {rate:.3g} reports/s"
