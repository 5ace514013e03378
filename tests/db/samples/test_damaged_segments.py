"""Segments that were damaged: whoever asks for them is told so, and everybody else is not disturbed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples.sqlite_store import CompactionLimits
from meshfleet.errors import DatabaseUnavailable, SamplesDamaged
from tests.db.samples.store_harness import DAY, DEVICE, NOON, OTHER, build_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.db.samples.store_harness import StoreHarness

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
async def damaged(files: StoreHarness, request: pytest.FixtureRequest) -> StoreHarness:
    """A store with three segments of one day, the second of which is damaged, and one of another day."""
    for step in range(3):
        rows = [build_row(NOON + step), build_row(NOON + step, kind=3)]
        files.commit({DEVICE: rows, OTHER: rows})
        await files.maintain()
    files.commit({DEVICE: [build_row(LATER)]})
    await files.maintain()
    damage: Callable[[Path], None] = request.param
    damage(files.folder / files.segment_files[1])
    return files


async def test_what_cannot_be_read_for_a_moment_is_not_damaged(files: StoreHarness) -> None:
    for step in range(3):
        files.commit({DEVICE: [build_row(NOON + step)]})
        await files.maintain()
    files.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=3))
    place, away = files.folder / files.segment_files[1], files.folder / "away"
    place.rename(away)
    place.mkdir()  # which cannot be opened, as if too many files were open
    with pytest.raises(DatabaseUnavailable, match=r"00000002\.samples"):
        await files.read()
    with pytest.raises(DatabaseUnavailable, match=r"00000002\.samples"):
        await files.maintain()
    place.rmdir()
    away.rename(place)
    assert await files.times() == [NOON, NOON + 1, NOON + 2]
    await files.maintain()
    assert len(files.segment_files) == 1
    assert await files.times() == [NOON, NOON + 1, NOON + 2]


async def refused(trial: StoreHarness) -> str:
    with pytest.raises(SamplesDamaged) as raised:
        await trial.read()
    return str(raised.value)


async def test_who_asks_for_damaged_samples_is_told_and_nobody_else(damaged: StoreHarness) -> None:
    assert "00000002.samples" in await refused(damaged)
    assert await damaged.times(since=LATER) == [LATER]
    assert await damaged.times(until=NOON - DAY) == []


async def test_damage_stops_neither_writers_nor_upkeep(damaged: StoreHarness) -> None:
    damaged.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=2))
    for step in range(1, 4):
        damaged.commit({DEVICE: [build_row(NOON + step), build_row(LATER + step)]})
        await damaged.maintain()
        assert damaged.count("sample_journal") == 0
    assert await damaged.times(since=LATER) == [LATER, LATER + 1, LATER + 2, LATER + 3]
    assert "00000002.samples" in await refused(damaged)
    assert "00000002.samples" in damaged.registered_files
    assert len(damaged.registered_files) <= 5


async def test_damaged_samples_go_with_all_others_when_they_are_old_enough(damaged: StoreHarness) -> None:
    damaged.reopen(retention={1: DAY, 3: 3 * DAY, **dict.fromkeys((0, 2, 4, 5), DAY)})
    damaged.now = NOON + 2 * DAY
    await damaged.maintain()
    assert "00000002.samples" in await refused(damaged)
    await damaged.maintain(after=2 * DAY)
    assert await damaged.times() == [LATER]
    assert damaged.segment_files == damaged.registered_files
    assert len(damaged.segment_files) == 1
