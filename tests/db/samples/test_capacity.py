"""A full head, and disks that fail: writers wait, nothing is lost, nothing is left lying about."""

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
"""Seconds until something must have happened; reached only when it is broken."""


def fill(trial: StoreHarness, count: int) -> list[int]:
    """Put that many samples, two for each day; gives their times."""
    times = [NOON + step * DAY // 2 for step in range(count)]
    for time in times:
        trial.commit({DEVICE: [build_row(time)]})
    return times


async def is_free(trial: StoreHarness) -> bool:
    """Whether a writer may go on at once."""
    waiting = asyncio.create_task(trial.store.wait_for_capacity())
    for _ in range(3):
        await asyncio.sleep(0)
    free = waiting.done()
    waiting.cancel()
    return free


async def test_writers_wait_while_the_head_is_full_and_go_on_when_it_was_written_out(
    files: StoreHarness,
) -> None:
    files.reopen(limits=CompactionLimits(memtable_samples=2))
    fill(files, 3)
    assert await is_free(files)
    times = fill(files, 4)[:3]
    waiting = asyncio.create_task(files.store.wait_for_capacity())
    assert not await is_free(files)
    await files.maintain()
    await asyncio.wait_for(waiting, PATIENCE)
    assert await is_free(files)
    assert (await files.times())[:3] == times
    assert files.count("sample_journal") == 0


async def test_a_head_with_few_large_samples_is_full_as_well(files: StoreHarness) -> None:
    files.reopen(limits=CompactionLimits(memtable_bytes=2000))
    files.commit({DEVICE: [build_row(NOON, raw=bytes(1500))]})
    await files.maintain()
    assert (files.segment_files, await is_free(files)) == ([], True)
    files.commit({DEVICE: [build_row(NOON + 1, raw=bytes(1500)), build_row(NOON + 2, raw=bytes(1500))]})
    assert not await is_free(files)
    await files.maintain()
    assert (len(files.segment_files), await is_free(files)) == (1, True)
    assert await files.times() == [NOON, NOON + 1, NOON + 2]


async def test_writers_never_wait_for_tables(tables: StoreHarness) -> None:
    fill(tables, 3)
    assert await is_free(tables)


async def test_a_head_that_is_not_full_is_written_out_after_a_day(files: StoreHarness) -> None:
    files.reopen(limits=CompactionLimits())
    times = fill(files, 3)
    await files.maintain(after=DAY - 1)
    assert (files.segment_files, files.count("sample_journal")) == ([], 3)
    await files.maintain(after=1)
    assert (len(files.segment_files), files.count("sample_journal")) == (2, 0)
    assert await files.times() == times


async def test_segments_become_fewer_and_larger(files: StoreHarness) -> None:
    files.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=3))
    for step in range(27):
        files.commit({DEVICE: [build_row(NOON + step)]})
        await files.maintain()
        assert len(files.segment_files) <= 6
    assert len(files.segment_files) == 1
    assert await files.times() == [NOON + step for step in range(27)]


# --- Disks that fail ---


def connect_to_a_full_disk(place: Path, **options: Any) -> sqlite3.Connection:
    """Let a file have one page: SQLite says of it what it says of a full disk."""
    connection: sqlite3.Connection = dbapi2.connect(place, **options)
    connection.execute("PRAGMA max_page_count = 1")
    return connection


async def test_a_full_disk_loses_nothing_and_is_not_made_fuller(
    files: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.reopen(limits=CompactionLimits(memtable_samples=2, merge_count=100))
    with monkeypatch.context() as full:
        full.setattr(sqlite3, "connect", connect_to_a_full_disk)  # segments do, the database does not
        times = fill(files, 4)
        for _ in range(3):
            with pytest.raises(sqlite3.OperationalError, match="full"):
                await files.maintain()
            assert files.segment_files == []
            assert not await is_free(files)
            assert await files.times() == times
        files.commit({DEVICE: [build_stray_row(NOON - 1)]})
        assert await files.times() == [NOON - 1, *times]
        files.reopen()
        assert await files.times() == [NOON - 1, *times]
        with pytest.raises(sqlite3.OperationalError):
            await files.maintain()
    await files.maintain()
    assert await is_free(files)
    assert await files.times() == [NOON - 1, *times]
    assert (files.segment_files, files.count("sample_journal")) == (files.registered_files, 0)


async def test_a_folder_that_vanished_loses_nothing_of_the_head(files: StoreHarness) -> None:
    times = fill(files, 4)
    files.folder.rmdir()
    files.folder.write_text("in the way")
    for _ in range(2):
        with pytest.raises(OSError, match="Not a directory"):
            await files.maintain()
        assert await files.times() == times
    files.folder.unlink()
    files.folder.mkdir()
    await files.maintain()
    files.reopen()
    assert await files.times() == times


def _rename(connection: Connection, name: str, new: str) -> None:
    connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO {new}")


async def test_files_that_the_database_could_not_be_told_of_are_made_only_once(files: StoreHarness) -> None:
    times = fill(files, 4)
    files.database.write_now(_rename, "sample_segment", "away")
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            await files.maintain()
        assert len(files.segment_files) == 3
        assert await files.times() == times
    files.database.write_now(_rename, "away", "sample_segment")
    await files.maintain()
    assert (files.segment_files, files.count("sample_journal")) == (files.registered_files, 0)
    assert await files.times() == times


async def test_segments_that_could_not_be_replaced_are_merged_only_once(files: StoreHarness) -> None:
    for step in range(3):
        files.commit({DEVICE: [build_row(NOON + step)]})
        await files.maintain()
    files.reopen(limits=SMALL_LIMITS._replace(merge_count=3))
    files.database.write_now(_rename, "sample_segment", "away")
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            await files.maintain()
        assert len(files.segment_files) == 4
        assert await files.times() == [NOON, NOON + 1, NOON + 2]
    files.database.write_now(_rename, "away", "sample_segment")
    await files.maintain()
    assert len(files.segment_files) == 1
    assert files.segment_files == files.registered_files
    assert await files.times() == [NOON, NOON + 1, NOON + 2]


async def test_what_was_committed_without_an_answer_is_done_again_and_there_once(
    files: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = fill(files, 4)
    real = files.database.write

    async def lose_the_answer(*args: Any) -> None:
        await real(*args)
        raise DatabaseUnavailable("nobody knows whether it was committed")

    with monkeypatch.context() as silent:
        silent.setattr(files.database, "write", lose_the_answer)
        with pytest.raises(DatabaseUnavailable):
            await files.maintain()
    assert await files.times() == times
    files.commit({DEVICE: [build_row(NOON - 1)]})
    await files.maintain()
    assert (len(files.segment_files), files.segment_files) == (3, files.registered_files)
    files.reopen()  # what came meanwhile is not taken for what has to go
    assert await files.times() == [NOON - 1, *times]


# --- Who can read them ---


async def test_only_the_owner_can_read_the_folder_and_its_files(files: StoreHarness) -> None:
    fill(files, 4)
    await files.maintain()
    assert files.folder.stat().st_mode & 0o777 == 0o700
    assert {place.stat().st_mode & 0o777 for place in files.folder.iterdir()} == {0o600}
