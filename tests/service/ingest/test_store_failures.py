"""A store that fails, or that has no room: it is told, nothing ends, and nothing is lost."""

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
from tests.service.ingest.ingest_harness import NOON, build_batch
from tests.service.ingest.messages import heartbeat, temperature

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.service.ingest.ingest_harness import IngestHarness

pytestmark = pytest.mark.anyio


class InsufficientPrivilege(Exception):
    """As drivers have them: what it says is not for strangers."""


def refused() -> ProgrammingError:
    """What nobody has thought of."""
    return ProgrammingError("DELETE FROM secrets", {"value": "topsecret"}, InsufficientPrivilege("topsecret"))


@pytest.fixture
def room() -> float:
    """Seconds that a batch waits for room."""
    return DEFAULT_TIMINGS.capacity_timeout_seconds


@pytest.fixture
def pauses(room: float) -> IngestTimings:
    return IngestTimings(poll_seconds=0.01, max_backoff_seconds=0.02, capacity_timeout_seconds=room)


impatient = pytest.mark.parametrize("room", [0.02])


@asynccontextmanager
async def running(intake: IngestHarness) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(intake.ingest.run())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def complaint(readiness: Readiness) -> str:
    (trouble,) = readiness.list_troubles()
    return trouble.detail


@pytest.mark.rule("rest-160")
@pytest.mark.parametrize(
    ("place", "words"),
    [("on_tend", "maintenance of the sample store failed"), ("on_write", "device states cannot be written")],
)
async def test_what_nobody_has_thought_of_ends_nothing_and_is_told_until_it_is_over(
    intake: IngestHarness, place: str, words: str
) -> None:
    readiness = Readiness()
    readiness.add_check(intake.ingest)
    await intake.commit(heartbeat(NOON, 3))
    setattr(intake.store, place, refused())
    async with running(intake) as task:
        await until(lambda: intake.ingest.trouble is not None or task.done())
        told = complaint(readiness)
        assert words in told
        assert "InsufficientPrivilege" in told
        assert not any(secret in told for secret in ("topsecret", "DELETE", "secrets"))
        setattr(intake.store, place, None)
        await until(lambda: intake.ingest.trouble is None or task.done())
        assert readiness.list_troubles() == []
        await until(lambda: intake.device() is not None)
        assert not task.done()
    assert intake.state().status == 3


async def test_of_two_troubles_one_is_told_after_the_other(in_file: IngestHarness) -> None:
    in_file.store.on_tend, in_file.store.on_write = OSError("the disk is full"), refused()
    async with running(in_file):
        await until(lambda: "coalesced" in str(in_file.ingest.trouble))
        in_file.store.on_write = None
        await until(lambda: "the disk is full" in str(in_file.ingest.trouble))
        in_file.store.on_tend = None
        await until(lambda: in_file.ingest.trouble is None)


# --- No room ---


@impatient
async def test_a_batch_for_which_there_is_no_room_is_given_back_and_stored_once_later(
    intake: IngestHarness,
) -> None:
    waiting = build_batch([temperature(NOON), heartbeat(NOON, 3)])
    intake.store.has_capacity.clear()
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable, match="not flushed fast enough"):
            await asyncio.wait_for(intake.ingest.commit(waiting), 30)
    assert (await intake.samples(), intake.count_journal(), intake.ingest.counters.batches) == ([], 0, 0)
    intake.store.has_capacity.set()
    await intake.ingest.commit(waiting)
    await intake.ingest.flush()
    assert (len(await intake.samples()), intake.ingest.counters.batches) == (1, 1)
    assert intake.state().status == 3


@impatient
async def test_who_waits_for_room_learns_why_there_is_none(in_file: IngestHarness) -> None:
    in_file.store.on_tend = OSError("the disk is full")
    in_file.store.has_capacity.clear()
    async with running(in_file):
        await until(lambda: in_file.ingest.trouble is not None)
        with pytest.raises(DatabaseUnavailable, match="the disk is full"):
            await asyncio.wait_for(in_file.commit(temperature(NOON)), 30)


async def test_a_batch_waits_a_while_for_room(in_file: IngestHarness) -> None:
    in_file.store.has_capacity.clear()
    taking = asyncio.create_task(in_file.commit(temperature(NOON)))
    await asyncio.sleep(0)
    assert not taking.done()
    in_file.store.has_capacity.set()
    await taking
    assert len(await in_file.samples()) == 1
