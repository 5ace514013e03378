"""Readers see everything once at every moment, while samples move from one place to another."""

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
"""Seconds until something must have happened; reached only when it is broken."""


async def test_readers_see_each_committed_sample_once_while_the_store_is_tended(trial: StoreHarness) -> None:
    trial.reopen(limits=CompactionLimits(memtable_samples=3, merge_count=2))
    written: set[int] = set()
    done = asyncio.Event()

    async def write() -> None:
        for step in range(40):
            times = [NOON + step, NOON + DAY + step, NOON + 2 * DAY + step]
            rows = [build_row(times[0]), build_row(times[1]), build_stray_row(times[2]), build_row(NOON - 1)]
            number = await trial.database.write(trial.store.write, {DEVICE: rows}, trial.now)
            trial.store.publish_committed(number, {DEVICE: rows})
            written.update(times)
        done.set()

    async def tend() -> None:
        while not done.is_set():
            await trial.maintain(after=HOUR)
            await asyncio.sleep(0)  # where there is nothing to do others have their turn

    async def read(newest_first: bool) -> int:  # noqa: FBT001 # one of two readers
        reads = 0
        while not done.is_set():
            before = {*written, NOON - 1} if written else set()
            times = await trial.times(newest_first=newest_first)
            assert times == sorted(set(times), reverse=newest_first)
            assert before <= set(times)
            reads += 1
        return reads

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(read(newest_first)) for newest_first in (False, True)]
        tasks.create_task(tend())
        tasks.create_task(write())
    assert all(reader.result() for reader in readers)
    assert await trial.times() == sorted({*written, NOON - 1})


async def test_a_reader_whose_segments_are_merged_meanwhile_begins_anew(files: StoreHarness) -> None:
    for step in range(3):
        files.commit({DEVICE: [build_row(NOON + step)]})
        await files.maintain()
    files.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=3))
    merged = threading.Event()
    began = threading.Event()
    calls = 0

    def use(samples: Iterator[StoredSample]) -> list[int]:
        nonlocal calls
        calls += 1
        began.set()
        assert merged.wait(PATIENCE)
        return [each.time for each in samples]

    reading = asyncio.create_task(files.store.read(build_query(), use))
    assert await asyncio.to_thread(began.wait, PATIENCE)
    await files.maintain()
    assert len(files.segment_files) == 1
    merged.set()
    assert await reading == [NOON, NOON + 1, NOON + 2]
    assert calls == 2


async def test_a_reader_who_began_before_samples_were_written_out_sees_them_once(files: StoreHarness) -> None:
    files.commit({DEVICE: [build_row(NOON), build_row(NOON + DAY)]})
    written_out = threading.Event()

    def use(samples: Iterator[StoredSample]) -> list[int]:
        assert written_out.wait(PATIENCE)
        return [each.time for each in samples]

    reading = asyncio.create_task(files.store.read(build_query(), use))
    await asyncio.sleep(0)
    await files.maintain()
    written_out.set()
    assert await reading == [NOON, NOON + DAY]


async def test_what_a_reader_raises_reaches_who_asked(trial: StoreHarness) -> None:
    trial.commit({DEVICE: [build_row()]})
    await trial.maintain()

    def use(samples: Iterator[StoredSample]) -> None:
        next(samples)
        raise LookupError("not what I wanted")

    with pytest.raises(LookupError, match="not what I wanted"):
        await trial.store.read(build_query(), use)
    assert await trial.times() == [NOON]


async def test_a_reader_of_another_device_or_of_an_empty_store_finds_nothing(trial: StoreHarness) -> None:
    assert await trial.read() == []
    trial.commit({DEVICE: [build_row()]})
    for _ in range(2):
        assert await trial.read(DEVICE + 1) == []
        assert await trial.read(since=NOON, until=NOON) == []
        assert await trial.read(since=NOON + 1, until=NOON - DAY) == []
        assert await trial.read(kinds=frozenset()) == []
        await trial.maintain()
