"""Exactly the samples whose retention has ended are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.db.samples import SampleKind
from meshfleet.db.samples.sqlite_store import CompactionLimits
from tests.db.samples.store_harness import (
    DAY,
    DEVICE,
    HOUR,
    NOON,
    OTHER,
    SMALL_LIMITS,
    build_row,
    build_stray_row,
    to_samples,
)
from tests.db.samples.strategies import MIDNIGHT
from tests.examples import examples

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db.samples.sample import Retention
    from tests.db.samples.store_harness import StoreHarness

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

PROPERTY, MEASUREMENT, EVENT = SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.EVENT
LINK = SampleKind.LINK
SAME_RETENTION: Retention = {int(kind): 10 * DAY for kind in SampleKind}
"""Ten days for every kind."""


def count_partitions(connection: Connection) -> int:
    """Count the partitions that have samples."""
    query = "SELECT count(DISTINCT tableoid) FROM sample"
    return int(connection.exec_driver_sql(query).scalar_one())


def count_containers(harness: StoreHarness) -> int:
    """Count the files or partitions that have samples."""
    return (
        len(harness.segment_files)
        if harness.database.is_sqlite
        else harness.database.read_now(count_partitions)
    )


async def maintain_at(harness: StoreHarness, now: int) -> list[int]:
    """Run maintenance at a time. Return the times of the remaining samples."""
    harness.now = now
    await harness.maintain()
    return await harness.times()


async def test_a_day_is_deleted_as_a_whole_when_its_end_has_expired(harness: StoreHarness) -> None:
    harness.reopen(retention=SAME_RETENTION)
    times = [MIDNIGHT - 1, MIDNIGHT, MIDNIGHT + DAY - 1, MIDNIGHT + DAY]
    harness.commit({DEVICE: [build_row(time) for time in times], OTHER: [build_row(MIDNIGHT)]})
    assert await maintain_at(harness, MIDNIGHT) == times
    assert count_containers(harness) == 3
    assert await maintain_at(harness, MIDNIGHT + 10 * DAY - 1) == times
    harness.reopen()
    assert await maintain_at(harness, MIDNIGHT + 10 * DAY) == times[1:]
    harness.reopen()
    assert await maintain_at(harness, MIDNIGHT + 11 * DAY - 1) == times[1:]
    harness.reopen()
    assert await maintain_at(harness, MIDNIGHT + 11 * DAY) == times[3:]
    assert await harness.times(OTHER) == []
    assert count_containers(harness) == 1
    if harness.database.is_sqlite:
        assert harness.segment_files == harness.registered_files


@pytest.mark.rule("rest-94")
async def test_each_kind_has_its_own_retention_and_some_are_kept_forever(harness: StoreHarness) -> None:
    harness.reopen(retention={PROPERTY: None, MEASUREMENT: 10 * DAY, EVENT: 20 * DAY, LINK: 5 * DAY})
    rows = [build_row(NOON, kind=kind) for kind in SampleKind]
    harness.commit({DEVICE: rows})
    await harness.maintain()
    kept = set(SampleKind)
    for age, expired_kind in ((5, LINK), (10, MEASUREMENT), (20, EVENT), (40_000, None)):
        harness.now = MIDNIGHT + DAY + age * DAY
        await harness.maintain()
        kept -= {expired_kind} if expired_kind is not None else set()
        assert await harness.read() == to_samples(row for row in rows if row[1] in kept)
    assert kept == {PROPERTY, SampleKind.MEASUREMENT_ERROR, SampleKind.HEARTBEAT}


async def test_the_first_duplicate_is_kept_when_its_segment_is_rewritten(
    sqlite_harness: StoreHarness,
) -> None:
    """Rewrite the segment of the first duplicate; that of the second contains nothing expired."""
    sqlite_harness.reopen(
        limits=CompactionLimits(memtable_samples=1, merge_count=3), retention={MEASUREMENT: DAY}
    )
    for number in (1.0, 2.0):
        for step in range(3):
            rows = [build_row(NOON, number, kind=PROPERTY), build_row(NOON + step, kind=EVENT)]
            sqlite_harness.commit({DEVICE: [*rows, build_row(NOON + step)] if number == 1.0 else rows})
            await sqlite_harness.maintain()
    assert len(sqlite_harness.segment_files) == 2
    first, second = sqlite_harness.segment_files
    await sqlite_harness.maintain(after=3 * DAY)
    assert first not in sqlite_harness.segment_files
    assert second in sqlite_harness.segment_files
    for _ in range(2):
        assert await sqlite_harness.read(kinds=frozenset({PROPERTY})) == to_samples(
            [build_row(NOON, 1.0, kind=PROPERTY)]
        )
        sqlite_harness.reopen(limits=SMALL_LIMITS)
    sqlite_harness.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=2))
    await sqlite_harness.maintain()
    assert len(sqlite_harness.segment_files) == 1
    assert await sqlite_harness.read(kinds=frozenset({PROPERTY})) == to_samples(
        [build_row(NOON, 1.0, kind=PROPERTY)]
    )


async def test_an_empty_day_has_no_segment(sqlite_harness: StoreHarness) -> None:
    sqlite_harness.reopen(retention={MEASUREMENT: DAY, PROPERTY: None})
    sqlite_harness.commit({DEVICE: [build_row(NOON)]})
    for day in range(5):
        await maintain_at(sqlite_harness, NOON + day * DAY)
    assert (sqlite_harness.segment_files, sqlite_harness.registered_files) == ([], [])


async def test_without_retention_everything_is_kept(harness: StoreHarness) -> None:
    harness.reopen(retention=dict.fromkeys(SampleKind))
    harness.commit({DEVICE: [build_row(0), build_stray_row(1), build_row(NOON)]})
    for year in range(3):
        assert await maintain_at(harness, NOON + year * 40_000 * DAY) == [0, 1, NOON]


async def test_late_samples_of_a_day_that_was_cleaned_are_deleted_too(harness: StoreHarness) -> None:
    harness.reopen(retention={MEASUREMENT: DAY})
    harness.commit({DEVICE: [build_row(NOON), build_row(NOON, kind=PROPERTY)]})
    assert await maintain_at(harness, NOON + 5 * DAY) == [NOON]
    harness.commit({DEVICE: [build_row(NOON + 1), build_row(NOON + 2, kind=PROPERTY)]})
    await maintain_at(harness, NOON + 6 * DAY)
    assert await maintain_at(harness, NOON + 7 * DAY) == [NOON, NOON + 2]


async def test_late_samples_of_a_deleted_day_are_deleted_too(harness: StoreHarness) -> None:
    harness.reopen(retention=SAME_RETENTION)
    harness.commit({DEVICE: [build_row(NOON)]})
    assert await maintain_at(harness, NOON + 20 * DAY) == []
    harness.commit({DEVICE: [build_row(NOON + 1), build_row(NOON + 19 * DAY)]})
    assert await harness.times() == [NOON + 1, NOON + 19 * DAY]
    assert await maintain_at(harness, NOON + 21 * DAY) == [NOON + 19 * DAY]


@pytest.mark.parametrize("time", [NOON - 9000 * DAY, NOON + 9000 * DAY])
async def test_the_age_of_a_stray_counts_from_its_arrival(harness: StoreHarness, time: int) -> None:
    harness.reopen(retention={MEASUREMENT: 10 * DAY})
    harness.commit({DEVICE: [build_stray_row(time), build_stray_row(time, kind=PROPERTY)]})
    assert await maintain_at(harness, NOON) == [time, time]
    harness.reopen()
    assert await maintain_at(harness, NOON + 10 * DAY - 1) == [time, time]
    harness.reopen()
    assert await maintain_at(harness, NOON + 10 * DAY) == [time]
    assert [sample.kind for sample in await harness.read()] == [PROPERTY]


async def test_merged_strays_are_not_deleted_too_early(sqlite_harness: StoreHarness) -> None:
    sqlite_harness.reopen(
        limits=CompactionLimits(memtable_samples=1, merge_count=2), retention=SAME_RETENTION
    )
    for day in range(8):
        sqlite_harness.commit({DEVICE: [build_stray_row(day)]})
        await maintain_at(sqlite_harness, NOON + day * DAY)
    assert await maintain_at(sqlite_harness, NOON + 10 * DAY - 1) == list(range(8))
    assert set(await maintain_at(sqlite_harness, NOON + 17 * DAY - 1)) >= {7}
    assert await maintain_at(sqlite_harness, NOON + 17 * DAY) == []
    assert sqlite_harness.segment_files == []


any_history = given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from(SampleKind)), max_size=8),
    st.fixed_dictionaries({kind: st.none() | st.integers(0, 8) for kind in SampleKind}),
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
)


@settings(max_examples=examples(8))
@any_history
async def test_exactly_the_expired_samples_are_deleted(
    sqlite_harness: StoreHarness, rows: list[tuple[int, int]], days: dict[int, int | None], steps: list[int]
) -> None:
    await _check_retention(sqlite_harness, rows, days, steps)


@pytest.mark.part("fuzz")
@settings(max_examples=60)
@any_history
async def test_exactly_the_expired_samples_are_deleted_in_a_long_search(
    sqlite_harness: StoreHarness, rows: list[tuple[int, int]], days: dict[int, int | None], steps: list[int]
) -> None:
    await _check_retention(sqlite_harness, rows, days, steps)


async def _check_retention(
    sqlite_harness: StoreHarness, rows: list[tuple[int, int]], days: dict[int, int | None], steps: list[int]
) -> None:
    def clear(connection: Connection) -> None:
        for table in ("sample_segment", "sample_journal"):
            connection.exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608 # constant names

    sqlite_harness.database.write_now(clear)
    sqlite_harness.now = MIDNIGHT
    retention = {
        kind: None if retention_days is None else retention_days * DAY
        for kind, retention_days in days.items()
    }
    sqlite_harness.reopen(retention=retention, limits=CompactionLimits(memtable_samples=1, merge_count=2))
    for day, kind in rows:
        sqlite_harness.commit({DEVICE: [build_row(MIDNIGHT + day * DAY, kind=kind)]})
        await sqlite_harness.maintain()
    for step in steps:
        await sqlite_harness.maintain(after=step * 6 * HOUR)
        expected = {
            (day, kind)
            for day, kind in rows
            if (retention_ms := retention[kind]) is None
            or MIDNIGHT + (day + 1) * DAY + retention_ms > sqlite_harness.now
        }
        remaining = [((sample.time - MIDNIGHT) // DAY, sample.kind) for sample in await sqlite_harness.read()]
        assert remaining == sorted(expected)
