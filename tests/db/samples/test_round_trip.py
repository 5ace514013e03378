"""A store returns exactly what was written, in spite of maintenance, restarts and duplicates."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from meshfleet.db.samples.sample import SampleKind, WindowQuery
from meshfleet.db.samples.sqlite_store import CompactionLimits
from tests.db.samples import strategies
from tests.db.samples.store_harness import (
    DAY,
    DEVICE,
    HOUR,
    NOON,
    OTHER,
    SMALL_LIMITS,
    StoreHarness,
    build_query,
    build_row,
    build_stray_row,
    to_samples,
)
from tests.examples import examples
from tests.row_tables import each_row

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db.samples import SampleIdentity, SampleQuery, SampleRows, StoredSample

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]


class Model:
    """Expected content of a store."""

    def __init__(self) -> None:
        self._plausible: dict[tuple[int, SampleIdentity], StoredSample] = {}
        self._strays: dict[tuple[int, SampleIdentity], StoredSample] = {}

    def add(self, rows: SampleRows) -> None:
        """Add rows; the first sample of an identity wins."""
        for device, device_rows in rows.items():
            for sample in to_samples(device_rows):
                is_stray = sample.more is not None and sample.more.clock is not None
                target = self._strays if is_stray else self._plausible
                target.setdefault((device, sample.identity), sample)

    def read(self, query: SampleQuery) -> list[StoredSample]:
        """Return the matching samples; a plausible one wins over a stray."""
        samples = self._strays | self._plausible
        of_device = [sample for (device, _), sample in samples.items() if device == query.device]
        ordered = sorted(of_device, key=lambda sample: sample.identity, reverse=query.newest_first)
        return [sample for sample in ordered if _matches(query, sample)]


def _matches(query: SampleQuery, sample: StoredSample) -> bool:
    after, identity = query.after, sample.identity
    return (
        query.since <= sample.time < query.until
        and sample.kind in query.kinds
        and query.identifier in {None, sample.identifier}
        and (after is None or (identity < after if query.newest_first else identity > after))
    )


Actions = list[tuple[str, Any]]

_WRITE, _WRITE_TWICE, _ROLL_BACK, _MAINTAIN, _REOPEN, _CRASH = (
    "write",
    "write twice",
    "roll back",
    "maintain",
    "reopen",
    "crash after commit",
)

action_lists = st.lists(
    st.tuples(st.sampled_from([_WRITE, _WRITE_TWICE, _ROLL_BACK, _CRASH]), strategies.batches)
    | st.tuples(st.just(_WRITE), strategies.batches)
    | st.tuples(st.just(_MAINTAIN), st.sampled_from([0, 3_600_000, DAY]))
    | st.tuples(st.just(_MAINTAIN), st.just(0))
    | st.tuples(st.just(_REOPEN), st.none()),
    min_size=4,
    max_size=14,
)


def _delete_samples(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("DELETE FROM sample_journal")
        connection.exec_driver_sql("DELETE FROM sample_segment")
        return
    connection.exec_driver_sql("TRUNCATE sample, sample_stray")
    partitions = connection.exec_driver_sql(
        "SELECT relid::regclass::text FROM pg_partition_tree('sample') WHERE isleaf LIMIT 3"
    )
    for (partition,) in partitions.all():
        connection.exec_driver_sql(f"DROP TABLE {partition}")


async def _run_action(harness: StoreHarness, model: Model, action: str, argument: Any) -> None:
    match action:
        case "maintain":
            await harness.maintain(after=argument)
        case "reopen":
            harness.reopen()
        case "roll back":
            harness.write_without_commit(argument)
        case "crash after commit":
            harness.database.write_now(harness.store.write, argument, harness.now)
            harness.reopen()
            model.add(argument)
        case _:
            for _ in range(2 if action == _WRITE_TWICE else 1):
                harness.commit(argument)
            model.add(argument)


async def _run_actions(harness: StoreHarness, actions: Actions, queries: list[SampleQuery]) -> None:
    model = Model()
    for step, (action, argument) in enumerate(actions):
        await _run_action(harness, model, action, argument)
        query = queries[step % len(queries)]
        assert await harness.store.read(query, list) == model.read(query)
    for query in (*queries, *map(build_query, (DEVICE, 0, 2**48 - 1))):
        assert await harness.store.read(query, list) == model.read(query)


def _run_on_empty_store(
    harness: StoreHarness, limits: CompactionLimits, actions: Actions, queries: list[SampleQuery]
) -> None:
    harness.database.write_now(_delete_samples)
    harness.now = NOON
    harness.reopen(limits=limits)
    asyncio.run(_run_actions(harness, actions, queries))


query_lists = st.lists(strategies.sample_queries(), min_size=1, max_size=8)


sizes = st.builds(CompactionLimits, memtable_samples=st.integers(1, 9), merge_count=st.integers(2, 3))


@pytest.mark.part("fuzz")
@settings(max_examples=200)
@given(sizes, action_lists, query_lists)
def test_segments_return_what_was_written_in_a_long_search(
    sqlite_harness: StoreHarness, limits: CompactionLimits, actions: Actions, queries: list[SampleQuery]
) -> None:
    _run_on_empty_store(sqlite_harness, limits, actions, queries)
    assert sqlite_harness.segment_files == sqlite_harness.registered_files


@settings(max_examples=examples(30))
@given(sizes, action_lists, query_lists)
def test_segments_return_what_was_written_in_order_without_duplicates(
    sqlite_harness: StoreHarness, limits: CompactionLimits, actions: Actions, queries: list[SampleQuery]
) -> None:
    _run_on_empty_store(sqlite_harness, limits, actions, queries)
    assert sqlite_harness.segment_files == sqlite_harness.registered_files


@settings(max_examples=examples(10))
@given(action_lists, query_lists)
def test_partitions_return_what_was_written_in_order_without_duplicates(
    postgresql_harness: StoreHarness, actions: Actions, queries: list[SampleQuery]
) -> None:
    _run_on_empty_store(postgresql_harness, SMALL_LIMITS, actions, queries)


@each_row("newest_first", [False, True])
async def test_pages_together_contain_all_samples(harness: StoreHarness, *, newest_first: bool) -> None:
    rows = [build_row(NOON + step * DAY // 4, kind=kind) for step in range(9) for kind in (1, 3)]
    harness.commit({DEVICE: [*rows, *rows, build_stray_row(NOON + DAY // 3, kind=3)]})
    await harness.maintain()
    harness.commit({DEVICE: rows[:3]})
    all_samples = await harness.read(newest_first=newest_first)
    pages: list[StoredSample] = []
    query = build_query(newest_first=newest_first)
    for _ in range(len(all_samples)):
        pages.append(await harness.store.read(query, next))
        query = replace(query, after=pages[-1].identity)
    assert (len(all_samples), pages) == (19, all_samples)
    assert await harness.store.read(query, list) == []


async def test_of_duplicates_the_first_is_kept_unless_its_time_is_implausible(harness: StoreHarness) -> None:
    harness.commit({DEVICE: [build_stray_row(number=1.0), build_stray_row(number=2.0)]})
    assert [sample.number for sample in await harness.read()] == [1.0]
    await harness.maintain()
    harness.commit({DEVICE: [build_row(number=3.0), build_row(number=4.0)]})
    harness.commit({DEVICE: [build_row(number=5.0), build_stray_row(number=6.0)]})
    assert await harness.read() == to_samples([build_row(number=3.0)])
    await harness.maintain(after=DAY)
    assert await harness.read(newest_first=True) == to_samples([build_row(number=3.0)])


async def test_uncommitted_samples_are_not_stored_and_can_be_written_again(harness: StoreHarness) -> None:
    harness.write_without_commit({DEVICE: [build_row(), build_stray_row(NOON + 1)]})
    assert await harness.read() == []
    harness.commit({DEVICE: [build_row(), build_stray_row(NOON + 1)]})
    harness.commit({DEVICE: [build_row(), build_stray_row(NOON + 1)]})
    assert await harness.times() == [NOON, NOON + 1]
    harness.reopen()
    await harness.maintain()
    assert await harness.times() == [NOON, NOON + 1]


async def test_an_empty_batch_writes_nothing(harness: StoreHarness) -> None:
    harness.commit({})
    harness.commit({DEVICE: [build_row()]})
    harness.commit({})
    harness.reopen()
    assert await harness.times() == [NOON]


async def test_a_batch_with_an_unconfirmed_commit_is_available_after_a_restart(harness: StoreHarness) -> None:
    """Simulate a process that is stopped while it waits for the commit, and continues for a while."""
    harness.database.write_now(harness.store.write, {DEVICE: [build_row(NOON)]}, harness.now)
    harness.commit({DEVICE: [build_row(NOON + 1)]})
    await harness.maintain()
    harness.reopen()
    assert await harness.times() == [NOON, NOON + 1]


async def test_a_window_has_the_samples_of_some_devices_and_kinds(harness: StoreHarness) -> None:
    third = OTHER + 1
    link = SampleKind.LINK
    for at in (NOON - DAY, NOON - 1, NOON, NOON + HOUR):  # in several segments and days
        harness.commit(
            {each: [build_row(at, kind=link, number=each % 100)] for each in (DEVICE, OTHER, third)}
        )
        await harness.maintain()
    harness.commit({DEVICE: [build_row(NOON + 1, kind=link, number=9)], OTHER: [build_row(NOON + 1)]})
    query = WindowQuery(devices=[DEVICE, OTHER], kinds=frozenset({link}), since=NOON - 1, until=NOON + HOUR)
    found = await harness.store.read_window(
        query, lambda samples: {(device, sample.time, sample.number) for device, sample in samples}
    )
    assert found == {
        *((each, at, each % 100) for each in (DEVICE, OTHER) for at in (NOON - 1, NOON)),
        (DEVICE, NOON + 1, 9),
    }
