"""Measures the size of the data once an hour, for the metrics and for the forecast of later days."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.service.storage import store
from meshfleet.service.storage.forecast import SampleAge, find_longest_retention, forecast_storage
from meshfleet.service.storage.sizes import measure_files, measure_tables

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.storage.forecast import Forecast
    from meshfleet.service.storage.sizes import Measurement
    from meshfleet.settings import Retention, Settings

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 3600.0
"""Seconds between two measurements. The last one of each day is kept for the forecast."""


class StorageStatus(NamedTuple):
    """Measured size of the data, with its time and a forecast."""

    measured_at: int
    measurement: Measurement
    forecast: Forecast


def assess_storage(connection: Connection, settings: Settings, *, now: int) -> StorageStatus:
    """Measure the size of the data now, and forecast its growth from the sizes of earlier days."""
    is_sqlite = connection.dialect.name == "sqlite"
    measurement = measure_files(settings.data) if is_sqlite else measure_tables(connection)
    age = SampleAge(store.load_oldest_sample_day(connection), find_longest_retention(settings.retention))
    return StorageStatus(
        now, measurement, forecast_storage(measurement, store.load_sizes(connection), age, now=now)
    )


class StorageMonitor:
    """Measures the size of the data of a service."""

    def __init__(self, database: Database, settings: Settings, now: Now) -> None:
        self._database = database
        self._settings = settings
        self._now = now
        self.newest: StorageStatus | None = None
        """Newest measurement; None before the first one."""

    def set_retention(self, retention: Retention) -> None:
        """Use changed retention periods for the forecast, from the next measurement on."""
        self._settings = replace(self._settings, retention=retention)

    async def measure(self) -> StorageStatus:
        """Measure the size of the data now, and store it as `newest`."""
        status = await self._database.read(assess_storage, self._settings, now=self._now())
        self.newest = status
        return status

    async def run(self) -> None:
        """Measure and store the sizes at once and then every hour, until canceled.

        A failure is only logged: a missing forecast must not stop the service.
        """
        while True:
            try:
                status = await self.measure()
                await self._database.write(store.save_sizes, status.measurement.sizes, now=status.measured_at)
            except Exception as exc:  # noqa: BLE001 # see above
                _log.warning("the size of the data could not be measured: %s", type(exc).__name__)
            await asyncio.sleep(_PAUSE_SECONDS)
