"""Staging of a backup while the service merges and deletes segments."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from threading import Event
from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.db.samples.sqlite_store import CompactionLimits, SqliteSampleStore
from meshfleet.errors.backup import BackupFailed
from meshfleet.service.backup.sqlite_backup import StagedFiles, stage_files
from tests.databases import open_sqlite
from tests.db.samples.store_harness import DAY, DEVICE, HOUR, NOON, build_query, build_row
from tests.service.embedded_broker.running_broker import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.db.samples.store_harness import StoreHarness

pytestmark = pytest.mark.anyio

EAGER_LIMITS = CompactionLimits(memtable_samples=1, merge_count=2)


@pytest.mark.parametrize("backups", [5, pytest.param(50, marks=pytest.mark.part("long"))])
async def test_backups_are_complete_while_segments_are_merged_and_expire(
    sqlite_harness: StoreHarness, tmp_path: Path, backups: int
) -> None:
    harness = sqlite_harness
    harness.reopen(limits=EAGER_LIMITS, retention={SampleKind.LINK: DAY})
    committed = 0
    is_finished = False

    async def write() -> None:
        nonlocal committed
        for number in count(1):
            expired = build_row(NOON - 9 * DAY + number, kind=SampleKind.LINK)
            await asyncio.to_thread(harness.commit, {DEVICE: [build_row(NOON + number), expired]})
            committed = number
            await harness.maintain(after=HOUR)
            if is_finished:
                return

    async def wait_for_commits(number: int) -> None:
        await until(lambda: committed >= number)

    writer = asyncio.create_task(write())
    seen = []
    for number in range(backups):
        await wait_for_commits(3 * number)
        before = committed
        times = await asyncio.to_thread(_back_up_and_read, tmp_path, tmp_path / f"copy-{number}")
        assert times[:before] == [NOON + each for each in range(1, before + 1)]
        seen.append(len(times))
    is_finished = True
    await writer
    assert seen == sorted(seen)


@pytest.mark.usefixtures("sqlite_database")
def test_an_error_while_a_backup_is_written_removes_its_files(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError),
        stage_files(tmp_path, lambda: 0, Event(), with_samples=True),
    ):
        raise FileNotFoundError
    assert not list(tmp_path.glob("backup-staging-*"))


@pytest.mark.usefixtures("sqlite_database")
def test_backups_at_the_same_time_leave_the_files_of_each_other(tmp_path: Path) -> None:
    def stage(_: int) -> bool:
        with stage_files(tmp_path, lambda: 0, Event(), with_samples=True) as staged:
            return staged.database.exists()

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(stage, range(40)))
    assert not list(tmp_path.glob("backup-staging-*"))


@pytest.mark.usefixtures("sqlite_database")
def test_copying_a_large_database_can_be_stopped(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "meshfleet.sqlite")) as database, database:
        database.execute(
            "CREATE TABLE filler AS WITH RECURSIVE numbers (n) AS"
            " (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT 200000) SELECT n FROM numbers"
        )
    stop = Event()
    stop.set()
    with (
        pytest.raises(BackupFailed, match="stopped before it was complete"),
        stage_files(tmp_path, lambda: 0, stop, with_samples=True),
    ):
        raise AssertionError("it was copied")
    assert not list(tmp_path.glob("backup-staging-*"))


def _back_up_and_read(data: Path, copy: Path) -> list[int]:
    """Stage a backup, open a copy of it like a service, and return the times of the recent samples."""
    with stage_files(data, lambda: 0, Event(), with_samples=True) as staged:
        _copy(staged, copy)
    database = open_sqlite(copy / "meshfleet.sqlite")
    store = SqliteSampleStore(database, copy / "samples", {}, now=NOON)
    try:
        samples = asyncio.run(store.read(build_query(since=NOON, until=NOON + DAY), list))
    finally:
        store.close()
        database.close()
    return [sample.time for sample in samples]


def _copy(staged: StagedFiles, target: Path) -> None:
    target.mkdir()
    (target / "samples").mkdir()
    shutil.copy(staged.database, target)
    with closing(sqlite3.connect(staged.database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    for path in staged.samples:
        shutil.copy(path, target / "samples")
