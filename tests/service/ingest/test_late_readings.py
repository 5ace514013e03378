"""Late and repeated readings, and very many minutes: the journal is emptied nevertheless."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rollups import Rollups
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND, IngestHarness
from tests.service.ingest.messages import heartbeat, link

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Publish

pytestmark = pytest.mark.anyio

INTERVAL = 3 * SECOND
COUNT = 200
"""Number of intervals in ten minutes."""

MAX_JOURNAL = 28
"""Batches committed while a minute may be open: its length, and the grace before and after."""

DEVICES = [f"c0ffee0001{number:02x}" for number in range(8)]


async def measure_journal(harness: IngestHarness, messages: Iterable[Publish]) -> int:
    """Commit messages one by one at intervals. Return the maximum number of journal entries."""
    longest = 0
    for message in messages:
        await harness.commit_flushed(message)
        longest = max(longest, harness.count_journal())
        harness.now += INTERVAL
    return longest


@pytest.mark.parametrize("behind", [0, 5 * 60 * MINUTE], ids=["of now", "of hours ago"])
async def test_a_repeated_reading_does_not_keep_the_journal(harness: IngestHarness, behind: int) -> None:
    at = NOON - behind
    assert await measure_journal(harness, [heartbeat(at, 3)] * COUNT) <= MAX_JOURNAL
    harness.now += MINUTE
    await harness.ingest.flush()
    ((time, _, _, summary),) = await harness.minutes(SampleKind.HEARTBEAT)
    assert (time, summary["count"], harness.count_journal()) == (at, 1, 0)


@pytest.mark.both_databases
async def test_new_readings_of_an_old_minute_do_not_keep_the_journal(
    harness: IngestHarness,
) -> None:
    late = NOON - 5 * 60 * MINUTE
    messages = [link(late + index, -50 - index % 40) for index in range(COUNT)]
    assert await measure_journal(harness, messages) <= MAX_JOURNAL
    ((_, _, _, before),) = await harness.minutes(SampleKind.LINK)
    await harness.restart()
    harness.now += 2 * MINUTE
    await harness.ingest.flush()
    ((time, _, _, summary),) = await harness.minutes(SampleKind.LINK)
    assert (time, summary, harness.count_journal()) == (late, before, 0)
    assert 1 < summary["count"] <= MAX_JOURNAL


async def test_a_minute_without_new_readings_is_closed_while_others_stay_open(
    harness: IngestHarness,
) -> None:
    late = NOON - 5 * 60 * MINUTE
    await harness.commit(heartbeat(late, 1))
    for index in range(3):
        harness.now += 2 * SECOND
        await harness.commit_flushed(heartbeat(late, 1), link(late + index, -50))
    assert len(await harness.minutes(SampleKind.HEARTBEAT)) == 1
    assert await harness.minutes(SampleKind.LINK) == []


# --- Many minutes ---


def test_at_most_fifty_thousand_minutes_are_closed_at_once() -> None:
    open_minutes = Rollups()
    readings = [(ReadingKind.HEARTBEAT, device, 1, NOON, 0, 0, False) for device in range(100_001)]
    open_minutes.add(7, readings, NOON)
    closed: set[int] = set()
    for expected in (50_000, 50_000, 1, 0):
        assert open_minutes.find_oldest_journal_id(8) == (8 if expected == 0 else 7)
        rows = open_minutes.close_ended_minutes(NOON + 10 * MINUTE)
        assert len(rows) == expected
        assert closed.isdisjoint(rows)
        closed |= rows.keys()
    assert len(closed) == 100_001


async def count_heartbeats(harness: IngestHarness) -> list[int]:
    """Return the number of committed heartbeats of each device, all in one minute."""
    minutes_by_device = [await harness.minutes(SampleKind.HEARTBEAT, device) for device in DEVICES]
    assert all(len(minutes) <= 1 for minutes in minutes_by_device)
    return [summary["count"] for minutes in minutes_by_device for _, _, _, summary in minutes]


@pytest.fixture
def limited_harness(sqlite_database: Database, tmp_path: Path) -> Iterator[IngestHarness]:
    """Create a pipeline that closes three minutes with one flush."""
    harness = IngestHarness(sqlite_database, tmp_path, max_per_flush=3)
    yield harness
    harness.close()


@pytest.mark.parametrize("restarts", [(), (0,), (1,), (0, 1, 2)], ids=str)
async def test_minutes_beyond_the_limit_of_a_flush_are_closed_by_the_next_ones(
    limited_harness: IngestHarness, restarts: tuple[int, ...]
) -> None:
    harness = limited_harness
    for at in (NOON, NOON + SECOND):
        await harness.commit(*(heartbeat(at, device=device) for device in DEVICES))
    for flush in range(3):
        harness.now += 10 * MINUTE
        await harness.ingest.flush()
        if flush == 0:
            assert (await count_heartbeats(harness), harness.count_journal()) == ([2] * 3, 2)
        if flush in restarts:
            await harness.restart()
    for _ in range(3):  # after a restart it starts again
        harness.now += 10 * MINUTE
        await harness.ingest.flush()
    assert (await count_heartbeats(harness), harness.count_journal()) == ([2] * len(DEVICES), 0)


async def test_readings_between_two_limited_flushes_are_counted_in_their_minute(
    limited_harness: IngestHarness,
) -> None:
    harness = limited_harness
    await harness.commit(*(heartbeat(NOON, device=device) for device in DEVICES))
    harness.now += 10 * MINUTE
    await harness.ingest.flush()
    await harness.commit(*(heartbeat(NOON + 1, device=device) for device in DEVICES))
    for _ in range(6):
        harness.now += 10 * MINUTE
        await harness.ingest.flush()
    assert (await count_heartbeats(harness), harness.count_journal()) == ([1] * 3 + [2] * 5, 0)


@pytest.mark.both_databases
async def test_a_flush_concurrent_with_a_batch_does_not_delete_its_journal_entry(
    harness: IngestHarness,
) -> None:
    """Empty the journal first: if its ids were reused, the flush would delete the new entry."""
    for index in range(3):
        await harness.commit(heartbeat(NOON + index))
    harness.now += 10 * MINUTE
    await harness.ingest.flush()
    assert harness.count_journal() == 0
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(harness.commit(heartbeat(harness.now, 7)))
        tasks.create_task(harness.ingest.flush())
    assert harness.count_journal() == 1
    await harness.restart()
    await harness.ingest.flush()
    assert harness.state().status == 7
