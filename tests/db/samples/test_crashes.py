"""The program may end at any moment: files and database are copied at every step, and opened again."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db import Database
from meshfleet.db import sqlite as in_file
from meshfleet.db.samples import segments
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

    from meshfleet.db.samples import SampleRows, StoredSample

pytestmark = pytest.mark.anyio

NAME = "meshfleet.sqlite"

PATIENCE = 30.0
"""Seconds until something must have happened; reached only when it is broken."""


class SnapshotRecorder:
    """Takes pictures of a data directory before and after each step that changes something."""

    def __init__(self, source: Path, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pictures: list[Path] = []
        self._source = source
        self._album = album
        self._monkeypatch = monkeypatch
        self._last: object = None

    async def record_steps(self, deed: Coroutine[Any, Any, None]) -> list[Path]:
        """Watch something from its beginning to its end."""
        for thing, name in (
            (segments, "_publish_file"),
            (segments, "write_segment"),
            (Database, "write"),
            (Path, "rename"),
            (Path, "unlink"),
        ):
            self._watch(thing, name)
        await deed
        self._monkeypatch.undo()
        return self.pictures

    def _watch(self, thing: Any, name: str) -> None:
        """Take pictures around a function or a method; what it does stays as it is."""
        real: Callable[..., Any] = getattr(thing, name)

        async def later(*args: Any) -> Any:
            result = await real(*args)
            self._take()
            return result

        def step(*args: Any, **kwargs: Any) -> Any:
            self._take()
            if asyncio.iscoroutinefunction(real):
                return later(*args)
            result = real(*args, **kwargs)
            self._take()
            return result

        self._monkeypatch.setattr(thing, name, step)

    def _take(self) -> None:
        parts = [self._source / NAME, self._source / f"{NAME}-wal", *(self._source / "samples").iterdir()]
        scene = sorted((each, each.stat().st_size, each.stat().st_mtime_ns) for each in parts)
        if scene == self._last:
            return
        self._last = scene
        picture = self._album / str(len(self.pictures))
        picture.mkdir(parents=True)
        for name in (NAME, f"{NAME}-wal"):
            shutil.copy(self._source / name, picture / name)
        shutil.copytree(self._source / "samples", picture / "samples")
        self.pictures.append(picture)


@pytest.fixture
def camera(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SnapshotRecorder:
    return SnapshotRecorder(tmp_path, tmp_path / "album", monkeypatch)


def batch(step: int) -> SampleRows:
    """Samples of two devices and days, one of them as before."""
    rows = [
        build_row(NOON - DAY),
        build_row(NOON + step, float(step)),
        build_row(NOON + DAY + step),
        build_stray_row(step),
    ]
    return {DEVICE: rows, OTHER: rows[:2]}


async def everything(trial: StoreHarness) -> list[list[StoredSample]]:
    return [await trial.read(device) for device in (DEVICE, OTHER)]


async def assert_recovers(
    picture: Path, expected: list[list[StoredSample]], limits: CompactionLimits
) -> None:
    """The picture has all samples, goes on having them, and nothing else is left lying about."""
    database = Database(in_file.create_sqlite_engines(picture / NAME))
    try:
        with StoreHarness(database, picture) as after:
            assert await everything(after) == expected
            assert after.segment_files == after.registered_files
            after.reopen(limits=limits)
            await after.maintain(after=DAY)
            assert await everything(after) == expected
            assert after.segment_files == after.registered_files
            assert after.count("sample_journal") == 0
    finally:
        database.close()


async def test_a_program_that_ends_while_it_writes_out_loses_nothing(
    files: StoreHarness, camera: SnapshotRecorder
) -> None:
    for step in range(3):
        files.commit(batch(step))
    expected = await everything(files)
    pictures = await camera.record_steps(files.maintain())
    assert len(pictures) > 5
    for picture in pictures:
        await assert_recovers(picture, expected, SMALL_LIMITS)


async def test_a_program_that_ends_while_it_merges_loses_nothing(
    files: StoreHarness, camera: SnapshotRecorder
) -> None:
    limits = CompactionLimits(memtable_samples=1, merge_count=3)
    for step in range(3):
        files.commit(batch(step))
        await files.maintain()
    expected = await everything(files)
    files.reopen(limits=limits)
    pictures = await camera.record_steps(files.maintain())
    assert len(files.segment_files) == 4
    assert len(pictures) > 15
    for picture in pictures:
        await assert_recovers(picture, expected, limits)


async def test_what_is_left_of_an_interrupted_write_goes_and_nothing_else_does(files: StoreHarness) -> None:
    files.commit(batch(1))
    await files.maintain()
    known = files.segment_files
    for name in ("00000099.unfinished", "notes.txt", "notes.samples"):
        (files.folder / name).write_bytes(b"half of it")
    files.reopen()
    assert files.segment_files == sorted([*known, "notes.txt", "notes.samples"])
    assert files.quarantined_files == []


async def test_what_the_database_knew_once_goes_and_what_it_never_knew_is_put_aside(
    files: StoreHarness, caplog: pytest.LogCaptureFixture
) -> None:
    files.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=2))
    for step in range(2):
        files.commit(batch(step))
        await files.maintain()
    known = files.segment_files
    assert "00000001.samples" not in known
    (files.folder / "00000001.samples").write_bytes(b"merged into another one")
    files.reopen()
    assert (files.segment_files, files.quarantined_files, caplog.records) == (known, [], [])
    for content in (b"one", b"another"):
        (files.folder / "00000098.samples").write_bytes(content)
        files.reopen()
    assert (files.segment_files, files.quarantined_files) == (
        known,
        ["00000098.1.samples", "00000098.samples"],
    )
    aside = files.folder / "unknown"
    assert [(aside / name).read_bytes() for name in files.quarantined_files] == [b"another", b"one"]
    assert aside.stat().st_mode & 0o777 == 0o700
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    files.reopen(limits=SMALL_LIMITS)
    files.commit({DEVICE: [build_row(NOON)]})
    await files.maintain()
    assert files.segment_files == [*known, "00000099.samples"]


async def test_an_older_database_that_is_put_back_alone_costs_no_file(
    files: StoreHarness, tmp_path: Path
) -> None:
    """And all is there again when the newer one comes back."""
    older, newer = tmp_path / "older", tmp_path / "newer"
    files.commit(batch(0))
    await files.maintain()
    older.mkdir()
    for name in (NAME, f"{NAME}-wal"):
        shutil.copy(tmp_path / name, older / name)
    for step in range(1, 4):
        files.commit(batch(step))
        await files.maintain()
    expected = await everything(files)
    newer.mkdir()
    for name in (NAME, f"{NAME}-wal"):
        shutil.copy(tmp_path / name, newer / name)
    shutil.copytree(files.folder, older / "samples")

    database = Database(in_file.create_sqlite_engines(older / NAME))
    with StoreHarness(database, older) as back:
        assert (len(back.segment_files), back.segment_files) == (4, back.registered_files)
        assert sorted(back.segment_files + back.quarantined_files) == files.segment_files
        back.commit(batch(9))
        await back.maintain()
        assert not {*back.segment_files} & {*back.quarantined_files}
    database.close()

    for place in (older / "samples" / "unknown").iterdir():
        place.rename(older / "samples" / place.name)
    (older / "samples").rename(newer / "samples")
    database = Database(in_file.create_sqlite_engines(newer / NAME))
    with StoreHarness(database, newer) as again:
        assert await everything(again) == expected
        assert again.segment_files == files.segment_files
        assert len(again.quarantined_files) == 4
    database.close()


async def test_a_program_that_is_told_to_end_while_it_writes_out_leaves_nothing(
    files: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.commit(batch(1))
    asked, may_write = threading.Event(), threading.Event()
    real = segments.write_segment

    def write(*args: Any) -> None:
        if files.segment_files:  # one of several is there
            asked.set()
            assert may_write.wait(PATIENCE)
        real(*args)

    monkeypatch.setattr(segments, "write_segment", write)
    tending = asyncio.create_task(files.maintain())
    assert await asyncio.to_thread(asked.wait, PATIENCE)
    tending.cancel()
    await asyncio.wait([tending])
    may_write.set()
    files.store.close()
    assert (files.segment_files, files.registered_files) == ([], [])


async def test_upkeep_that_is_cancelled_at_any_moment_is_done_the_next_time(files: StoreHarness) -> None:
    files.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=2))
    expected: list[list[StoredSample]] = []
    for step in range(12):
        files.commit(batch(step))
        expected = await everything(files)
        tending = asyncio.create_task(files.maintain())
        for _ in range(step):
            await asyncio.sleep(0)
        tending.cancel()
        await asyncio.wait([tending])
        assert await everything(files) == expected
        if step % 3 == 2:
            files.reopen()
            assert await everything(files) == expected
    await files.maintain()
    assert await everything(files) == expected
    files.reopen()
    assert files.segment_files == files.registered_files
    assert files.count("sample_journal") == 0
    assert await everything(files) == expected
