"""Segments that were damaged: whoever asks for them is told so, and everybody else is not disturbed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples.in_files import Limits
from meshfleet.errors import DatabaseUnavailable, SamplesDamaged
from tests.db.samples.trial import DAY, DEVICE, NOON, OTHER, row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.db.samples.trial import Trial

pytestmark = pytest.mark.anyio

LATER = NOON + 5 * DAY


def empty(place: Path) -> None:
    place.write_bytes(b"")


def overwrite(place: Path) -> None:
    place.write_bytes(b"This is not a segment." * 1000)


def cut(place: Path) -> None:
    place.write_bytes(place.read_bytes()[: place.stat().st_size // 2])


def remove(place: Path) -> None:
    place.unlink()


def spoil(place: Path, data: bytes) -> None:
    with closing(sqlite3.connect(place)) as file, file:
        file.execute("UPDATE chunk SET samples = ?", (data,))


def spoil_chunks(place: Path) -> None:
    spoil(place, b"\xdd\0\0\0\7no samples")


def spoil_types(place: Path) -> None:
    spoil(place, b"\xdd\0\0\0\1\xa4none")


DAMAGES = [empty, overwrite, cut, remove, spoil_chunks, spoil_types]


@pytest.fixture(params=DAMAGES)
async def damaged(files: Trial, request: pytest.FixtureRequest) -> Trial:
    """A store with three segments of one day, the second of which is damaged, and one of another day."""
    for step in range(3):
        rows = [row(NOON + step), row(NOON + step, kind=3)]
        files.put({DEVICE: rows, OTHER: rows})
        await files.tend()
    files.put({DEVICE: [row(LATER)]})
    await files.tend()
    damage: Callable[[Path], None] = request.param
    damage(files.folder / files.names[1])
    return files


async def test_what_cannot_be_read_for_a_moment_is_not_damaged(files: Trial) -> None:
    for step in range(3):
        files.put({DEVICE: [row(NOON + step)]})
        await files.tend()
    files.reopen(limits=Limits(full=1, fan=3))
    place, away = files.folder / files.names[1], files.folder / "away"
    place.rename(away)
    place.mkdir()  # which cannot be opened, as if too many files were open
    with pytest.raises(DatabaseUnavailable, match=r"00000002\.samples"):
        await files.read()
    with pytest.raises(DatabaseUnavailable, match=r"00000002\.samples"):
        await files.tend()
    place.rmdir()
    away.rename(place)
    assert await files.times() == [NOON, NOON + 1, NOON + 2]
    await files.tend()
    assert len(files.names) == 1
    assert await files.times() == [NOON, NOON + 1, NOON + 2]


async def refused(trial: Trial) -> str:
    with pytest.raises(SamplesDamaged) as raised:
        await trial.read()
    return str(raised.value)


async def test_who_asks_for_damaged_samples_is_told_and_nobody_else(damaged: Trial) -> None:
    assert "00000002.samples" in await refused(damaged)
    assert await damaged.times(since=LATER) == [LATER]
    assert await damaged.times(until=NOON - DAY) == []


async def test_damage_stops_neither_writers_nor_upkeep(damaged: Trial) -> None:
    damaged.reopen(limits=Limits(full=1, fan=2))
    for step in range(1, 4):
        damaged.put({DEVICE: [row(NOON + step), row(LATER + step)]})
        await damaged.tend()
        assert damaged.count("sample_journal") == 0
    assert await damaged.times(since=LATER) == [LATER, LATER + 1, LATER + 2, LATER + 3]
    assert "00000002.samples" in await refused(damaged)
    assert "00000002.samples" in damaged.registered
    assert len(damaged.registered) <= 5


async def test_damaged_samples_go_with_all_others_when_they_are_old_enough(damaged: Trial) -> None:
    damaged.reopen(retention={1: DAY, 3: 3 * DAY, **dict.fromkeys((0, 2, 4, 5), DAY)})
    damaged.now = NOON + 2 * DAY
    await damaged.tend()
    assert "00000002.samples" in await refused(damaged)
    await damaged.tend(after=2 * DAY)
    assert await damaged.times() == [LATER]
    assert damaged.names == damaged.registered
    assert len(damaged.names) == 1
