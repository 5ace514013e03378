"""A store gives back exactly what was written, whatever happens to it meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from meshfleet.db.samples.sqlite_store import CompactionLimits
from tests.db.samples import strategies
from tests.db.samples.store_harness import (
    DAY,
    DEVICE,
    NOON,
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
    """What a store should have."""

    def __init__(self) -> None:
        self._believed: dict[tuple[int, SampleIdentity], StoredSample] = {}
        self._strays: dict[tuple[int, SampleIdentity], StoredSample] = {}

    def put(self, rows: SampleRows) -> None:
        """The first that came stays."""
        for device, new in rows.items():
            for sample in to_samples(new):
                is_stray = sample.more is not None and sample.more.clock is not None
                side = self._strays if is_stray else self._believed
                side.setdefault((device, sample.identity), sample)

    def read(self, wanted: SampleQuery) -> list[StoredSample]:
        """One whose time is believed goes before one whose time is not."""
        everything = self._strays | self._believed
        found = [each for (device, _), each in everything.items() if device == wanted.device]
        ordered = sorted(found, key=lambda each: each.identity, reverse=wanted.newest_first)
        return [each for each in ordered if _holds(wanted, each)]


def _holds(wanted: SampleQuery, sample: StoredSample) -> bool:
    after, identity = wanted.after, sample.identity
    return (
        wanted.since <= sample.time < wanted.until
        and sample.kind in wanted.kinds
        and wanted.identifier in {None, sample.identifier}
        and (after is None or (identity < after if wanted.newest_first else identity > after))
    )


Deeds = list[tuple[str, Any]]

_PUT, _AGAIN, _BACK, _TEND, _END, _UNSEEN = "put", "put again", "put back", "tend", "end", "end unseen"

deeds = st.lists(
    st.tuples(st.sampled_from([_PUT, _AGAIN, _BACK, _UNSEEN]), strategies.batches)
    | st.tuples(st.just(_PUT), strategies.batches)
    | st.tuples(st.just(_TEND), st.sampled_from([0, 3_600_000, DAY]))
    | st.tuples(st.just(_TEND), st.just(0))
    | st.tuples(st.just(_END), st.none()),
    min_size=4,
    max_size=14,
)


def _empty(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("DELETE FROM sample_journal")
        connection.exec_driver_sql("DELETE FROM sample_segment")
        return
    connection.exec_driver_sql("TRUNCATE sample, sample_stray")
    parts = connection.exec_driver_sql(
        "SELECT relid::regclass::text FROM pg_partition_tree('sample') WHERE isleaf LIMIT 3"
    )
    for (part,) in parts.all():
        connection.exec_driver_sql(f"DROP TABLE {part}")


async def _do(trial: StoreHarness, model: Model, deed: str, what: Any) -> None:
    match deed:
        case "tend":
            await trial.maintain(after=what)
        case "end":
            trial.reopen()
        case "put back":
            trial.write_without_commit(what)
        case "end unseen":
            trial.database.write_now(trial.store.write, what, trial.now)
            trial.reopen()
            model.put(what)
        case _:
            for _ in range(2 if deed == _AGAIN else 1):
                trial.commit(what)
            model.put(what)


async def _live(trial: StoreHarness, deeds: Deeds, wanteds: list[SampleQuery]) -> None:
    model = Model()
    for step, (deed, what) in enumerate(deeds):
        await _do(trial, model, deed, what)
        asked = wanteds[step % len(wanteds)]
        assert await trial.store.read(asked, list) == model.read(asked)
    for asked in (*wanteds, *map(build_query, (DEVICE, 0, 2**48 - 1))):
        assert await trial.store.read(asked, list) == model.read(asked)


def _live_anew(
    trial: StoreHarness, limits: CompactionLimits, deeds: Deeds, wanteds: list[SampleQuery]
) -> None:
    trial.database.write_now(_empty)
    trial.now = NOON
    trial.reopen(limits=limits)
    asyncio.run(_live(trial, deeds, wanteds))


questions = st.lists(strategies.sample_queries(), min_size=1, max_size=8)


sizes = st.builds(CompactionLimits, memtable_samples=st.integers(1, 9), merge_count=st.integers(2, 3))


@pytest.mark.part("fuzz")
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(sizes, deeds, questions)
def test_files_have_all_of_it_over_a_long_search(
    files: StoreHarness, limits: CompactionLimits, deeds: Deeds, wanteds: list[SampleQuery]
) -> None:
    _live_anew(files, limits, deeds, wanteds)
    assert files.segment_files == files.registered_files


@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(sizes, deeds, questions)
def test_files_have_what_was_written_in_order_and_once_through_upkeep_and_restarts(
    files: StoreHarness, limits: CompactionLimits, deeds: Deeds, wanteds: list[SampleQuery]
) -> None:
    _live_anew(files, limits, deeds, wanteds)
    assert files.segment_files == files.registered_files


@settings(max_examples=examples(10), suppress_health_check=list(HealthCheck))
@given(deeds, questions)
def test_tables_have_what_was_written_in_order_and_once_through_upkeep_and_restarts(
    tables: StoreHarness, deeds: Deeds, wanteds: list[SampleQuery]
) -> None:
    _live_anew(tables, SMALL_LIMITS, deeds, wanteds)


@each_row("newest_first", [False, True])
async def test_pages_are_together_what_there_is(trial: StoreHarness, *, newest_first: bool) -> None:
    rows = [build_row(NOON + step * DAY // 4, kind=kind) for step in range(9) for kind in (1, 3)]
    trial.commit({DEVICE: [*rows, *rows, build_stray_row(NOON + DAY // 3, kind=3)]})
    await trial.maintain()
    trial.commit({DEVICE: rows[:3]})
    whole = await trial.read(newest_first=newest_first)
    pages: list[StoredSample] = []
    asked = build_query(newest_first=newest_first)
    for _ in range(len(whole)):
        pages.append(await trial.store.read(asked, next))
        asked = replace(asked, after=pages[-1].identity)
    assert (len(whole), pages) == (19, whole)
    assert await trial.store.read(asked, list) == []


async def test_the_first_that_came_stays_and_one_that_is_believed_goes_before_it(trial: StoreHarness) -> None:
    trial.commit({DEVICE: [build_stray_row(number=1.0), build_stray_row(number=2.0)]})
    assert [each.number for each in await trial.read()] == [1.0]
    await trial.maintain()
    trial.commit({DEVICE: [build_row(number=3.0), build_row(number=4.0)]})
    trial.commit({DEVICE: [build_row(number=5.0), build_stray_row(number=6.0)]})
    assert await trial.read() == to_samples([build_row(number=3.0)])
    await trial.maintain(after=DAY)
    assert await trial.read(newest_first=True) == to_samples([build_row(number=3.0)])


async def test_what_was_not_committed_is_not_there_and_may_come_again(trial: StoreHarness) -> None:
    trial.write_without_commit({DEVICE: [build_row(), build_stray_row(NOON + 1)]})
    assert await trial.read() == []
    trial.commit({DEVICE: [build_row(), build_stray_row(NOON + 1)]})
    trial.commit({DEVICE: [build_row(), build_stray_row(NOON + 1)]})
    assert await trial.times() == [NOON, NOON + 1]
    trial.reopen()
    await trial.maintain()
    assert await trial.times() == [NOON, NOON + 1]


async def test_nothing_is_written_for_nothing(trial: StoreHarness) -> None:
    trial.commit({})
    trial.commit({DEVICE: [build_row()]})
    trial.commit({})
    trial.reopen()
    assert await trial.times() == [NOON]


async def test_a_batch_that_nobody_saw_committed_is_there_after_a_restart(trial: StoreHarness) -> None:
    """As when a program is told to end while it waits for the commit, and ends only a while later."""
    trial.database.write_now(trial.store.write, {DEVICE: [build_row(NOON)]}, trial.now)
    trial.commit({DEVICE: [build_row(NOON + 1)]})
    await trial.maintain()
    trial.reopen()
    assert await trial.times() == [NOON, NOON + 1]
