"""What nobody wants any more goes, and nothing else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
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
ALIKE: Retention = {int(kind): 10 * DAY for kind in SampleKind}
"""Every kind for ten days."""


def leaves(connection: Connection) -> int:
    """How many partitions have samples of a day."""
    query = "SELECT count(DISTINCT tableoid) FROM sample"
    return int(connection.exec_driver_sql(query).scalar_one())


def places(trial: StoreHarness) -> int:
    """How many files or partitions there are that have samples."""
    return len(trial.segment_files) if trial.database.is_sqlite else trial.database.read_now(leaves)


async def at(trial: StoreHarness, now: int) -> list[int]:
    """The times of what is there when the store was tended at a moment."""
    trial.now = now
    await trial.maintain()
    return await trial.times()


async def test_a_day_goes_as_a_whole_when_its_end_is_old_enough(trial: StoreHarness) -> None:
    trial.reopen(retention=ALIKE)
    times = [MIDNIGHT - 1, MIDNIGHT, MIDNIGHT + DAY - 1, MIDNIGHT + DAY]
    trial.commit({DEVICE: [build_row(time) for time in times], OTHER: [build_row(MIDNIGHT)]})
    assert await at(trial, MIDNIGHT) == times
    assert places(trial) == 3
    assert await at(trial, MIDNIGHT + 10 * DAY - 1) == times
    trial.reopen()
    assert await at(trial, MIDNIGHT + 10 * DAY) == times[1:]
    trial.reopen()
    assert await at(trial, MIDNIGHT + 11 * DAY - 1) == times[1:]
    trial.reopen()
    assert await at(trial, MIDNIGHT + 11 * DAY) == times[3:]
    assert await trial.times(OTHER) == []
    assert places(trial) == 1
    if trial.database.is_sqlite:
        assert trial.segment_files == trial.registered_files


async def test_each_kind_goes_when_it_is_old_enough_and_some_never(trial: StoreHarness) -> None:
    trial.reopen(retention={PROPERTY: None, MEASUREMENT: 10 * DAY, EVENT: 20 * DAY, LINK: 5 * DAY})
    rows = [build_row(NOON, kind=kind) for kind in SampleKind]
    trial.commit({DEVICE: rows})
    await trial.maintain()
    kept = set(SampleKind)
    for age, gone in ((5, LINK), (10, MEASUREMENT), (20, EVENT), (40_000, None)):
        trial.now = MIDNIGHT + DAY + age * DAY
        await trial.maintain()
        kept -= {gone} if gone is not None else set()
        assert await trial.read() == to_samples(each for each in rows if each[1] in kept)
    assert kept == {PROPERTY, SampleKind.MEASUREMENT_ERROR, SampleKind.HEARTBEAT}


async def test_of_two_with_one_identity_the_first_stays_when_others_beside_it_go(files: StoreHarness) -> None:
    """The file of the first one is written anew; that of the second has nothing that goes."""
    files.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=3), retention={MEASUREMENT: DAY})
    for number in (1.0, 2.0):
        for step in range(3):
            rows = [build_row(NOON, number, kind=PROPERTY), build_row(NOON + step, kind=EVENT)]
            files.commit({DEVICE: [*rows, build_row(NOON + step)] if number == 1.0 else rows})
            await files.maintain()
    assert len(files.segment_files) == 2
    first, second = files.segment_files
    await files.maintain(after=3 * DAY)
    assert first not in files.segment_files
    assert second in files.segment_files
    for _ in range(2):
        assert await files.read(kinds=frozenset({PROPERTY})) == to_samples(
            [build_row(NOON, 1.0, kind=PROPERTY)]
        )
        files.reopen(limits=SMALL_LIMITS)
    files.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=2))
    await files.maintain()
    assert len(files.segment_files) == 1
    assert await files.read(kinds=frozenset({PROPERTY})) == to_samples([build_row(NOON, 1.0, kind=PROPERTY)])


async def test_a_day_of_which_nothing_is_left_has_no_place_any_more(files: StoreHarness) -> None:
    files.reopen(retention={MEASUREMENT: DAY, PROPERTY: None})
    files.commit({DEVICE: [build_row(NOON)]})
    for day in range(5):
        await at(files, NOON + day * DAY)
    assert (files.segment_files, files.registered_files) == ([], [])


async def test_without_a_word_about_it_everything_is_kept(trial: StoreHarness) -> None:
    trial.reopen(retention=dict.fromkeys(SampleKind))
    trial.commit({DEVICE: [build_row(0), build_stray_row(1), build_row(NOON)]})
    for year in range(3):
        assert await at(trial, NOON + year * 40_000 * DAY) == [0, 1, NOON]


async def test_late_samples_of_a_day_that_is_cleaned_already_go_as_well(trial: StoreHarness) -> None:
    trial.reopen(retention={MEASUREMENT: DAY})
    trial.commit({DEVICE: [build_row(NOON), build_row(NOON, kind=PROPERTY)]})
    assert await at(trial, NOON + 5 * DAY) == [NOON]
    trial.commit({DEVICE: [build_row(NOON + 1), build_row(NOON + 2, kind=PROPERTY)]})
    await at(trial, NOON + 6 * DAY)
    assert await at(trial, NOON + 7 * DAY) == [NOON, NOON + 2]


async def test_late_samples_of_a_day_that_went_go_as_well(trial: StoreHarness) -> None:
    trial.reopen(retention=ALIKE)
    trial.commit({DEVICE: [build_row(NOON)]})
    assert await at(trial, NOON + 20 * DAY) == []
    trial.commit({DEVICE: [build_row(NOON + 1), build_row(NOON + 19 * DAY)]})
    assert await trial.times() == [NOON + 1, NOON + 19 * DAY]
    assert await at(trial, NOON + 21 * DAY) == [NOON + 19 * DAY]


@pytest.mark.parametrize("time", [NOON - 9000 * DAY, NOON + 9000 * DAY])
async def test_the_age_of_a_stray_counts_from_when_it_came(trial: StoreHarness, time: int) -> None:
    trial.reopen(retention={MEASUREMENT: 10 * DAY})
    trial.commit({DEVICE: [build_stray_row(time), build_stray_row(time, kind=PROPERTY)]})
    assert await at(trial, NOON) == [time, time]
    trial.reopen()
    assert await at(trial, NOON + 10 * DAY - 1) == [time, time]
    trial.reopen()
    assert await at(trial, NOON + 10 * DAY) == [time]
    assert [each.kind for each in await trial.read()] == [PROPERTY]


async def test_merging_strays_lets_none_go_too_early(files: StoreHarness) -> None:
    files.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=2), retention=ALIKE)
    for day in range(8):
        files.commit({DEVICE: [build_stray_row(day)]})
        await at(files, NOON + day * DAY)
    assert await at(files, NOON + 10 * DAY - 1) == list(range(8))
    assert set(await at(files, NOON + 17 * DAY - 1)) >= {7}
    assert await at(files, NOON + 17 * DAY) == []
    assert files.segment_files == []


anything = given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from(SampleKind)), max_size=8),
    st.fixed_dictionaries({kind: st.none() | st.integers(0, 8) for kind in SampleKind}),
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
)


@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))
@anything
async def test_exactly_what_is_too_old_goes(
    files: StoreHarness, rows: list[tuple[int, int]], days: dict[int, int | None], steps: list[int]
) -> None:
    await _grow_old(files, rows, days, steps)


@pytest.mark.part("fuzz")
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@anything
async def test_exactly_what_is_too_old_goes_over_a_long_search(
    files: StoreHarness, rows: list[tuple[int, int]], days: dict[int, int | None], steps: list[int]
) -> None:
    await _grow_old(files, rows, days, steps)


async def _grow_old(
    files: StoreHarness, rows: list[tuple[int, int]], days: dict[int, int | None], steps: list[int]
) -> None:
    def clear(connection: Connection) -> None:
        for table in ("sample_segment", "sample_journal"):
            connection.exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608 # our own names

    files.database.write_now(clear)
    files.now = MIDNIGHT
    retention = {kind: None if kept is None else kept * DAY for kind, kept in days.items()}
    files.reopen(retention=retention, limits=CompactionLimits(memtable_samples=1, merge_count=2))
    for day, kind in rows:
        files.commit({DEVICE: [build_row(MIDNIGHT + day * DAY, kind=kind)]})
        await files.maintain()
    for step in steps:
        await files.maintain(after=step * 6 * HOUR)
        expected = {
            (day, kind)
            for day, kind in rows
            if (kept := retention[kind]) is None or MIDNIGHT + (day + 1) * DAY + kept > files.now
        }
        found = [((each.time - MIDNIGHT) // DAY, each.kind) for each in await files.read()]
        assert found == sorted(expected)
