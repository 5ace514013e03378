"""Samples that are far larger than usual do not pile up in memory."""

from __future__ import annotations

import asyncio

import pytest

from meshfleet.db.samples.sqlite_store import CompactionLimits
from tests.db.samples.store_harness import DEVICE, NOON, StoreHarness, build_row

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_head_with_many_bytes_is_written_out_however_few_samples_it_has(files: StoreHarness) -> None:
    files.reopen(limits=CompactionLimits(memtable_samples=1000, memtable_bytes=50_000))
    files.commit({DEVICE: [build_row(NOON, raw=bytes(40_000))]})
    await files.maintain()
    assert files.segment_files == []
    files.commit({DEVICE: [build_row(NOON + 1, raw=bytes(40_000))]})
    await files.maintain()
    assert len(files.segment_files) == 1
    assert await files.times() == [NOON, NOON + 1]


async def test_who_writes_waits_while_a_head_has_twice_the_bytes_that_it_may_have(
    files: StoreHarness,
) -> None:
    files.reopen(limits=CompactionLimits(memtable_samples=1000, memtable_bytes=50_000))
    await files.store.wait_for_capacity()
    files.commit({DEVICE: [build_row(NOON + number, raw=bytes(40_000)) for number in range(3)]})
    waiting = asyncio.create_task(files.store.wait_for_capacity())
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    await files.maintain()
    await waiting
