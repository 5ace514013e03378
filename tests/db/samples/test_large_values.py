"""Samples that are far larger than usual do not pile up in memory."""

from __future__ import annotations

import asyncio

import pytest

from meshfleet.db.samples.in_files import Limits
from tests.db.samples.trial import DEVICE, NOON, Trial, row

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_head_with_many_bytes_is_written_out_however_few_samples_it_has(files: Trial) -> None:
    files.reopen(limits=Limits(full=1000, size=50_000))
    files.put({DEVICE: [row(NOON, raw=bytes(40_000))]})
    await files.tend()
    assert files.names == []
    files.put({DEVICE: [row(NOON + 1, raw=bytes(40_000))]})
    await files.tend()
    assert len(files.names) == 1
    assert await files.times() == [NOON, NOON + 1]


async def test_who_writes_waits_while_a_head_has_twice_the_bytes_that_it_may_have(files: Trial) -> None:
    files.reopen(limits=Limits(full=1000, size=50_000))
    await files.store.room()
    files.put({DEVICE: [row(NOON + number, raw=bytes(40_000)) for number in range(3)]})
    waiting = asyncio.create_task(files.store.room())
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    await files.tend()
    await waiting
