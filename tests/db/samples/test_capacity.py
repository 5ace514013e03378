"""A full memtable and failing disks: writers wait, nothing is lost, no files are left over."""

from __future__ import annotations

import asyncio
import sqlite3
from sqlite3 import dbapi2
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.samples.sqlite_store import CompactionLimits
from meshfleet.errors import DatabaseUnavailable
from tests.db.samples.store_harness import DAY, DEVICE, NOON, SMALL_LIMITS, build_row, build_stray_row

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from tests.db.samples.store_harness import StoreHarness

pytestmark = pytest.mark.anyio

PATIENCE = 30.0
"""Seconds until an expected event must have happened; reached only by a defect."""


def fill(harness: StoreHarness, count: int) -> list[int]:
    """Commit samples, two for each day. Return their times."""
    times = [NOON + step * DAY // 2 for step in range(count)]
    for time in times:
        harness.commit({DEVICE: [build_row(time)]})
    return times


async def has_capacity(harness: StoreHarness) -> bool:
    """Return whether a writer does not have to wait."""
    waiting = asyncio.create_task(harness.store.wait_for_capacity())
    for _ in range(3):
        await asyncio.sleep(0)
    is_done = waiting.done()
    waiting.cancel()
    return is_done


async def test_writers_wait_while_the_memtable_is_full_and_continue_after_the_flush(
    sqlite_harness: StoreHarness,
) -> None:
    sqlite_harness.reopen(limits=CompactionLimits(memtable_samples=2))
    fill(sqlite_harness, 3)
    assert await has_capacity(sqlite_harness)
    times = fill(sqlite_harness, 4)[:3]
    waiting = asyncio.create_task(sqlite_harness.store.wait_for_capacity())
    assert not await has_capacity(sqlite_harness)
    await sqlite_harness.maintain()
    await asyncio.wait_for(waiting, PATIENCE)
    assert await has_capacity(sqlite_harness)
    assert (await sqlite_harness.times())[:3] == times
    assert sqlite_harness.count("sample_journal") == 0


async def test_a_memtable_with_few_large_samples_is_full_too(sqlite_harness: StoreHarness) -> None:
    sqlite_harness.reopen(limits=CompactionLimits(memtable_bytes=2000))
    sqlite_harness.commit({DEVICE: [build_row(NOON, raw=bytes(1500))]})
    await sqlite_harness.maintain()
    assert (sqlite_harness.segment_files, await has_capacity(sqlite_harness)) == ([], True)
    sqlite_harness.commit(
        {DEVICE: [build_row(NOON + 1, raw=bytes(1500)), build_row(NOON + 2, raw=bytes(1500))]}
    )
    assert not await has_capacity(sqlite_harness)
    await sqlite_harness.maintain()
    assert (len(sqlite_harness.segment_files), await has_capacity(sqlite_harness)) == (1, True)
    assert await sqlite_harness.times() == [NOON, NOON + 1, NOON + 2]


async def test_writers_never_wait_on_postgresql(postgresql_harness: StoreHarness) -> None:
    fill(postgresql_harness, 3)
    assert await has_capacity(postgresql_harness)


async def test_a_memtable_that_is_not_full_is_flushed_after_a_day(sqlite_harness: StoreHarness) -> None:
    sqlite_harness.reopen(limits=CompactionLimits())
    times = fill(sqlite_harness, 3)
    await sqlite_harness.maintain(after=DAY - 1)
    assert (sqlite_harness.segment_files, sqlite_harness.count("sample_journal")) == ([], 3)
    await sqlite_harness.maintain(after=1)
    assert (len(sqlite_harness.segment_files), sqlite_harness.count("sample_journal")) == (2, 0)
    assert await sqlite_harness.times() == times


async def test_segments_are_merged_into_fewer_and_larger_ones(sqlite_harness: StoreHarness) -> None:
    sqlite_harness.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=3))
    for step in range(27):
        sqlite_harness.commit({DEVICE: [build_row(NOON + step)]})
        await sqlite_harness.maintain()
        assert len(sqlite_harness.segment_files) <= 6
    assert len(sqlite_harness.segment_files) == 1
    assert await sqlite_harness.times() == [NOON + step for step in range(27)]


# --- Failing disks ---


def connect_to_full_disk(path: Path, **options: Any) -> sqlite3.Connection:
    """Open a file limited to one page: SQLite reports the same error as for a full disk."""
    connection: sqlite3.Connection = dbapi2.connect(path, **options)
    connection.execute("PRAGMA max_page_count = 1")
    return connection


