"""Forecast of the disk after a million reports, compared with the disk itself."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.storage import store
from meshfleet.service.storage.monitor import assess_storage
from meshfleet.settings import Settings
from tests.simulated_samples import REPORTS_PER_DAY, SimulatedSamples

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.storage.monitor import StorageStatus

DEVICES, DAYS, MORE_DAYS = 100, 10, 2
"""The size of a new database grows unusually fast on the first days. The forecast uses the last seven."""

pytestmark = [pytest.mark.anyio, pytest.mark.part("long"), pytest.mark.rule("rest-222")]


def measure_disk(database: Database, folder: Path) -> int:
    """Return the bytes on disk, by other means than the service."""
    if database.is_sqlite:
        return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    return database.read_now(load_database_size)


def load_database_size(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())


async def write_days(samples: SimulatedSamples, database: Database, folder: Path, days: int) -> StorageStatus:
    """Write days, with a measurement at the end of each. Return the last one."""
    for _ in range(days):
        await samples.write_day()
        status = database.read_now(assess_storage, Settings(data=folder), now=samples.now - 1)
        database.write_now(store.save_sizes, status.measurement.sizes, now=samples.now - 1)
    return database.read_now(assess_storage, Settings(data=folder), now=samples.now)


@pytest.mark.both_databases
async def test_the_growth_of_the_disk_is_foreseen(database: Database, tmp_path: Path) -> None:
    assert DEVICES * DAYS * REPORTS_PER_DAY > 1_000_000
    with closing(SimulatedSamples(database, tmp_path, DEVICES)) as samples:
        status = await write_days(samples, database, tmp_path, DAYS)
        before = measure_disk(database, tmp_path)
        await write_days(samples, database, tmp_path, MORE_DAYS)
        growth = measure_disk(database, tmp_path) - before
    assert status.forecast.total_growth is not None
    assert status.forecast.total_growth * MORE_DAYS == pytest.approx(growth, rel=0.2)
