"""Crashes at any time: files and database are copied at every step, and opened again."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db import Database
from meshfleet.db import sqlite as in_file
from meshfleet.db.samples import SampleRows, StoredSample, segments
from meshfleet.db.samples.sqlite_store import CompactionLimits
from tests.db.samples.store_harness import (
    DAY,
    DEVICE,
    NOON,
    OTHER,
    SMALL_LIMITS,
    StoreHarness,
    build_row,
    build_stray_row,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


pytestmark = pytest.mark.anyio

DATABASE_NAME = "meshfleet.sqlite"

PATIENCE = 30.0
"""Seconds until an expected event must have happened; reached only by a defect."""


class SnapshotRecorder:
    """Copies a data directory before and after each step that changes it."""

    def __init__(self, source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.snapshots: list[Path] = []
        self._source = source
        self._target = target
        self._monkeypatch = monkeypatch
        self._last: object = None

    async def record_steps(self, action: Coroutine[Any, Any, None]) -> list[Path]:
        """Run an action and record its steps."""
        for owner, name in (
            (segments, "_sync_and_rename"),
            (segments, "write_segment"),
            (Database, "write"),
            (Path, "rename"),
            (Path, "unlink"),
        ):
            self._record_calls(owner, name)
        await action
        self._monkeypatch.undo()
        return self.snapshots

    def _record_calls(self, owner: Any, name: str) -> None:
        """Record snapshots around a function or method; its behavior is unchanged."""
        real: Callable[..., Any] = getattr(owner, name)

        async def finish(*args: Any) -> Any:
            result = await real(*args)
            self._take_snapshot()
            return result

        def call_recorded(*args: Any, **kwargs: Any) -> Any:
            self._take_snapshot()
            if asyncio.iscoroutinefunction(real):
                return finish(*args)
            result = real(*args, **kwargs)
            self._take_snapshot()
            return result

        self._monkeypatch.setattr(owner, name, call_recorded)

    def _take_snapshot(self) -> None:
        parts = [
            self._source / DATABASE_NAME,
            self._source / f"{DATABASE_NAME}-wal",
            *(self._source / "samples").iterdir(),
        ]
        state = sorted((path, path.stat().st_size, path.stat().st_mtime_ns) for path in parts)
        if state == self._last:
            return
        self._last = state
        snapshot = self._target / str(len(self.snapshots))
        snapshot.mkdir(parents=True)
        for name in (DATABASE_NAME, f"{DATABASE_NAME}-wal"):
            shutil.copy(self._source / name, snapshot / name)
        shutil.copytree(self._source / "samples", snapshot / "samples")
        self.snapshots.append(snapshot)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SnapshotRecorder:
    return SnapshotRecorder(tmp_path, tmp_path / "snapshots", monkeypatch)


def build_batch(step: int) -> SampleRows:
    """Build samples of two devices and several days, one of them the same in every step."""
    rows = [
        build_row(NOON - DAY),
        build_row(NOON + step, float(step)),
        build_row(NOON + DAY + step),
        build_stray_row(step),
    ]
    return {DEVICE: rows, OTHER: rows[:2]}


async def read_all(harness: StoreHarness) -> list[list[StoredSample]]:
    return [await harness.read(device) for device in (DEVICE, OTHER)]


async def assert_recovers(
    snapshot: Path, expected: list[list[StoredSample]], limits: CompactionLimits
) -> None:
    """Open a snapshot: all samples are there, also after maintenance, and no files are left over."""
    database = Database(in_file.create_sqlite_engines(snapshot / DATABASE_NAME))
    try:
        with StoreHarness(database, snapshot) as harness:
            assert await read_all(harness) == expected
            assert harness.segment_files == harness.registered_files
            harness.reopen(limits=limits)
            await harness.maintain(after=DAY)
            assert await read_all(harness) == expected
            assert harness.segment_files == harness.registered_files
            assert harness.count("sample_journal") == 0
    finally:
        database.close()


async def test_a_crash_during_a_flush_loses_nothing(
    sqlite_harness: StoreHarness, recorder: SnapshotRecorder
) -> None:
    for step in range(3):
        sqlite_harness.commit(build_batch(step))
    expected = await read_all(sqlite_harness)
    snapshots = await recorder.record_steps(sqlite_harness.maintain())
    assert len(snapshots) > 5
    for snapshot in snapshots:
        await assert_recovers(snapshot, expected, SMALL_LIMITS)


async def test_a_crash_during_a_merge_loses_nothing(
    sqlite_harness: StoreHarness, recorder: SnapshotRecorder
) -> None:
    limits = CompactionLimits(memtable_samples=1, merge_count=3)
    for step in range(3):
        sqlite_harness.commit(build_batch(step))
        await sqlite_harness.maintain()
    expected = await read_all(sqlite_harness)
    sqlite_harness.reopen(limits=limits)
    snapshots = await recorder.record_steps(sqlite_harness.maintain())
    assert len(sqlite_harness.segment_files) == 4
    assert len(snapshots) > 15
    for snapshot in snapshots:
        await assert_recovers(snapshot, expected, limits)


async def test_only_leftovers_of_an_interrupted_write_are_deleted(sqlite_harness: StoreHarness) -> None:
    sqlite_harness.commit(build_batch(1))
    await sqlite_harness.maintain()
    registered = sqlite_harness.segment_files
    for name in ("00000099.unfinished", "notes.txt", "notes.samples"):
        (sqlite_harness.folder / name).write_bytes(b"half of it")
    sqlite_harness.reopen()
    assert sqlite_harness.segment_files == sorted([*registered, "notes.txt", "notes.samples"])
    assert sqlite_harness.quarantined_files == []


async def test_replaced_segments_are_deleted_and_unknown_ones_are_quarantined(
    sqlite_harness: StoreHarness, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite_harness.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=2))
    for step in range(2):
        sqlite_harness.commit(build_batch(step))
        await sqlite_harness.maintain()
    registered = sqlite_harness.segment_files
    assert "00000001.samples" not in registered
    (sqlite_harness.folder / "00000001.samples").write_bytes(b"merged into another one")
    sqlite_harness.reopen()
    assert (sqlite_harness.segment_files, sqlite_harness.quarantined_files, caplog.records) == (
        registered,
        [],
        [],
    )
    for content in (b"one", b"another"):
        (sqlite_harness.folder / "00000098.samples").write_bytes(content)
        sqlite_harness.reopen()
    assert (sqlite_harness.segment_files, sqlite_harness.quarantined_files) == (
        registered,
        ["00000098.1.samples", "00000098.samples"],
    )
    quarantine = sqlite_harness.folder / "unknown"
    assert [(quarantine / name).read_bytes() for name in sqlite_harness.quarantined_files] == [
        b"another",
        b"one",
    ]
    assert quarantine.stat().st_mode & 0o777 == 0o700
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    sqlite_harness.reopen(limits=SMALL_LIMITS)
    sqlite_harness.commit({DEVICE: [build_row(NOON)]})
    await sqlite_harness.maintain()
    assert sqlite_harness.segment_files == [*registered, "00000099.samples"]


async def test_restoring_only_an_older_database_loses_no_segment_file(
    sqlite_harness: StoreHarness, tmp_path: Path
) -> None:
    """Check also that all samples are available again when the newer database is restored."""
    older, newer = tmp_path / "older", tmp_path / "newer"
    sqlite_harness.commit(build_batch(0))
    await sqlite_harness.maintain()
    older.mkdir()
    for name in (DATABASE_NAME, f"{DATABASE_NAME}-wal"):
        shutil.copy(tmp_path / name, older / name)
    for step in range(1, 4):
        sqlite_harness.commit(build_batch(step))
        await sqlite_harness.maintain()
    expected = await read_all(sqlite_harness)
    newer.mkdir()
    for name in (DATABASE_NAME, f"{DATABASE_NAME}-wal"):
        shutil.copy(tmp_path / name, newer / name)
    shutil.copytree(sqlite_harness.folder, older / "samples")

    database = Database(in_file.create_sqlite_engines(older / DATABASE_NAME))
    with StoreHarness(database, older) as restored:
        assert (len(restored.segment_files), restored.segment_files) == (4, restored.registered_files)
        assert sorted(restored.segment_files + restored.quarantined_files) == sqlite_harness.segment_files
        restored.commit(build_batch(9))
        await restored.maintain()
        assert not {*restored.segment_files} & {*restored.quarantined_files}
    database.close()

    for path in (older / "samples" / "unknown").iterdir():
        path.rename(older / "samples" / path.name)
    (older / "samples").rename(newer / "samples")
    database = Database(in_file.create_sqlite_engines(newer / DATABASE_NAME))
    with StoreHarness(database, newer) as reopened:
        assert await read_all(reopened) == expected
        assert reopened.segment_files == sqlite_harness.segment_files
        assert len(reopened.quarantined_files) == 4
    database.close()


async def test_closing_the_store_during_a_flush_leaves_no_files(
    sqlite_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_harness.commit(build_batch(1))
    has_started, may_write = threading.Event(), threading.Event()
    real_write = segments.write_segment

    def write_when_allowed(*args: Any) -> None:
        if sqlite_harness.segment_files:  # the first of several is written
            has_started.set()
            assert may_write.wait(PATIENCE)
        real_write(*args)

    monkeypatch.setattr(segments, "write_segment", write_when_allowed)
    maintenance = asyncio.create_task(sqlite_harness.maintain())
    assert await asyncio.to_thread(has_started.wait, PATIENCE)
    maintenance.cancel()
    await asyncio.wait([maintenance])
    may_write.set()
    sqlite_harness.store.close()
    assert (sqlite_harness.segment_files, sqlite_harness.registered_files) == ([], [])


async def test_canceled_maintenance_is_completed_the_next_time(sqlite_harness: StoreHarness) -> None:
    sqlite_harness.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=2))
    expected: list[list[StoredSample]] = []
    for step in range(12):
        sqlite_harness.commit(build_batch(step))
        expected = await read_all(sqlite_harness)
        maintenance = asyncio.create_task(sqlite_harness.maintain())
        for _ in range(step):
            await asyncio.sleep(0)
        maintenance.cancel()
        await asyncio.wait([maintenance])
        assert await read_all(sqlite_harness) == expected
        if step % 3 == 2:
            sqlite_harness.reopen()
            assert await read_all(sqlite_harness) == expected
    await sqlite_harness.maintain()
    assert await read_all(sqlite_harness) == expected
    sqlite_harness.reopen()
    assert sqlite_harness.segment_files == sqlite_harness.registered_files
    assert sqlite_harness.count("sample_journal") == 0
    assert await read_all(sqlite_harness) == expected
