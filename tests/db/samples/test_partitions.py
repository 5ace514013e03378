"""Partitions: several programs make, fill and drop them at the same time."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import ServerCursor

from meshfleet.db.samples import SampleKind
from meshfleet.db.samples.postgresql_store import PostgresqlSampleStore
from tests.db.samples.store_harness import DAY, DEVICE, NOON, OTHER, build_query, build_row, build_stray_row
from tests.db.samples.strategies import MIDNIGHT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection

    from meshfleet.db.samples import SampleRows, SampleStore, StoredSample
    from tests.db.samples.store_harness import StoreHarness

pytestmark = pytest.mark.anyio

PATIENCE = 30.0
"""Seconds until something must have happened; reached only when it is broken."""


def parts(connection: Connection) -> list[str]:
    query = "SELECT relid::regclass::text FROM pg_partition_tree('sample') WHERE isleaf"
    return sorted(name for (name,) in connection.exec_driver_sql(query))


def cursors(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT count(*) FROM pg_cursors").scalar_one())


def drop_all(connection: Connection) -> None:
    for name in parts(connection):
        connection.exec_driver_sql(f"DROP TABLE {name}")


def another(trial: StoreHarness, days: int | None = None, kinds: Iterable[int] = SampleKind) -> SampleStore:
    """What a second program on the same database has; it keeps some kinds for so many days."""
    retention = {int(kind): None if days is None else days * DAY for kind in kinds}
    return PostgresqlSampleStore(trial.database, retention, now=trial.now)


async def put(trial: StoreHarness, store: SampleStore, rows: SampleRows) -> None:
    number = await trial.database.write(store.write, rows, trial.now)
    store.publish_committed(number, rows)


async def test_each_day_has_partitions_of_its_own(tables: StoreHarness) -> None:
    tables.commit(
        {
            DEVICE: [
                build_row(MIDNIGHT - 1),
                build_row(MIDNIGHT),
                build_row(MIDNIGHT + DAY - 1),
                build_row(MIDNIGHT + DAY),
            ]
        }
    )
    names = tables.database.read_now(parts)
    assert [name[-8:] for name in names] == ["20231114", "20231115", "20231116"]
    tables.commit(
        {DEVICE: [build_row(-1), build_row(0), build_row(-315_619_200_000), build_row(4_102_444_799_999)]}
    )
    names = tables.database.read_now(parts)
    assert {name[-8:] for name in names} >= {"19691231", "19700101", "19600101", "20991231"}
    assert len(await tables.times()) == 8


async def test_strays_need_no_partition(tables: StoreHarness) -> None:
    tables.commit({DEVICE: [build_stray_row(-62_135_596_800_000), build_stray_row(253_402_300_799_999)]})
    assert tables.database.read_now(parts) == []
    assert len(await tables.times()) == 2


async def test_a_partition_that_was_not_committed_is_made_again(tables: StoreHarness) -> None:
    tables.write_without_commit({DEVICE: [build_row()]})
    assert tables.database.read_now(parts) == []
    tables.commit({DEVICE: [build_row()]})
    assert await tables.times() == [NOON]


async def test_programs_that_make_the_same_partition_at_once_all_succeed(tables: StoreHarness) -> None:
    stores = [another(tables) for _ in range(4)]
    for day in range(5):
        rows = [build_row(NOON + day * DAY), build_row(NOON + day * DAY, kind=SampleKind.LINK)]
        await asyncio.wait_for(
            asyncio.gather(
                *(put(tables, each, {DEVICE: rows, OTHER + index: rows}) for index, each in enumerate(stores))
            ),
            PATIENCE,
        )
    for device in (DEVICE, *range(OTHER, OTHER + 4)):
        assert await tables.times(device) == [NOON + day * DAY for day in range(5) for _ in range(2)]


async def test_rows_for_a_partition_that_another_program_dropped_are_stored(tables: StoreHarness) -> None:
    tables.commit({DEVICE: [build_row(NOON), build_row(NOON + DAY), build_row(NOON, kind=SampleKind.LINK)]})
    tables.database.write_now(drop_all)
    tables.commit(
        {DEVICE: [build_row(NOON + 1), build_row(NOON + 2, kind=SampleKind.LINK), build_stray_row(NOON + 3)]}
    )
    assert await tables.times() == [NOON + 1, NOON + 2, NOON + 3]
    tables.commit({DEVICE: [build_row(NOON + DAY)]})
    assert await tables.times() == [NOON + 1, NOON + 2, NOON + 3, NOON + DAY]


async def test_programs_that_write_and_drop_at_once_do_not_lose_what_is_wanted(tables: StoreHarness) -> None:
    writer, dropper = another(tables), another(tables, 1)
    old, new = NOON - 9 * DAY, NOON

    async def write() -> None:
        for step in range(15):
            await put(tables, writer, {DEVICE: [build_row(old + step), build_row(new + step)]})

    async def drop() -> None:
        for hour in range(15):
            await dropper.maintain(tables.now + hour * 3_600_000)

    await asyncio.wait_for(asyncio.gather(write(), drop()), PATIENCE)
    assert await tables.times(since=new) == [new + step for step in range(15)]


async def test_a_partition_that_is_old_enough_goes_as_a_whole(tables: StoreHarness) -> None:
    tables.commit(
        {DEVICE: [build_row(NOON), build_row(NOON + 9 * DAY), build_row(NOON, kind=SampleKind.LINK)]}
    )
    await another(tables, 1).maintain(NOON + 9 * DAY)
    left = {name[-8:] for name in tables.database.read_now(parts)}
    assert left == {"20231124", "20231125"}
    assert await tables.times() == [NOON + 9 * DAY]


async def test_programs_that_tend_at_once_do_not_disturb_each_other(tables: StoreHarness) -> None:
    tables.commit(
        {DEVICE: [build_row(NOON - day * DAY, kind=kind) for day in range(6) for kind in SampleKind]}
    )
    some = [SampleKind.MEASUREMENT, SampleKind.LINK]
    stores = [another(tables, 2), another(tables, 2), another(tables, 2, some)]
    await asyncio.wait_for(asyncio.gather(*(each.maintain(tables.now) for each in stores)), PATIENCE)
    found = await tables.read()
    assert {each.time for each in found} == {NOON, NOON - DAY, NOON - 2 * DAY}
    assert {each.kind for each in found if each.time == NOON} == set(SampleKind)


class Reader:
    """One who has begun to read, and does not come to an end."""

    def __init__(self, trial: StoreHarness) -> None:
        self._trial = trial
        self._began, self._may_end = threading.Event(), threading.Event()

    async def __aenter__(self) -> None:
        self._reading = asyncio.create_task(self._trial.store.read(build_query(), self._use))
        assert await asyncio.to_thread(self._began.wait, PATIENCE)

    async def __aexit__(self, *_: object) -> None:
        self._may_end.set()
        await self._reading

    def _use(self, samples: Iterator[StoredSample]) -> None:
        next(samples)
        self._began.set()
        assert self._may_end.wait(PATIENCE)


async def test_partitions_are_made_before_anybody_needs_them(tables: StoreHarness) -> None:
    await tables.maintain()
    ahead = tables.database.read_now(parts)
    assert ahead == [
        f"{table}_{day}" for table in ("sample_reported", "sample_rolled") for day in (20231115, 20231116)
    ]
    tables.commit({DEVICE: [build_row(NOON + DAY), build_row(NOON, kind=SampleKind.LINK)]})
    assert tables.database.read_now(parts) == ahead
    await tables.maintain(after=DAY)
    assert len(tables.database.read_now(parts)) == 6
    assert await tables.times() == [NOON, NOON + DAY]


async def test_partitions_that_cannot_be_made_ahead_do_not_keep_the_store_from_other_work(
    tables: StoreHarness,
) -> None:
    tables.reopen(retention={SampleKind.MEASUREMENT: DAY})
    tables.commit({DEVICE: [build_row(NOON), build_row(NOON, kind=SampleKind.EVENT)]})
    there = tables.database.read_now(parts)
    began, may_end = threading.Event(), threading.Event()

    def stand_in_the_way(connection: Connection) -> None:
        connection.exec_driver_sql("LOCK TABLE sample_reported IN SHARE UPDATE EXCLUSIVE MODE")
        began.set()
        assert may_end.wait(PATIENCE)

    standing = asyncio.create_task(tables.database.write(stand_in_the_way))
    assert await asyncio.to_thread(began.wait, PATIENCE)
    await tables.maintain(after=5 * DAY)
    assert tables.database.read_now(parts) == there
    assert [each.kind for each in await tables.read()] == [SampleKind.EVENT]
    may_end.set()
    await standing
    await tables.maintain()
    assert len(tables.database.read_now(parts)) == len(there) + 4


async def test_nobody_waits_for_a_reader_in_order_to_write_the_first_sample_of_a_day(
    tables: StoreHarness,
) -> None:
    tables.commit({DEVICE: [build_row(NOON), build_row(NOON, kind=SampleKind.LINK)]})
    async with Reader(tables):
        # Who had to wait would be refused after 10 seconds.
        await put(
            tables,
            tables.store,
            {DEVICE: [build_row(NOON + DAY), build_row(NOON + DAY, kind=SampleKind.LINK)]},
        )
        await tables.maintain(after=5 * DAY)
        assert len(tables.database.read_now(parts)) == 8
    assert await tables.times() == [NOON, NOON, NOON + DAY, NOON + DAY]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_who_wants_little_of_a_day_gets_little_of_it_from_the_server(
    tables: StoreHarness, monkeypatch: pytest.MonkeyPatch, *, newest_first: bool
) -> None:
    times = range(NOON, NOON + 20_000)
    tables.commit({DEVICE: [build_row(time) for time in times]})
    fetched = 0
    real = ServerCursor.fetchmany

    def fetchmany(cursor: ServerCursor[Any], size: int = 0) -> list[Any]:
        nonlocal fetched
        rows = real(cursor, size)
        fetched += len(rows)
        return rows

    monkeypatch.setattr(ServerCursor, "fetchmany", fetchmany)
    for _ in range(20):  # more often than there are connections
        first = await tables.store.read(build_query(newest_first=newest_first), next)
        assert first.time == (times[-1] if newest_first else times[0])
    assert 20 <= fetched <= 20 * 10
    assert await tables.times(newest_first=newest_first) == sorted(times, reverse=newest_first)
    assert fetched >= 20_000
    assert tables.database.read_now(cursors) == 0


async def test_a_reader_sees_one_moment_while_others_write(tables: StoreHarness) -> None:
    tables.commit({DEVICE: [build_row(NOON), build_row(NOON + DAY)]})
    began, written = threading.Event(), threading.Event()

    def use(samples: Iterator[StoredSample]) -> list[int]:
        first = next(samples)
        began.set()
        assert written.wait(PATIENCE)
        return [first.time, *(each.time for each in samples)]

    reading = asyncio.create_task(tables.store.read(build_query(), use))
    assert await asyncio.to_thread(began.wait, PATIENCE)
    await put(tables, tables.store, {DEVICE: [build_row(NOON + DAY + 1)]})
    written.set()
    assert await reading == [NOON, NOON + DAY]
