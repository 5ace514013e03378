"""Damaged segments: only reads of their samples fail."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples.sqlite_store import CompactionLimits
from meshfleet.errors import DatabaseUnavailable, SamplesDamaged
from tests.db.samples.store_harness import DAY, DEVICE, NOON, OTHER, StoreHarness, build_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.anyio

LATER = NOON + 5 * DAY


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path) -> None:
    path.write_bytes(b"This is not a segment." * 1000)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path: Path) -> None:
    path.unlink()


def overwrite_blocks(path: Path, data: bytes) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE chunk SET samples = ?", (data,))


def damage_encoding(path: Path) -> None:
    overwrite_blocks(path, b"\xdd\0\0\0\7no samples")


def damage_types(path: Path) -> None:
    overwrite_blocks(path, b"\xdd\0\0\0\1\xa4none")


DAMAGES = [make_empty, overwrite, truncate, remove, damage_encoding, damage_types]


@pytest.fixture(params=DAMAGES)
async def damaged(sqlite_harness: StoreHarness, request: pytest.FixtureRequest) -> StoreHarness:
    """Create a store with three segments of one day, the second of them damaged, and one of another day."""
    for step in range(3):
        rows = [build_row(NOON + step), build_row(NOON + step, kind=3)]
        sqlite_harness.commit({DEVICE: rows, OTHER: rows})
        await sqlite_harness.maintain()
    sqlite_harness.commit({DEVICE: [build_row(LATER)]})
    await sqlite_harness.maintain()
    damage: Callable[[Path], None] = request.param
    damage(sqlite_harness.folder / sqlite_harness.segment_files[1])
    return sqlite_harness


async def test_a_segment_that_is_temporarily_unreadable_is_not_damaged(sqlite_harness: StoreHarness) -> None:
    for step in range(3):
        sqlite_harness.commit({DEVICE: [build_row(NOON + step)]})
        await sqlite_harness.maintain()
    sqlite_harness.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=3))
    path, moved = sqlite_harness.folder / sqlite_harness.segment_files[1], sqlite_harness.folder / "away"
    path.rename(moved)
    path.mkdir()  # a directory cannot be opened, as if too many files were open
    with pytest.raises(DatabaseUnavailable, match=r"00000002\.samples"):
        await sqlite_harness.read()
    with pytest.raises(DatabaseUnavailable, match=r"00000002\.samples"):
        await sqlite_harness.maintain()
    path.rmdir()
    moved.rename(path)
    assert await sqlite_harness.times() == [NOON, NOON + 1, NOON + 2]
    await sqlite_harness.maintain()
    assert len(sqlite_harness.segment_files) == 1
    assert await sqlite_harness.times() == [NOON, NOON + 1, NOON + 2]


async def read_damaged(harness: StoreHarness) -> str:
    with pytest.raises(SamplesDamaged) as raised:
        await harness.read()
    return str(raised.value)


async def test_only_reads_of_damaged_samples_fail(damaged: StoreHarness) -> None:
    assert "00000002.samples" in await read_damaged(damaged)
    assert await damaged.times(since=LATER) == [LATER]
    assert await damaged.times(until=NOON - DAY) == []


async def test_damage_stops_neither_writes_nor_maintenance(damaged: StoreHarness) -> None:
    damaged.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=2))
    for step in range(1, 4):
        damaged.commit({DEVICE: [build_row(NOON + step), build_row(LATER + step)]})
        await damaged.maintain()
        assert damaged.count("sample_journal") == 0
    assert await damaged.times(since=LATER) == [LATER, LATER + 1, LATER + 2, LATER + 3]
    assert "00000002.samples" in await read_damaged(damaged)
    assert "00000002.samples" in damaged.registered_files
    assert len(damaged.registered_files) <= 5


async def test_damaged_samples_expire_like_all_others(damaged: StoreHarness) -> None:
    damaged.reopen(retention={1: DAY, 3: 3 * DAY, **dict.fromkeys((0, 2, 4, 5), DAY)})
    damaged.now = NOON + 2 * DAY
    await damaged.maintain()
    assert "00000002.samples" in await read_damaged(damaged)
    await damaged.maintain(after=2 * DAY)
    assert await damaged.times() == [LATER]
    assert damaged.segment_files == damaged.registered_files
    assert len(damaged.segment_files) == 1
