"""Readers of all samples: in commit order from a stored position, through flushes, merges and restarts."""

from __future__ import annotations

import asyncio
import logging
import threading
from random import Random
from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.db.samples.postgresql_store import PostgresqlSampleStore
from meshfleet.db.samples.sqlite_store import CompactionLimits
from tests.db.samples.store_harness import (
    DAY,
    DEVICE,
    HOUR,
    NOON,
    OTHER,
    build_row,
    build_stray_row,
    to_samples,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db.samples.sample_log import SampleReader
    from tests.db.samples.store_harness import StoreHarness

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

FEW = CompactionLimits(memtable_samples=20, merge_count=2)
"""Limits with which a few dozen samples are flushed and merged."""


async def read_numbers(reader: SampleReader, limit: int = 1000) -> list[float | int | None]:
    """Read samples without moving the position. Return their values."""
    page = await reader.read(limit)
    return [] if page is None else [sample.number for _, sample in page.samples]


async def read_to_end(reader: SampleReader) -> list[float | int | None]:
    """Read and process all samples. Return their values."""
    numbers: list[float | int | None] = []
    while (page := await reader.read(7)) is not None:
        numbers += [sample.number for _, sample in page.samples]
        await reader.advance(page.position)
    return numbers


async def test_a_reader_gets_the_samples_of_all_devices_in_commit_order(harness: StoreHarness) -> None:
    harness.commit({DEVICE: [build_row(NOON, 0)]})
    reader = await harness.store.open_reader("influx")
    row, stray = build_row(NOON + HOUR, 1, seq=7, raw=b"\1"), build_stray_row(NOON - DAY, 2)
    harness.commit({OTHER: [row]})
    harness.commit({DEVICE: [stray, build_row(NOON, 3)]})
    page = await reader.read(1000)
    assert page is not None
    assert [device for device, _ in page.samples] == [OTHER, DEVICE, DEVICE]
    assert [sample for _, sample in page.samples][:2] == to_samples([row, stray])
    assert await reader.count_unread() == 3
    await reader.advance(page.position)
    assert (await reader.read(1000), await reader.count_unread()) == (None, 0)


async def test_the_position_is_kept_and_nothing_is_skipped_when_the_service_is_killed(
    harness: StoreHarness,
) -> None:
    reader = await harness.store.open_reader("influx")
    for number in range(4):
        harness.commit({DEVICE: [build_row(NOON + number, number)]})
    page = await reader.read(2)
    assert page is not None
    await reader.advance(page.position)
    assert await read_numbers(reader) == [2, 3]
    harness.reopen()  # read, but not processed
    reader = await harness.store.open_reader("influx")
    assert await read_numbers(reader) == [2, 3]
    await harness.maintain()
    harness.reopen()
    reader = await harness.store.open_reader("influx")
    harness.commit({DEVICE: [build_row(NOON + 4, 4)]})
    assert await read_to_end(reader) == [2, 3, 4]


async def test_every_sample_is_read_once_in_order_while_memtables_are_flushed_and_merged(
    harness: StoreHarness,
) -> None:
    harness.reopen(limits=FEW)
    random = Random(30)  # noqa: S311 # not a secret
    readers = {name: await harness.store.open_reader(name) for name in ("fast", "slow")}
    read: dict[str, list[float | int | None]] = {name: [] for name in readers}
    committed: list[float | int | None] = []
    for _ in range(150):
        match random.randrange(10):
            case 0:
                harness.reopen()
                readers = {name: await harness.store.open_reader(name) for name in readers}
            case 1:
                await harness.maintain()
            case 2:
                name = random.choice(["fast", "fast", "slow"])
                page = await readers[name].read(random.randrange(1, 40))
                if page is not None and random.random() < 0.8:
                    read[name] += [sample.number for _, sample in page.samples]
                    await readers[name].advance(page.position)
            case 3:
                minutes = [build_row(NOON, 0, kind=SampleKind.HEARTBEAT)]
                harness.commit({DEVICE: minutes})
            case _:
                numbers = [len(committed) + step for step in range(random.randrange(1, 6))]
                committed += numbers
                rows = [build_row(NOON + number * HOUR, number) for number in numbers]
                harness.commit({random.choice([DEVICE, OTHER]): rows})
    for name, reader in readers.items():
        assert read[name] + await read_to_end(reader) == committed
    assert harness.count("sample_log") == 0


async def test_without_readers_nothing_is_logged(harness: StoreHarness) -> None:
    harness.commit({DEVICE: [build_row()]})
    await harness.maintain()
    assert harness.count("sample_log") == 0
    await harness.store.open_reader("influx")
    harness.commit({DEVICE: [build_row(NOON + 1)]})
    await harness.maintain()
    assert harness.count("sample_log") == 1
    assert await harness.store.remove_other_readers(["webhook"]) == ["influx"]
    harness.commit({DEVICE: [build_row(NOON + 2)]})
    await harness.maintain()
    assert harness.count("sample_log") == 0


async def test_samples_that_expire_before_they_were_read_are_counted(
    harness: StoreHarness, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = (SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.MEASUREMENT_ERROR, SampleKind.EVENT)
    harness.reopen(retention=dict.fromkeys(kinds, DAY))
    reader = await harness.store.open_reader("influx")
    harness.commit({DEVICE: [build_row(NOON, 0), build_row(NOON + 1, 1)]})
    await harness.maintain()
    harness.now += DAY + HOUR
    harness.commit({DEVICE: [build_row(NOON + DAY + HOUR, 2)]})
    with caplog.at_level(logging.WARNING):
        await harness.maintain()
    assert "influx missed 2 samples" in caplog.text
    assert await read_to_end(reader) == [2]
    assert await reader.count_missed() == 2


async def test_a_batch_is_not_read_before_an_earlier_batch_is_committed(
    postgresql_harness: StoreHarness,
) -> None:
    harness = postgresql_harness
    reader = await harness.store.open_reader("influx")
    first_has_number, may_commit = threading.Event(), threading.Event()

    def write_first(connection: Connection) -> None:
        harness.store.write(connection, {DEVICE: [build_row(NOON, 1)]}, NOON)
        first_has_number.set()
        may_commit.wait()

    def write_second(connection: Connection) -> None:
        other = PostgresqlSampleStore(harness.database, {}, now=NOON)
        other.write(connection, {OTHER: [build_row(NOON, 2)]}, NOON)

    first = asyncio.create_task(harness.database.write(write_first))
    await asyncio.to_thread(first_has_number.wait)
    second = asyncio.create_task(harness.database.write(write_second))
    try:
        # The second transaction waits for the first: nothing can be read, and no position passes the first.
        done, _ = await asyncio.wait([second], timeout=0.5)
        assert (done, await read_numbers(reader)) == (set(), [])
    finally:
        may_commit.set()
    await asyncio.gather(first, second)
    assert await read_numbers(reader) == [1, 2]
