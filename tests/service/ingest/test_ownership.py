"""Two processes on one server: the one that lost ownership writes nothing more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.startup import UnusableDatabase
from meshfleet.mqtt.broker import take_ownership
from meshfleet.service.ingest.pipeline import IngestTimings
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND, IngestHarness
from tests.service.ingest.messages import E, heartbeat, temperature

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio


@pytest.fixture
def first(postgresql_database: Database, tmp_path: Path) -> Iterator[IngestHarness]:
    owner = postgresql_database.write_now(take_ownership)
    harness = IngestHarness(
        postgresql_database, tmp_path, owner=owner, timings=IngestTimings(poll_seconds=0.01)
    )
    yield harness
    harness.close()


@pytest.fixture
async def second(first: IngestHarness, tmp_path: Path) -> AsyncIterator[IngestHarness]:
    """Create a second process, which takes ownership before the first one has flushed."""
    await first.commit(heartbeat(NOON, 3), temperature(NOON))
    harness = IngestHarness(first.database, tmp_path, owner=first.database.write_now(take_ownership))
    await harness.ingest.restore()
    yield harness
    harness.close()


async def test_a_process_that_lost_ownership_commits_nothing(
    first: IngestHarness, second: IngestHarness
) -> None:
    malformed = heartbeat(NOON, device=E, seq=300)
    for message in (temperature(NOON + 1), heartbeat(NOON + 1), temperature(NOON, device=E), malformed):
        with pytest.raises(UnusableDatabase, match="another Meshfleet"):
            await first.commit(message)
    assert len(await second.samples()) == 1
    assert (second.count_journal(), second.rejects(), await second.samples(E)) == (1, [], [])
    assert first.ingest.counters.batches == 1


async def test_a_process_that_lost_ownership_flushes_nothing(
    first: IngestHarness, second: IngestHarness
) -> None:
    first.now += 10 * MINUTE
    with pytest.raises(UnusableDatabase, match="another Meshfleet"):
        await first.ingest.flush()
    assert (second.count_journal(), second.device()) == (1, None)
    assert len(await second.samples(kinds=range(6))) == 1


async def test_a_process_that_lost_ownership_stops(first: IngestHarness, second: IngestHarness) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(first.ingest.run(), 30)
    assert caught.group_contains(UnusableDatabase, match="another Meshfleet")
    assert second.count_journal() == 1


async def test_the_new_owner_has_the_reports_of_the_first(
    first: IngestHarness, second: IngestHarness
) -> None:
    second.now += SECOND
    await second.commit_flushed(temperature(NOON + SECOND))
    with pytest.raises(UnusableDatabase):
        await first.ingest.flush()
    second.now += 10 * MINUTE
    await second.ingest.flush()
    assert (second.state().status, second.state().reported_at, second.count_journal()) == (
        3,
        NOON + SECOND,
        0,
    )
    assert len(await second.samples()) == 2
