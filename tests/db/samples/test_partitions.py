"""Partitions: several programs make, fill and drop them at the same time."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.db.samples.in_tables import SamplesInTables
from tests.db.samples.made_up import MIDNIGHT
from tests.db.samples.trial import DAY, DEVICE, NOON, OTHER, row, stray, wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection

    from meshfleet.db.samples import Rows, Sample, SampleStore
    from tests.db.samples.trial import Trial

pytestmark = pytest.mark.anyio

PATIENCE = 30.0
"""Seconds until something must have happened; reached only when it is broken."""


def parts(connection: Connection) -> list[str]:
    query = "SELECT relid::regclass::text FROM pg_partition_tree('sample') WHERE isleaf"
    return sorted(name for (name,) in connection.exec_driver_sql(query))


def drop_all(connection: Connection) -> None:
    for name in parts(connection):
        connection.exec_driver_sql(f"DROP TABLE {name}")


def another(trial: Trial, days: int | None = None, kinds: Iterable[int] = SampleKind) -> SampleStore:
    """What a second program on the same database has; it keeps some kinds for so many days."""
    retention = {int(kind): None if days is None else days * DAY for kind in kinds}
    return SamplesInTables(trial.database, retention, now=trial.now)


async def put(trial: Trial, store: SampleStore, rows: Rows) -> None:
    number = await trial.database.write(store.write, rows, trial.now)
    store.committed(number, rows)


async def test_each_day_has_partitions_of_its_own(tables: Trial) -> None:
    tables.put({DEVICE: [row(MIDNIGHT - 1), row(MIDNIGHT), row(MIDNIGHT + DAY - 1), row(MIDNIGHT + DAY)]})
    names = tables.database.read_now(parts)
    assert [name[-8:] for name in names] == ["20231114", "20231115", "20231116"]
    tables.put({DEVICE: [row(-1), row(0), row(-315_619_200_000), row(4_102_444_799_999)]})
    names = tables.database.read_now(parts)
    assert {name[-8:] for name in names} >= {"19691231", "19700101", "19600101", "20991231"}
    assert len(await tables.times()) == 8


async def test_strays_need_no_partition(tables: Trial) -> None:
    tables.put({DEVICE: [stray(-62_135_596_800_000), stray(253_402_300_799_999)]})
    assert tables.database.read_now(parts) == []
    assert len(await tables.times()) == 2


async def test_a_partition_that_was_not_committed_is_made_again(tables: Trial) -> None:
    tables.put_back({DEVICE: [row()]})
    assert tables.database.read_now(parts) == []
    tables.put({DEVICE: [row()]})
    assert await tables.times() == [NOON]


async def test_programs_that_make_the_same_partition_at_once_all_succeed(tables: Trial) -> None:
    stores = [another(tables) for _ in range(4)]
    for day in range(5):
        rows = [row(NOON + day * DAY), row(NOON + day * DAY, kind=SampleKind.LINK)]
        await asyncio.wait_for(
            asyncio.gather(
                *(put(tables, each, {DEVICE: rows, OTHER + index: rows}) for index, each in enumerate(stores))
            ),
            PATIENCE,
        )
    for device in (DEVICE, *range(OTHER, OTHER + 4)):
        assert await tables.times(device) == [NOON + day * DAY for day in range(5) for _ in range(2)]


async def test_rows_for_a_partition_that_another_program_dropped_are_stored(tables: Trial) -> None:
    tables.put({DEVICE: [row(NOON), row(NOON + DAY), row(NOON, kind=SampleKind.LINK)]})
    tables.database.write_now(drop_all)
    tables.put({DEVICE: [row(NOON + 1), row(NOON + 2, kind=SampleKind.LINK), stray(NOON + 3)]})
    assert await tables.times() == [NOON + 1, NOON + 2, NOON + 3]
    tables.put({DEVICE: [row(NOON + DAY)]})
    assert await tables.times() == [NOON + 1, NOON + 2, NOON + 3, NOON + DAY]


async def test_programs_that_write_and_drop_at_once_do_not_lose_what_is_wanted(tables: Trial) -> None:
    writer, dropper = another(tables), another(tables, 1)
    old, new = NOON - 9 * DAY, NOON

    async def write() -> None:
        for step in range(15):
            await put(tables, writer, {DEVICE: [row(old + step), row(new + step)]})

    async def drop() -> None:
        for hour in range(15):
            await dropper.tend(tables.now + hour * 3_600_000)

    await asyncio.wait_for(asyncio.gather(write(), drop()), PATIENCE)
    assert await tables.times(since=new) == [new + step for step in range(15)]


async def test_programs_that_tend_at_once_do_not_disturb_each_other(tables: Trial) -> None:
    tables.put({DEVICE: [row(NOON - day * DAY, kind=kind) for day in range(6) for kind in SampleKind]})
    some = [SampleKind.MEASUREMENT, SampleKind.LINK]
    stores = [another(tables, 2), another(tables, 2), another(tables, 2, some)]
    await asyncio.wait_for(asyncio.gather(*(each.tend(tables.now) for each in stores)), PATIENCE)
    found = await tables.read()
    assert {each.time for each in found} == {NOON, NOON - DAY, NOON - 2 * DAY}
    assert {each.kind for each in found if each.time == NOON} == set(SampleKind)


async def test_a_reader_sees_one_moment_while_others_write(tables: Trial) -> None:
    tables.put({DEVICE: [row(NOON), row(NOON + DAY)]})
    began, written = threading.Event(), threading.Event()

    def use(samples: Iterator[Sample]) -> list[int]:
        first = next(samples)
        began.set()
        assert written.wait(PATIENCE)
        return [first.time, *(each.time for each in samples)]

    reading = asyncio.create_task(tables.store.read(wanted(), use))
    assert await asyncio.to_thread(began.wait, PATIENCE)
    await put(tables, tables.store, {DEVICE: [row(NOON + DAY + 1)]})
    written.set()
    assert await reading == [NOON, NOON + DAY]
