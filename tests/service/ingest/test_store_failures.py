"""Failures and missing capacity of the sample store: they are reported, and nothing is lost."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.exc import ProgrammingError

from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.ingest.pipeline import DEFAULT_TIMINGS, IngestTimings
from meshfleet.service.readiness import Readiness
from tests.service.embedded_broker.running_broker import until
from tests.service.ingest.ingest_harness import NOON, IngestHarness, build_batch
from tests.service.ingest.messages import heartbeat, temperature

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = pytest.mark.anyio


class InsufficientPrivilege(Exception):
    """Error of a driver, whose text must not be shown."""


def build_unexpected_error() -> ProgrammingError:
    """Build an error for which there is no special handling."""
    return ProgrammingError("DELETE FROM secrets", {"value": "topsecret"}, InsufficientPrivilege("topsecret"))


@pytest.fixture
def capacity_timeout() -> float:
    """Return the seconds that a batch waits for capacity."""
    return DEFAULT_TIMINGS.capacity_timeout_seconds


@pytest.fixture
def timings(capacity_timeout: float) -> IngestTimings:
    return IngestTimings(
        poll_seconds=0.01, max_backoff_seconds=0.02, capacity_timeout_seconds=capacity_timeout
    )


short_timeout = pytest.mark.parametrize("capacity_timeout", [0.02])


@asynccontextmanager
async def running(harness: IngestHarness) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(harness.ingest.run())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def read_problem(readiness: Readiness) -> str:
    (problem,) = readiness.list_problems()
    return problem.detail


@pytest.mark.rule("rest-160")
@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("on_maintain", "maintenance of the sample store failed"),
        ("on_write", "device states cannot be written"),
    ],
)
async def test_an_unexpected_error_is_reported_until_it_is_over_and_stops_nothing(
    harness: IngestHarness, failure: str, message: str
) -> None:
    readiness = Readiness()
    readiness.add_check(harness.ingest)
    await harness.commit(heartbeat(NOON, 3))
    setattr(harness.store, failure, build_unexpected_error())
    async with running(harness) as task:
        await until(lambda: harness.ingest.problem is not None or task.done())
        detail = read_problem(readiness)
        assert message in detail
        assert "InsufficientPrivilege" in detail
        assert not any(secret in detail for secret in ("topsecret", "DELETE", "secrets"))
        setattr(harness.store, failure, None)
        await until(lambda: harness.ingest.problem is None or task.done())
        assert readiness.list_problems() == []
        await until(lambda: harness.device() is not None)
        assert not task.done()
    assert harness.state().status == 3


async def test_of_two_problems_one_is_reported_after_the_other(sqlite_harness: IngestHarness) -> None:
    sqlite_harness.store.on_maintain = OSError("the disk is full")
    sqlite_harness.store.on_write = build_unexpected_error()
    async with running(sqlite_harness):
        await until(lambda: "device states" in str(sqlite_harness.ingest.problem))
        sqlite_harness.store.on_write = None
        await until(lambda: "the disk is full" in str(sqlite_harness.ingest.problem))
        sqlite_harness.store.on_maintain = None
        await until(lambda: sqlite_harness.ingest.problem is None)


# --- Capacity ---


@short_timeout
async def test_a_batch_without_capacity_is_refused_and_stored_once_later(
    harness: IngestHarness,
) -> None:
    batch = build_batch([temperature(NOON), heartbeat(NOON, 3)])
    harness.store.has_capacity.clear()
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable, match="not flushed fast enough"):
            await asyncio.wait_for(harness.ingest.commit(batch), 30)
    assert (await harness.samples(), harness.count_journal(), harness.ingest.counters.batches) == ([], 0, 0)
    harness.store.has_capacity.set()
    await harness.ingest.commit(batch)
    await harness.ingest.flush()
    assert (len(await harness.samples()), harness.ingest.counters.batches) == (1, 1)
    assert harness.state().status == 3


@short_timeout
async def test_a_capacity_timeout_reports_the_underlying_problem(sqlite_harness: IngestHarness) -> None:
    sqlite_harness.store.on_maintain = OSError("the disk is full")
    sqlite_harness.store.has_capacity.clear()
    async with running(sqlite_harness):
        await until(lambda: sqlite_harness.ingest.problem is not None)
        with pytest.raises(DatabaseUnavailable, match="the disk is full"):
            await asyncio.wait_for(sqlite_harness.commit(temperature(NOON)), 30)


async def test_a_batch_waits_for_capacity(sqlite_harness: IngestHarness) -> None:
    sqlite_harness.store.has_capacity.clear()
    commit = asyncio.create_task(sqlite_harness.commit(temperature(NOON)))
    await asyncio.sleep(0)
    assert not commit.done()
    sqlite_harness.store.has_capacity.set()
    await commit
    assert len(await sqlite_harness.samples()) == 1
