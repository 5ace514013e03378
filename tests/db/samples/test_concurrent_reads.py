"""Readers always see each sample exactly once while samples are flushed and merged."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples.sqlite_store import CompactionLimits
from tests.db.samples.store_harness import DAY, DEVICE, HOUR, NOON, build_query, build_row, build_stray_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db.samples import StoredSample
    from tests.db.samples.store_harness import StoreHarness

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

PATIENCE = 30.0
"""Seconds until an expected event must have happened; reached only by a defect."""


async def test_readers_see_each_committed_sample_once_during_maintenance(harness: StoreHarness) -> None:
    harness.reopen(limits=CompactionLimits(memtable_samples=3, merge_count=2))
    written: set[int] = set()
    done = asyncio.Event()

    async def write() -> None:
        for step in range(40):
            times = [NOON + step, NOON + DAY + step, NOON + 2 * DAY + step]
            rows = [build_row(times[0]), build_row(times[1]), build_stray_row(times[2]), build_row(NOON - 1)]
            number = await harness.database.write(harness.store.write, {DEVICE: rows}, harness.now)
            harness.store.publish_committed(number, {DEVICE: rows})
            written.update(times)
        done.set()

    async def maintain() -> None:
        while not done.is_set():
            await harness.maintain(after=HOUR)
            await asyncio.sleep(0)  # let other tasks run if there is nothing to do

    async def read(newest_first: bool) -> int:  # noqa: FBT001 # one of two orders
        reads = 0
        while not done.is_set():
            before = {*written, NOON - 1} if written else set()
            times = await harness.times(newest_first=newest_first)
            assert times == sorted(set(times), reverse=newest_first)
            assert before <= set(times)
            reads += 1
        return reads

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(read(newest_first)) for newest_first in (False, True)]
        tasks.create_task(maintain())
        tasks.create_task(write())
    assert all(reader.result() for reader in readers)
    assert await harness.times() == sorted({*written, NOON - 1})


async def test_a_reader_starts_again_if_its_segments_are_merged_meanwhile(
    sqlite_harness: StoreHarness,
) -> None:
    for step in range(3):
        sqlite_harness.commit({DEVICE: [build_row(NOON + step)]})
        await sqlite_harness.maintain()
    sqlite_harness.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=3))
    merged = threading.Event()
    has_started = threading.Event()
    calls = 0

    def read_times(samples: Iterator[StoredSample]) -> list[int]:
        nonlocal calls
        calls += 1
        has_started.set()
        assert merged.wait(PATIENCE)
        return [sample.time for sample in samples]

    reading = asyncio.create_task(sqlite_harness.store.read(build_query(), read_times))
    assert await asyncio.to_thread(has_started.wait, PATIENCE)
    await sqlite_harness.maintain()
    assert len(sqlite_harness.segment_files) == 1
    merged.set()
    assert await reading == [NOON, NOON + 1, NOON + 2]
    assert calls == 2


async def test_a_reader_that_started_before_a_flush_sees_each_sample_once(
    sqlite_harness: StoreHarness,
) -> None:
    sqlite_harness.commit({DEVICE: [build_row(NOON), build_row(NOON + DAY)]})
    is_flushed = threading.Event()

    def read_times(samples: Iterator[StoredSample]) -> list[int]:
        assert is_flushed.wait(PATIENCE)
        return [sample.time for sample in samples]

    reading = asyncio.create_task(sqlite_harness.store.read(build_query(), read_times))
    await asyncio.sleep(0)
    await sqlite_harness.maintain()
    is_flushed.set()
    assert await reading == [NOON, NOON + DAY]


async def test_an_exception_of_a_consumer_is_raised_to_the_caller(harness: StoreHarness) -> None:
    harness.commit({DEVICE: [build_row()]})
    await harness.maintain()

    def read_and_fail(samples: Iterator[StoredSample]) -> None:
        next(samples)
        raise LookupError("consumer failed")

    with pytest.raises(LookupError, match="consumer failed"):
        await harness.store.read(build_query(), read_and_fail)
    assert await harness.times() == [NOON]


async def test_a_reader_of_another_device_or_of_an_empty_store_finds_nothing(harness: StoreHarness) -> None:
    assert await harness.read() == []
    harness.commit({DEVICE: [build_row()]})
    for _ in range(2):
        assert await harness.read(DEVICE + 1) == []
        assert await harness.read(since=NOON, until=NOON) == []
        assert await harness.read(since=NOON + 1, until=NOON - DAY) == []
        assert await harness.read(kinds=frozenset()) == []
        await harness.maintain()
