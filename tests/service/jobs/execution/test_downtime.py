"""Tests of downtime: timers are moved only after a time in which no process ran jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.client import BrokerAddress, MqttOptions
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.clock import MonotonicClock
from meshfleet.service.external_broker.client import ExternalBrokerClient
from meshfleet.service.jobs.execution import downtime
from meshfleet.service.jobs.execution.runner import JobRunner
from meshfleet.service.requests.rpc import RpcClient
from tests.eventually import eventually_async
from tests.service.jobs.execution.simulation import START

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database


@pytest.fixture
def database(sqlite_database: Database) -> Database:
    """Provide SQLite only: the statements are the same on PostgreSQL."""
    return sqlite_database


def _alive_at(connection: Connection) -> int | None:
    alive_at: int | None = connection.exec_driver_sql("SELECT alive_at FROM job_engine").scalar()
    return alive_at


@pytest.mark.rule("firmware-39")
def test_two_processes_whose_clocks_differ_move_no_timers(database: Database) -> None:
    """Let each process find the record of the other, which is a minute ahead or behind."""
    offsets, gaps, last_records = (0, 60_000), [], dict[int, int]()
    for seconds in range(0, 60, 3):
        for each in offsets:
            now = START + seconds * 1000 + each
            gaps.append(database.write_now(downtime.record_alive, now, last_records.get(each)))
            last_records[each] = now
    assert gaps == [0, 60_000, *[0] * (len(gaps) - 2)], "except at the start of the second process"
    after = START + 600_000
    assert (
        database.write_now(downtime.record_alive, after, last_records[0]) > downtime.DOWNTIME_THRESHOLD_MS
    ), "the database was down"


@pytest.mark.anyio
@pytest.mark.rule("firmware-39")
async def test_a_service_without_jobs_records_that_it_is_alive(database: Database) -> None:
    """Record it even without jobs: otherwise the first job would count that time as downtime."""
    seconds = 0.0
    now = MonotonicClock(lambda: START, lambda: seconds)
    broker = ExternalBrokerClient(
        BrokerAddress(host="127.0.0.1", port=1),
        "jobs",
        prefix="",
        options=MqttOptions(),
    )
    rpc = RpcClient(broker, TopicCodec(), now)
    runner = JobRunner(database, rpc, now, monotonic=now)

    async def is_recorded() -> bool:
        return await database.read(_alive_at) == now()

    task = asyncio.create_task(runner.run())
    try:
        for _ in range(3):
            await eventually_async(is_recorded, "it records that it is alive")
            seconds += downtime.ALIVE_INTERVAL_MS / 1000
            runner.wake()
    finally:
        task.cancel()
        await asyncio.wait([task])
