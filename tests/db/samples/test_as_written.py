"""A store gives back exactly what was written, whatever happens to it meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from meshfleet.db.samples.in_files import Limits
from tests.db.samples import made_up
from tests.db.samples.trial import DAY, DEVICE, NOON, SMALL, Trial, row, samples, stray, wanted
from tests.examples import examples
from tests.tables import each_row

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db.samples import Identity, Rows, Sample, Wanted

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]


class Model:
    """What a store should have."""

    def __init__(self) -> None:
        self._believed: dict[tuple[int, Identity], Sample] = {}
        self._strays: dict[tuple[int, Identity], Sample] = {}

    def put(self, rows: Rows) -> None:
        """The first that came stays."""
        for device, new in rows.items():
            for sample in samples(new):
                is_stray = sample.more is not None and sample.more.clock is not None
                side = self._strays if is_stray else self._believed
                side.setdefault((device, sample.identity), sample)

    def read(self, wanted: Wanted) -> list[Sample]:
        """One whose time is believed goes before one whose time is not."""
        everything = self._strays | self._believed
        found = [each for (device, _), each in everything.items() if device == wanted.device]
        ordered = sorted(found, key=lambda each: each.identity, reverse=wanted.newest_first)
        return [each for each in ordered if _holds(wanted, each)]


def _holds(wanted: Wanted, sample: Sample) -> bool:
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
    st.tuples(st.sampled_from([_PUT, _AGAIN, _BACK, _UNSEEN]), made_up.batches)
    | st.tuples(st.just(_PUT), made_up.batches)
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


async def _do(trial: Trial, model: Model, deed: str, what: Any) -> None:
    match deed:
        case "tend":
            await trial.tend(after=what)
        case "end":
            trial.reopen()
        case "put back":
            trial.put_back(what)
        case "end unseen":
            trial.database.write_now(trial.store.write, what, trial.now)
            trial.reopen()
            model.put(what)
        case _:
            for _ in range(2 if deed == _AGAIN else 1):
                trial.put(what)
            model.put(what)


async def _live(trial: Trial, deeds: Deeds, wanteds: list[Wanted]) -> None:
    model = Model()
    for step, (deed, what) in enumerate(deeds):
        await _do(trial, model, deed, what)
        asked = wanteds[step % len(wanteds)]
        assert await trial.store.read(asked, list) == model.read(asked)
    for asked in (*wanteds, *map(wanted, (DEVICE, 0, 2**48 - 1))):
        assert await trial.store.read(asked, list) == model.read(asked)


def _live_anew(trial: Trial, limits: Limits, deeds: Deeds, wanteds: list[Wanted]) -> None:
    trial.database.write_now(_empty)
    trial.now = NOON
    trial.reopen(limits=limits)
    asyncio.run(_live(trial, deeds, wanteds))


questions = st.lists(made_up.wanteds(), min_size=1, max_size=8)


sizes = st.builds(Limits, full=st.integers(1, 9), fan=st.integers(2, 3))


@pytest.mark.part("fuzz")
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(sizes, deeds, questions)
def test_files_have_all_of_it_over_a_long_search(
    files: Trial, limits: Limits, deeds: Deeds, wanteds: list[Wanted]
) -> None:
    _live_anew(files, limits, deeds, wanteds)
    assert files.names == files.registered


@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(sizes, deeds, questions)
def test_files_have_what_was_written_in_order_and_once_through_upkeep_and_restarts(
    files: Trial, limits: Limits, deeds: Deeds, wanteds: list[Wanted]
) -> None:
    _live_anew(files, limits, deeds, wanteds)
    assert files.names == files.registered


@settings(max_examples=examples(10), suppress_health_check=list(HealthCheck))
@given(deeds, questions)
def test_tables_have_what_was_written_in_order_and_once_through_upkeep_and_restarts(
    tables: Trial, deeds: Deeds, wanteds: list[Wanted]
) -> None:
    _live_anew(tables, SMALL, deeds, wanteds)


@each_row("newest_first", [False, True])
async def test_pages_are_together_what_there_is(trial: Trial, *, newest_first: bool) -> None:
    rows = [row(NOON + step * DAY // 4, kind=kind) for step in range(9) for kind in (1, 3)]
    trial.put({DEVICE: [*rows, *rows, stray(NOON + DAY // 3, kind=3)]})
    await trial.tend()
    trial.put({DEVICE: rows[:3]})
    whole = await trial.read(newest_first=newest_first)
    pages: list[Sample] = []
    asked = wanted(newest_first=newest_first)
    for _ in range(len(whole)):
        pages.append(await trial.store.read(asked, next))
        asked = replace(asked, after=pages[-1].identity)
    assert (len(whole), pages) == (19, whole)
    assert await trial.store.read(asked, list) == []


async def test_the_first_that_came_stays_and_one_that_is_believed_goes_before_it(trial: Trial) -> None:
    trial.put({DEVICE: [stray(number=1.0), stray(number=2.0)]})
    assert [each.number for each in await trial.read()] == [1.0]
    await trial.tend()
    trial.put({DEVICE: [row(number=3.0), row(number=4.0)]})
    trial.put({DEVICE: [row(number=5.0), stray(number=6.0)]})
    assert await trial.read() == samples([row(number=3.0)])
    await trial.tend(after=DAY)
    assert await trial.read(newest_first=True) == samples([row(number=3.0)])


async def test_what_was_not_committed_is_not_there_and_may_come_again(trial: Trial) -> None:
    trial.put_back({DEVICE: [row(), stray(NOON + 1)]})
    assert await trial.read() == []
    trial.put({DEVICE: [row(), stray(NOON + 1)]})
    trial.put({DEVICE: [row(), stray(NOON + 1)]})
    assert await trial.times() == [NOON, NOON + 1]
    trial.reopen()
    await trial.tend()
    assert await trial.times() == [NOON, NOON + 1]


async def test_nothing_is_written_for_nothing(trial: Trial) -> None:
    trial.put({})
    trial.put({DEVICE: [row()]})
    trial.put({})
    trial.reopen()
    assert await trial.times() == [NOON]


async def test_a_batch_that_nobody_saw_committed_is_there_after_a_restart(trial: Trial) -> None:
    """As when a program is told to end while it waits for the commit, and ends only a while later."""
    trial.database.write_now(trial.store.write, {DEVICE: [row(NOON)]}, trial.now)
    trial.put({DEVICE: [row(NOON + 1)]})
    await trial.tend()
    trial.reopen()
    assert await trial.times() == [NOON, NOON + 1]
