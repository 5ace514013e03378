"""Programs note that they run jobs; only a time in which none did moves clocks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.link import Address, Options
from meshfleet.service.jobs.engine import uptime
from meshfleet.service.jobs.engine.runner import Runner
from meshfleet.service.mqtt.outside import Outside
from meshfleet.service.requests.asking import Asking
from meshfleet.wire.topics import Topics
from tests.cli.outside import PATIENCE
from tests.service.jobs.engine.world import START

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.broker import Batch
    from meshfleet.db import Database


@pytest.fixture
def database(sqlite_database: Database) -> Iterator[Database]:
    """One is enough: the statements are plain."""
    yield sqlite_database
    sqlite_database.close()


class _Deaf:
    """Takes no reports."""

    async def take(self, batch: Batch) -> None:
        """Let them go."""


def _alive_at(connection: Connection) -> int | None:
    found: int | None = connection.exec_driver_sql("SELECT alive_at FROM job_engine").scalar()
    return found


@pytest.mark.anyio
@pytest.mark.rule("firmware-39")
async def test_a_service_without_jobs_notes_that_it_runs(database: Database) -> None:
    """Or the first job after a while without jobs would count that time as an outage."""
    now = START
    broker = Outside(
        Address(host="127.0.0.1", port=1), "jobs", prefix="", consumer=_Deaf(), options=Options()
    )
    asking = Asking(broker, Topics(), lambda: now)
    runner = Runner(database, asking, lambda: now, steady=lambda: now)
    running = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in range(3):
                while await database.read(_alive_at) != now:
                    await asyncio.sleep(0.01)
                now += uptime.PAUSE
                runner.wake()
    finally:
        running.cancel()
        await asyncio.wait([running])
