"""The program may end at any moment: files and database are copied at every step, and opened again."""

from __future__ import annotations

import asyncio
import shutil
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
    for name in ("00000099.unfinished", "00000098.samples", "notes.txt"):
        (files.folder / name).write_bytes(b"half of it")
    files.reopen()
    assert files.names == sorted([*known, "notes.txt"])


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
