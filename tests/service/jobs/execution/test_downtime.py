"""Programs note that they run jobs; only a time in which none did moves clocks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.client import BrokerAddress, MqttOptions
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.clock import SteadyClock
from meshfleet.service.external_broker.client import ExternalBrokerClient
from meshfleet.service.jobs.execution import downtime
from meshfleet.service.jobs.execution.runner import JobRunner
from meshfleet.service.requests.rpc import RpcClient
from tests.eventually import eventually_async
from tests.service.jobs.execution.simulation import START

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.mqtt.broker import ReportBatch


@pytest.fixture
def database(sqlite_database: Database) -> Iterator[Database]:
    """One is enough: the statements are plain."""
    yield sqlite_database
    sqlite_database.close()


class _Deaf:
    """Takes no reports."""

    async def commit(self, batch: ReportBatch) -> None:
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
            moved.append(database.write_now(downtime.record_alive, now, noted.get(each)))
            noted[each] = now
    assert moved == [0, 60_000, *[0] * (len(moved) - 2)], "but for the start of the second"
    after = START + 600_000
    assert database.write_now(downtime.record_alive, after, noted[0]) > downtime.DOWNTIME_THRESHOLD_MS, (
        "the database was away"
    )


@pytest.mark.anyio
@pytest.mark.rule("firmware-39")
async def test_a_service_without_jobs_notes_that_it_runs(database: Database) -> None:
    """Or the first job after a while without jobs would count that time as an outage."""
    seconds = 0.0
    now = SteadyClock(lambda: START, lambda: seconds)
    broker = ExternalBrokerClient(
        BrokerAddress(host="127.0.0.1", port=1), "jobs", prefix="", consumer=_Deaf(), options=MqttOptions()
    )
    asking = RpcClient(broker, TopicCodec(), now)
    runner = JobRunner(database, asking, now, steady=now)

    async def is_noted() -> bool:
        return await database.read(_alive_at) == now()

    running = asyncio.create_task(runner.run())
    try:
        for _ in range(3):
            await eventually_async(is_noted, "it notes that it runs")
            seconds += downtime.ALIVE_INTERVAL_MS / 1000
            runner.wake()
    finally:
        running.cancel()
        await asyncio.wait([running])
