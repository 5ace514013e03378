"""Programs note that they run jobs; only a time in which none did moves clocks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.link import Address, Options
from meshfleet.service.clock import Steady
from meshfleet.service.jobs.engine import uptime
from meshfleet.service.jobs.engine.runner import Runner
from meshfleet.service.mqtt.outside import Outside
from meshfleet.service.requests.asking import Asking
from meshfleet.wire.topics import Topics
from tests.eventually import eventually_async
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


@pytest.mark.rule("firmware-39")
def test_two_programs_whose_clocks_differ_move_no_clocks(database: Database) -> None:
    """Each finds the note of the other, which is a minute ahead or behind."""
    ahead, moved, noted = (0, 60_000), [], dict[int, int]()
    for seconds in range(0, 60, 3):
        for each in ahead:
            now = START + seconds * 1000 + each
            moved.append(database.write_now(uptime.resume, now, noted.get(each)))
            noted[each] = now
    assert moved == [0, 60_000, *[0] * (len(moved) - 2)], "but for the start of the second"
    after = START + 600_000
    assert database.write_now(uptime.resume, after, noted[0]) > uptime.OUTAGE, "the database was away"


@pytest.mark.anyio
@pytest.mark.rule("firmware-39")
async def test_a_service_without_jobs_notes_that_it_runs(database: Database) -> None:
    """Or the first job after a while without jobs would count that time as an outage."""
    seconds = 0.0
    now = Steady(lambda: START, lambda: seconds)
    broker = Outside(
        Address(host="127.0.0.1", port=1), "jobs", prefix="", consumer=_Deaf(), options=Options()
    )
    asking = Asking(broker, Topics(), now)
    runner = Runner(database, asking, now, steady=now)

    async def is_noted() -> bool:
        return await database.read(_alive_at) == now()

    running = asyncio.create_task(runner.run())
    try:
        for _ in range(3):
            await eventually_async(is_noted, "it notes that it runs")
            seconds += uptime.PAUSE / 1000
            runner.wake()
    finally:
        running.cancel()
        await asyncio.wait([running])
