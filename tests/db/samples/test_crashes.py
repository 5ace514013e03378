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
from meshfleet.db.samples.in_files import Limits
from tests.db.samples.trial import DAY, DEVICE, NOON, OTHER, SMALL, Trial, row, stray

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from meshfleet.db.samples import Rows, Sample

pytestmark = pytest.mark.anyio

NAME = "meshfleet.sqlite"

PATIENCE = 30.0
"""Seconds until something must have happened; reached only when it is broken."""


class Camera:
    """Takes pictures of a data directory before and after each step that changes something."""

    def __init__(self, source: Path, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pictures: list[Path] = []
        self._source = source
        self._album = album
        self._monkeypatch = monkeypatch
        self._last: object = None

    async def film(self, deed: Coroutine[Any, Any, None]) -> list[Path]:
        """Watch something from its beginning to its end."""
        for thing, name in (
            (segments, "_finish"),
            (segments, "write"),
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
def camera(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Camera:
    return Camera(tmp_path, tmp_path / "album", monkeypatch)


def batch(step: int) -> Rows:
    """Samples of two devices and days, one of them as before."""
    rows = [row(NOON - DAY), row(NOON + step, float(step)), row(NOON + DAY + step), stray(step)]
    return {DEVICE: rows, OTHER: rows[:2]}


async def everything(trial: Trial) -> list[list[Sample]]:
    return [await trial.read(device) for device in (DEVICE, OTHER)]


async def prove(picture: Path, expected: list[list[Sample]], limits: Limits) -> None:
    """The picture has all samples, goes on having them, and nothing else is left lying about."""
    database = Database(in_file.engines(picture / NAME))
    try:
        with Trial(database, picture) as after:
            assert await everything(after) == expected
            assert after.names == after.registered
            after.reopen(limits=limits)
            await after.tend(after=DAY)
            assert await everything(after) == expected
            assert after.names == after.registered
            assert after.count("sample_journal") == 0
    finally:
        database.close()


async def test_a_program_that_ends_while_it_writes_out_loses_nothing(files: Trial, camera: Camera) -> None:
    for step in range(3):
        files.put(batch(step))
    expected = await everything(files)
    pictures = await camera.film(files.tend())
    assert len(pictures) > 5
    for picture in pictures:
        await prove(picture, expected, SMALL)


async def test_a_program_that_ends_while_it_merges_loses_nothing(files: Trial, camera: Camera) -> None:
    limits = Limits(full=1, fan=3)
    for step in range(3):
        files.put(batch(step))
        await files.tend()
    expected = await everything(files)
    files.reopen(limits=limits)
    pictures = await camera.film(files.tend())
    assert len(files.names) == 4
    assert len(pictures) > 15
    for picture in pictures:
        await prove(picture, expected, limits)


async def test_what_is_left_of_an_interrupted_write_goes_and_nothing_else_does(files: Trial) -> None:
    files.put(batch(1))
    await files.tend()
    known = files.names
    for name in ("00000099.unfinished", "notes.txt", "notes.samples"):
        (files.folder / name).write_bytes(b"half of it")
    files.reopen()
    assert files.names == sorted([*known, "notes.txt", "notes.samples"])
    assert files.put_aside == []


async def test_what_the_database_knew_once_goes_and_what_it_never_knew_is_put_aside(
    files: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    files.reopen(limits=Limits(full=1, fan=2))
    for step in range(2):
        files.put(batch(step))
        await files.tend()
    known = files.names
    assert "00000001.samples" not in known
    (files.folder / "00000001.samples").write_bytes(b"merged into another one")
    files.reopen()
    assert (files.names, files.put_aside, caplog.records) == (known, [], [])
    for content in (b"one", b"another"):
        (files.folder / "00000098.samples").write_bytes(content)
        files.reopen()
    assert (files.names, files.put_aside) == (known, ["00000098.1.samples", "00000098.samples"])
    aside = files.folder / "unknown"
    assert [(aside / name).read_bytes() for name in files.put_aside] == [b"another", b"one"]
    assert aside.stat().st_mode & 0o777 == 0o700
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    files.reopen(limits=SMALL)
    files.put({DEVICE: [row(NOON)]})
    await files.tend()
    assert files.names == [*known, "00000099.samples"]


async def test_an_older_database_that_is_put_back_alone_costs_no_file(files: Trial, tmp_path: Path) -> None:
    """And all is there again when the newer one comes back."""
    older, newer = tmp_path / "older", tmp_path / "newer"
    files.put(batch(0))
    await files.tend()
    older.mkdir()
    for name in (NAME, f"{NAME}-wal"):
        shutil.copy(tmp_path / name, older / name)
    for step in range(1, 4):
        files.put(batch(step))
        await files.tend()
    expected = await everything(files)
    newer.mkdir()
    for name in (NAME, f"{NAME}-wal"):
        shutil.copy(tmp_path / name, newer / name)
    shutil.copytree(files.folder, older / "samples")

    database = Database(in_file.engines(older / NAME))
    with Trial(database, older) as back:
        assert (len(back.names), back.names) == (4, back.registered)
        assert sorted(back.names + back.put_aside) == files.names
        back.put(batch(9))
        await back.tend()
        assert not {*back.names} & {*back.put_aside}
    database.close()

    for place in (older / "samples" / "unknown").iterdir():
        place.rename(older / "samples" / place.name)
    (older / "samples").rename(newer / "samples")
    database = Database(in_file.engines(newer / NAME))
    with Trial(database, newer) as again:
        assert await everything(again) == expected
        assert again.names == files.names
        assert len(again.put_aside) == 4
    database.close()


async def test_a_program_that_is_told_to_end_while_it_writes_out_leaves_nothing(
    files: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put(batch(1))
    asked, may_write = threading.Event(), threading.Event()
    real = segments.write

    def write(*args: Any) -> None:
        if files.names:  # one of several is there
            asked.set()
            assert may_write.wait(PATIENCE)
        real(*args)

    monkeypatch.setattr(segments, "write", write)
    tending = asyncio.create_task(files.tend())
    assert await asyncio.to_thread(asked.wait, PATIENCE)
    tending.cancel()
    await asyncio.wait([tending])
    may_write.set()
    files.store.close()
    assert (files.names, files.registered) == ([], [])


async def test_upkeep_that_is_cancelled_at_any_moment_is_done_the_next_time(files: Trial) -> None:
    files.reopen(limits=Limits(full=1, fan=2))
    expected: list[list[Sample]] = []
    for step in range(12):
        files.put(batch(step))
        expected = await everything(files)
        tending = asyncio.create_task(files.tend())
        for _ in range(step):
            await asyncio.sleep(0)
        tending.cancel()
        await asyncio.wait([tending])
        assert await everything(files) == expected
        if step % 3 == 2:
            files.reopen()
            assert await everything(files) == expected
    await files.tend()
    assert await everything(files) == expected
    files.reopen()
    assert files.names == files.registered
    assert files.count("sample_journal") == 0
    assert await everything(files) == expected