async def test_a_full_disk_loses_no_samples_and_is_not_filled_further(
    sqlite_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_harness.reopen(limits=CompactionLimits(memtable_samples=2, merge_count=100))
    with monkeypatch.context() as full:
        full.setattr(sqlite3, "connect", connect_to_full_disk)  # affects segments, not the database
        times = fill(sqlite_harness, 4)
        for _ in range(3):
            with pytest.raises(sqlite3.OperationalError, match="full"):
                await sqlite_harness.maintain()
            assert sqlite_harness.segment_files == []
            assert not await has_capacity(sqlite_harness)
            assert await sqlite_harness.times() == times
        sqlite_harness.commit({DEVICE: [build_stray_row(NOON - 1)]})
        assert await sqlite_harness.times() == [NOON - 1, *times]
        sqlite_harness.reopen()
        assert await sqlite_harness.times() == [NOON - 1, *times]
        with pytest.raises(sqlite3.OperationalError):
            await sqlite_harness.maintain()
    await sqlite_harness.maintain()
    assert await has_capacity(sqlite_harness)
    assert await sqlite_harness.times() == [NOON - 1, *times]
    assert (sqlite_harness.segment_files, sqlite_harness.count("sample_journal")) == (
        sqlite_harness.registered_files,
        0,
    )


async def test_a_missing_directory_loses_nothing_of_the_memtable(sqlite_harness: StoreHarness) -> None:
    times = fill(sqlite_harness, 4)
    sqlite_harness.folder.rmdir()
    sqlite_harness.folder.write_text("in the way")
    for _ in range(2):
        with pytest.raises(OSError, match="Not a directory"):
            await sqlite_harness.maintain()
        assert await sqlite_harness.times() == times
    sqlite_harness.folder.unlink()
    sqlite_harness.folder.mkdir()
    await sqlite_harness.maintain()
    sqlite_harness.reopen()
    assert await sqlite_harness.times() == times


def _rename_table(connection: Connection, name: str, new: str) -> None:
    connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO {new}")


async def test_files_that_could_not_be_registered_are_written_only_once(sqlite_harness: StoreHarness) -> None:
    times = fill(sqlite_harness, 4)
    sqlite_harness.database.write_now(_rename_table, "sample_segment", "away")
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            await sqlite_harness.maintain()
        assert len(sqlite_harness.segment_files) == 3
        assert await sqlite_harness.times() == times
    sqlite_harness.database.write_now(_rename_table, "away", "sample_segment")
    await sqlite_harness.maintain()
    assert (sqlite_harness.segment_files, sqlite_harness.count("sample_journal")) == (
        sqlite_harness.registered_files,
        0,
    )
    assert await sqlite_harness.times() == times


async def test_segments_that_could_not_be_replaced_are_merged_only_once(sqlite_harness: StoreHarness) -> None:
    for step in range(3):
        sqlite_harness.commit({DEVICE: [build_row(NOON + step)]})
        await sqlite_harness.maintain()
    sqlite_harness.reopen(limits=SMALL_LIMITS._replace(merge_count=3))
    sqlite_harness.database.write_now(_rename_table, "sample_segment", "away")
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            await sqlite_harness.maintain()
        assert len(sqlite_harness.segment_files) == 4
        assert await sqlite_harness.times() == [NOON, NOON + 1, NOON + 2]
    sqlite_harness.database.write_now(_rename_table, "away", "sample_segment")
    await sqlite_harness.maintain()
    assert len(sqlite_harness.segment_files) == 1
    assert sqlite_harness.segment_files == sqlite_harness.registered_files
    assert await sqlite_harness.times() == [NOON, NOON + 1, NOON + 2]


async def test_a_flush_whose_commit_was_not_confirmed_is_repeated_without_duplicates(
    sqlite_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = fill(sqlite_harness, 4)
    real_write = sqlite_harness.database.write

    async def write_without_confirmation(*args: Any) -> None:
        await real_write(*args)
        raise DatabaseUnavailable("the commit was not confirmed")

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_harness.database, "write", write_without_confirmation)
        with pytest.raises(DatabaseUnavailable):
            await sqlite_harness.maintain()
    assert await sqlite_harness.times() == times
    sqlite_harness.commit({DEVICE: [build_row(NOON - 1)]})
    await sqlite_harness.maintain()
    assert (len(sqlite_harness.segment_files), sqlite_harness.segment_files) == (
        3,
        sqlite_harness.registered_files,
    )
    sqlite_harness.reopen()  # samples written meanwhile must not be deleted
    assert await sqlite_harness.times() == [NOON - 1, *times]


# --- Permissions ---


async def test_only_the_owner_can_read_the_directory_and_its_files(sqlite_harness: StoreHarness) -> None:
    fill(sqlite_harness, 4)
    await sqlite_harness.maintain()
    assert sqlite_harness.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in sqlite_harness.folder.iterdir()} == {0o600}
