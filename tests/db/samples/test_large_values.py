"""Unusually large samples do not accumulate in memory."""

from __future__ import annotations

import asyncio

import pytest

from meshfleet.db.samples.sqlite_store import CompactionLimits
from tests.db.samples.store_harness import DEVICE, NOON, StoreHarness, build_row

pytestmark = pytest.mark.anyio


async def test_a_memtable_with_many_bytes_is_flushed_however_few_samples_it_has(
    sqlite_harness: StoreHarness,
) -> None:
    sqlite_harness.reopen(limits=CompactionLimits(memtable_samples=1000, memtable_bytes=50_000))
    sqlite_harness.commit({DEVICE: [build_row(NOON, raw=bytes(40_000))]})
    await sqlite_harness.maintain()
    assert sqlite_harness.segment_files == []
    sqlite_harness.commit({DEVICE: [build_row(NOON + 1, raw=bytes(40_000))]})
    await sqlite_harness.maintain()
    assert len(sqlite_harness.segment_files) == 1
    assert await sqlite_harness.times() == [NOON, NOON + 1]


async def test_writers_wait_while_the_memtable_has_twice_its_maximum_bytes(
    sqlite_harness: StoreHarness,
) -> None:
    sqlite_harness.reopen(limits=CompactionLimits(memtable_samples=1000, memtable_bytes=50_000))
    await sqlite_harness.store.wait_for_capacity()
    sqlite_harness.commit({DEVICE: [build_row(NOON + number, raw=bytes(40_000)) for number in range(3)]})
    waiting = asyncio.create_task(sqlite_harness.store.wait_for_capacity())
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    await sqlite_harness.maintain()
    await waiting
