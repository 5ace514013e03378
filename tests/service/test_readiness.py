"""The service is ready only while its broker can commit and enough file descriptors are free."""

from __future__ import annotations

import asyncio
import os
import resource
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.readiness import ReadinessCode
from meshfleet.mqtt.codec.packets import Connack, ConnectReturnCode
from meshfleet.service.readiness import Readiness, retry_failed_writes
from tests.eventually import eventually_async
from tests.mqtt.broker.running_broker import RunningBroker, connect
from tests.row_tables import each_row

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio


@pytest.mark.rule("rest-160")
async def test_a_broker_that_cannot_commit_is_reported(sqlite_database: Database) -> None:
    readiness = Readiness()
    async with RunningBroker(sqlite_database) as running:
        readiness.add_check(running.broker)
        assert readiness.list_problems() == []
        error = DatabaseUnavailable("the disk is full", ReadinessCode.DISK_FULL)
        running.consumer.failures.append(error)
        viewer = await running.raw_client()
        viewer.send(connect("viewer", clean=False))
        await running.until(lambda: running.broker.problem is not None)
        assert readiness.list_problems() == [error.readiness_problem]
        assert (await viewer.expect(Connack)).code == ConnectReturnCode.ACCEPTED
        assert readiness.list_problems() == []


@pytest.mark.rule("rest-160")
async def test_a_failed_write_is_reported_until_a_trial_write_succeeds(sqlite_database: Database) -> None:
    def fill_disk(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
        connection.exec_driver_sql("CREATE TABLE more AS SELECT randomblob(100000) AS data")

    async def list_codes() -> list[str]:
        return [each.code for each in await Readiness().list_reasons(sqlite_database)]

    with pytest.raises(DatabaseUnavailable):
        await sqlite_database.write(fill_disk)
    assert await list_codes() == ["disk-full"]
    retries = asyncio.create_task(retry_failed_writes(sqlite_database, pause=0.01))
    await eventually_async(lambda: sqlite_database.write_problem is None, "the trial write")
    assert await list_codes() == []
    retries.cancel()


@pytest.mark.rule("rest-160")
@each_row(("left", "is_scarce"), [(1, True), (16, True), (17, False), (None, False)])
def test_scarce_file_descriptors_are_reported(
    monkeypatch: pytest.MonkeyPatch, left: int | None, *, is_scarce: bool
) -> None:
    """Patch the limit: lowering the real one could make other threads of the tests fail."""
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    limit = resource.RLIM_INFINITY if left is None else lowest + left
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    codes = [each.code for each in Readiness().list_problems()]
    assert codes == ([ReadinessCode.DESCRIPTORS] if is_scarce else [])


@pytest.mark.rule("rest-160")
async def test_concurrent_probes_are_all_answered(sqlite_database: Database) -> None:
    """Concurrent probes share one query; a probe after its end starts the next one."""
    readiness = Readiness()

    async def probe() -> list[object]:
        return [await readiness.list_reasons(sqlite_database) for _ in range(20)]

    results = await asyncio.gather(*(probe() for _ in range(20)))
    assert results == [[()] * 20] * 20
