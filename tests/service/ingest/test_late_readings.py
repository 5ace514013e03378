"""Readings that come late, again, or of very many minutes: the journal is emptied all the same."""

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

EVERY = 3 * SECOND
TIMES = 200
"""Ten minutes of that."""

MANY = 28
"""Batches that come while a minute may be open: its own length, and the grace before and after."""

DEVICES = [f"c0ffee0001{number:02x}" for number in range(8)]


async def longest_journal(intake: IngestHarness, messages: Iterable[Publish]) -> int:
    """Let messages come, each in a batch of its own and some seconds after the one before it."""
    longest = 0
    for message in messages:
        await intake.commit_flushed(message)
        longest = max(longest, intake.count_journal())
        intake.now += EVERY
    return longest


@pytest.mark.parametrize("behind", [0, 5 * 60 * MINUTE], ids=["of now", "of hours ago"])
async def test_a_reading_that_repeats_does_not_keep_the_journal(intake: IngestHarness, behind: int) -> None:
    at = NOON - behind
    assert await longest_journal(intake, [heartbeat(at, 3)] * TIMES) <= MANY
    intake.now += MINUTE
    await intake.ingest.flush()
    ((time, _, _, shown),) = await intake.minutes(SampleKind.HEARTBEAT)
    assert (time, shown["count"], intake.count_journal()) == (at, 1, 0)


@pytest.mark.both_databases
async def test_fresh_readings_that_trickle_into_an_old_minute_do_not_keep_the_journal(
    intake: IngestHarness,
) -> None:
    late = NOON - 5 * 60 * MINUTE
    trickle = [link(late + place, -50 - place % 40) for place in range(TIMES)]
    assert await longest_journal(intake, trickle) <= MANY
    ((_, _, _, before),) = await intake.minutes(SampleKind.LINK)
    await intake.restart()
    intake.now += 2 * MINUTE
    await intake.ingest.flush()
    ((time, _, _, shown),) = await intake.minutes(SampleKind.LINK)
    assert (time, shown, intake.count_journal()) == (late, before, 0)
    assert 1 < shown["count"] <= MANY


async def test_a_minute_that_nothing_new_comes_into_is_told_though_others_trickle(
    intake: IngestHarness,
) -> None:
    late = NOON - 5 * 60 * MINUTE
    await intake.commit(heartbeat(late, 1))
    for place in range(3):
        intake.now += 2 * SECOND
        await intake.commit_flushed(heartbeat(late, 1), link(late + place, -50))
    assert len(await intake.minutes(SampleKind.HEARTBEAT)) == 1
    assert await intake.minutes(SampleKind.LINK) == []


# --- Very many minutes ---


def test_no_more_than_fifty_thousand_minutes_are_closed_at_once() -> None:
    open_minutes = Rollups()
    heard = [(ReadingKind.HEARTBEAT, device, 1, NOON, 0, 0, False) for device in range(100_001)]
    open_minutes.add(7, heard, NOON)
    told: set[int] = set()
    for expected in (50_000, 50_000, 1, 0):
        assert open_minutes.oldest_batch(8) == (8 if expected == 0 else 7)
        rows = open_minutes.close_due(NOON + 10 * MINUTE)
        assert len(rows) == expected
        assert told.isdisjoint(rows)
        told |= rows.keys()
    assert len(told) == 100_001


async def counts(intake: IngestHarness) -> list[int]:
    """How many heartbeats of each device were told, in one minute or none."""
    found = [await intake.minutes(SampleKind.HEARTBEAT, device) for device in DEVICES]
    assert all(len(minutes) <= 1 for minutes in found)
    return [shown["count"] for minutes in found for _, _, _, shown in minutes]


@pytest.fixture
def in_threes(sqlite_database: Database, tmp_path: Path) -> Iterator[IngestHarness]:
    """A pipeline that tells three minutes with one flush."""
    made = IngestHarness(sqlite_database, tmp_path, max_per_flush=3)
    yield made
    made.close()
    sqlite_database.close()


@pytest.mark.parametrize("restarts", [(), (0,), (1,), (0, 1, 2)], ids=str)
async def test_minutes_that_are_too_many_for_one_flush_are_told_by_the_next_ones(
    in_threes: IngestHarness, restarts: tuple[int, ...]
) -> None:
    intake = in_threes
    for at in (NOON, NOON + SECOND):
        await intake.commit(*(heartbeat(at, device=device) for device in DEVICES))
    for flush in range(3):
        intake.now += 10 * MINUTE
        await intake.ingest.flush()
        if flush == 0:
            assert (await counts(intake), intake.count_journal()) == ([2] * 3, 2)
        if flush in restarts:
            await intake.restart()
    for _ in range(3):  # whoever was restarted begins again
        intake.now += 10 * MINUTE
        await intake.ingest.flush()
    assert (await counts(intake), intake.count_journal()) == ([2] * len(DEVICES), 0)


async def test_what_comes_between_two_of_these_flushes_counts_where_it_belongs(
    in_threes: IngestHarness,
) -> None:
    intake = in_threes
    await intake.commit(*(heartbeat(NOON, device=device) for device in DEVICES))
    intake.now += 10 * MINUTE
    await intake.ingest.flush()
    await intake.commit(*(heartbeat(NOON + 1, device=device) for device in DEVICES))
    for _ in range(6):
        intake.now += 10 * MINUTE
        await intake.ingest.flush()
    assert (await counts(intake), intake.count_journal()) == ([1] * 3 + [2] * 5, 0)


@pytest.mark.both_databases
async def test_a_flush_beside_a_batch_does_not_forget_what_it_has_not_written(intake: IngestHarness) -> None:
    """The journal was empty before: if it numbered batches anew, the old number would say that it is done."""
    for place in range(3):
        await intake.commit(heartbeat(NOON + place))
    intake.now += 10 * MINUTE
    await intake.ingest.flush()
    assert intake.count_journal() == 0
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(intake.commit(heartbeat(intake.now, 7)))
        tasks.create_task(intake.ingest.flush())
    assert intake.count_journal() == 1
    await intake.restart()
    await intake.ingest.flush()
    assert intake.state().status == 7
