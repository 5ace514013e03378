"""Partitions that several processes create, fill and drop at the same time."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import ServerCursor

from meshfleet.db.samples import SampleKind, SampleRows, SampleStore, StoredSample
from meshfleet.db.samples.postgresql_store import PostgresqlSampleStore
from tests.db.samples.store_harness import DAY, DEVICE, NOON, OTHER, build_query, build_row, build_stray_row
from tests.db.samples.strategies import MIDNIGHT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection

    from tests.db.samples.store_harness import StoreHarness

pytestmark = pytest.mark.anyio

PATIENCE = 30.0
"""Seconds until an expected event must have happened; reached only by a defect."""


def list_partitions(connection: Connection) -> list[str]:
    query = "SELECT relid::regclass::text FROM pg_partition_tree('sample') WHERE isleaf"
    return sorted(name for (name,) in connection.exec_driver_sql(query))


def count_cursors(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT count(*) FROM pg_cursors").scalar_one())


def drop_partitions(connection: Connection) -> None:
    for name in list_partitions(connection):
        connection.exec_driver_sql(f"DROP TABLE {name}")


def open_second_store(
    harness: StoreHarness, days: int | None = None, kinds: Iterable[int] = SampleKind
) -> SampleStore:
    """Open a store like a second process on the same database; it keeps some kinds for `days` days."""
    retention = {int(kind): None if days is None else days * DAY for kind in kinds}
    return PostgresqlSampleStore(harness.database, retention, now=harness.now)


async def commit_rows(harness: StoreHarness, store: SampleStore, rows: SampleRows) -> None:
    number = await harness.database.write(store.write, rows, harness.now)
    store.publish_committed(number, rows)


async def test_each_day_has_partitions_of_its_own(postgresql_harness: StoreHarness) -> None:
    postgresql_harness.commit(
        {
            DEVICE: [
                build_row(MIDNIGHT - 1),
                build_row(MIDNIGHT),
                build_row(MIDNIGHT + DAY - 1),
                build_row(MIDNIGHT + DAY),
            ]
        }
    )
    names = postgresql_harness.database.read_now(list_partitions)
    assert [name[-8:] for name in names] == ["20231114", "20231115", "20231116"]
    postgresql_harness.commit(
        {DEVICE: [build_row(-1), build_row(0), build_row(-315_619_200_000), build_row(4_102_444_799_999)]}
    )
    names = postgresql_harness.database.read_now(list_partitions)
    assert {name[-8:] for name in names} >= {"19691231", "19700101", "19600101", "20991231"}
    assert len(await postgresql_harness.times()) == 8


async def test_strays_need_no_partition(postgresql_harness: StoreHarness) -> None:
    postgresql_harness.commit(
        {DEVICE: [build_stray_row(-62_135_596_800_000), build_stray_row(253_402_300_799_999)]}
    )
    assert postgresql_harness.database.read_now(list_partitions) == []
    assert len(await postgresql_harness.times()) == 2


async def test_a_partition_that_was_not_committed_is_created_again(postgresql_harness: StoreHarness) -> None:
    postgresql_harness.write_without_commit({DEVICE: [build_row()]})
    assert postgresql_harness.database.read_now(list_partitions) == []
    postgresql_harness.commit({DEVICE: [build_row()]})
    assert await postgresql_harness.times() == [NOON]


async def test_processes_can_create_the_same_partition_concurrently(postgresql_harness: StoreHarness) -> None:
    stores = [open_second_store(postgresql_harness) for _ in range(4)]
    for day in range(5):
        rows = [build_row(NOON + day * DAY), build_row(NOON + day * DAY, kind=SampleKind.LINK)]
        await asyncio.wait_for(
            asyncio.gather(
                *(
                    commit_rows(postgresql_harness, store, {DEVICE: rows, OTHER + index: rows})
                    for index, store in enumerate(stores)
                )
            ),
            PATIENCE,
        )
    for device in (DEVICE, *range(OTHER, OTHER + 4)):
        assert await postgresql_harness.times(device) == [
            NOON + day * DAY for day in range(5) for _ in range(2)
        ]


async def test_rows_for_a_partition_that_another_process_dropped_are_stored(
    postgresql_harness: StoreHarness,
) -> None:
    postgresql_harness.commit(
        {DEVICE: [build_row(NOON), build_row(NOON + DAY), build_row(NOON, kind=SampleKind.LINK)]}
    )
    postgresql_harness.database.write_now(drop_partitions)
    postgresql_harness.commit(
        {DEVICE: [build_row(NOON + 1), build_row(NOON + 2, kind=SampleKind.LINK), build_stray_row(NOON + 3)]}
    )
    assert await postgresql_harness.times() == [NOON + 1, NOON + 2, NOON + 3]
    postgresql_harness.commit({DEVICE: [build_row(NOON + DAY)]})
    assert await postgresql_harness.times() == [NOON + 1, NOON + 2, NOON + 3, NOON + DAY]


async def test_processes_that_write_and_drop_concurrently_lose_no_recent_samples(
    postgresql_harness: StoreHarness,
) -> None:
    writer, dropper = open_second_store(postgresql_harness), open_second_store(postgresql_harness, 1)
    old, new = NOON - 9 * DAY, NOON

    async def write() -> None:
        for step in range(15):
            await commit_rows(
                postgresql_harness, writer, {DEVICE: [build_row(old + step), build_row(new + step)]}
            )

    async def drop() -> None:
        for hour in range(15):
            await dropper.maintain(postgresql_harness.now + hour * 3_600_000)

    await asyncio.wait_for(asyncio.gather(write(), drop()), PATIENCE)
    assert await postgresql_harness.times(since=new) == [new + step for step in range(15)]


async def test_an_expired_partition_is_dropped(postgresql_harness: StoreHarness) -> None:
    postgresql_harness.commit(
        {DEVICE: [build_row(NOON), build_row(NOON + 9 * DAY), build_row(NOON, kind=SampleKind.LINK)]}
    )
    await open_second_store(postgresql_harness, 1).maintain(NOON + 9 * DAY)
    remaining = {name[-8:] for name in postgresql_harness.database.read_now(list_partitions)}
    assert remaining == {"20231124", "20231125"}
    assert await postgresql_harness.times() == [NOON + 9 * DAY]


async def test_a_partition_that_a_backup_reads_is_dropped_later(postgresql_harness: StoreHarness) -> None:
    postgresql_harness.commit({DEVICE: [build_row(NOON)]})
    store = open_second_store(postgresql_harness, 1)
    is_reading, may_end = threading.Event(), threading.Event()

    def read(connection: Connection) -> None:
        connection.exec_driver_sql("SELECT count(*) FROM sample")
        is_reading.set()
        may_end.wait(PATIENCE)

    reader = asyncio.create_task(postgresql_harness.database.read(read))
    await asyncio.to_thread(is_reading.wait, PATIENCE)
    later = NOON + 9 * DAY
    await store.maintain(later)
    assert NOON in await postgresql_harness.times()
    may_end.set()
    await reader
    await store.maintain(later + 60_000)
    assert await postgresql_harness.times() == []


async def test_processes_can_run_maintenance_concurrently(postgresql_harness: StoreHarness) -> None:
    postgresql_harness.commit(
        {DEVICE: [build_row(NOON - day * DAY, kind=kind) for day in range(6) for kind in SampleKind]}
    )
    some_kinds = [SampleKind.MEASUREMENT, SampleKind.LINK]
    stores = [
        open_second_store(postgresql_harness, 2),
        open_second_store(postgresql_harness, 2),
        open_second_store(postgresql_harness, 2, some_kinds),
    ]
    await asyncio.wait_for(
        asyncio.gather(*(store.maintain(postgresql_harness.now) for store in stores)), PATIENCE
    )
    samples = await postgresql_harness.read()
    assert {sample.time for sample in samples} == {NOON, NOON - DAY, NOON - 2 * DAY}
    assert {sample.kind for sample in samples if sample.time == NOON} == set(SampleKind)


class UnfinishedRead:
    """Read that has started and does not end before the block does."""

    def __init__(self, harness: StoreHarness) -> None:
        self._harness = harness
        self._has_started, self._may_end = threading.Event(), threading.Event()

    async def __aenter__(self) -> None:
        self._reading = asyncio.create_task(self._harness.store.read(build_query(), self._wait))
        assert await asyncio.to_thread(self._has_started.wait, PATIENCE)

    async def __aexit__(self, *_: object) -> None:
        self._may_end.set()
        await self._reading

    def _wait(self, samples: Iterator[StoredSample]) -> None:
        next(samples)
        self._has_started.set()
        assert self._may_end.wait(PATIENCE)


async def test_partitions_are_created_in_advance(postgresql_harness: StoreHarness) -> None:
    await postgresql_harness.maintain()
    created = postgresql_harness.database.read_now(list_partitions)
    assert created == [
        f"{table}_{day}" for table in ("sample_reported", "sample_rolled") for day in (20231115, 20231116)
    ]
    postgresql_harness.commit({DEVICE: [build_row(NOON + DAY), build_row(NOON, kind=SampleKind.LINK)]})
    assert postgresql_harness.database.read_now(list_partitions) == created
    await postgresql_harness.maintain(after=DAY)
    assert len(postgresql_harness.database.read_now(list_partitions)) == 6
    assert await postgresql_harness.times() == [NOON, NOON + DAY]


async def test_a_failure_to_create_partitions_in_advance_does_not_stop_maintenance(
    postgresql_harness: StoreHarness,
) -> None:
    postgresql_harness.reopen(retention={SampleKind.MEASUREMENT: DAY})
    postgresql_harness.commit({DEVICE: [build_row(NOON), build_row(NOON, kind=SampleKind.EVENT)]})
    existing = postgresql_harness.database.read_now(list_partitions)
    has_started, may_end = threading.Event(), threading.Event()

    def hold_lock(connection: Connection) -> None:
        connection.exec_driver_sql("LOCK TABLE sample_reported IN SHARE UPDATE EXCLUSIVE MODE")
        has_started.set()
        assert may_end.wait(PATIENCE)

    holding = asyncio.create_task(postgresql_harness.database.write(hold_lock))
    assert await asyncio.to_thread(has_started.wait, PATIENCE)
    await postgresql_harness.maintain(after=5 * DAY)
    assert postgresql_harness.database.read_now(list_partitions) == existing
    assert [sample.kind for sample in await postgresql_harness.read()] == [SampleKind.EVENT]
    may_end.set()
    await holding
    await postgresql_harness.maintain()
    assert len(postgresql_harness.database.read_now(list_partitions)) == len(existing) + 4


async def test_the_first_sample_of_a_day_does_not_wait_for_readers(
    postgresql_harness: StoreHarness,
) -> None:
    postgresql_harness.commit({DEVICE: [build_row(NOON), build_row(NOON, kind=SampleKind.LINK)]})
    async with UnfinishedRead(postgresql_harness):
        # A write that had to wait would fail after 10 seconds.
        await commit_rows(
            postgresql_harness,
            postgresql_harness.store,
            {DEVICE: [build_row(NOON + DAY), build_row(NOON + DAY, kind=SampleKind.LINK)]},
        )
        await postgresql_harness.maintain(after=5 * DAY)
        assert len(postgresql_harness.database.read_now(list_partitions)) == 8
    assert await postgresql_harness.times() == [NOON, NOON, NOON + DAY, NOON + DAY]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_short_read_of_a_day_fetches_few_rows_from_the_server(
    postgresql_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch, *, newest_first: bool
) -> None:
    times = range(NOON, NOON + 20_000)
    postgresql_harness.commit({DEVICE: [build_row(time) for time in times]})
    fetched = 0
    real_fetchmany = ServerCursor.fetchmany

    def fetch_and_count(cursor: ServerCursor[Any], size: int = 0) -> list[Any]:
        nonlocal fetched
        rows = real_fetchmany(cursor, size)
        fetched += len(rows)
        return rows

    monkeypatch.setattr(ServerCursor, "fetchmany", fetch_and_count)
    for _ in range(20):  # more reads than connections
        first = await postgresql_harness.store.read(build_query(newest_first=newest_first), next)
        assert first.time == (times[-1] if newest_first else times[0])
    assert 20 <= fetched <= 20 * 10
    assert await postgresql_harness.times(newest_first=newest_first) == sorted(times, reverse=newest_first)
    assert fetched >= 20_000
    assert postgresql_harness.database.read_now(count_cursors) == 0


async def test_a_reader_sees_one_snapshot_while_others_write(postgresql_harness: StoreHarness) -> None:
    postgresql_harness.commit({DEVICE: [build_row(NOON), build_row(NOON + DAY)]})
    has_started, written = threading.Event(), threading.Event()

    def read_times(samples: Iterator[StoredSample]) -> list[int]:
        first = next(samples)
        has_started.set()
        assert written.wait(PATIENCE)
        return [first.time, *(sample.time for sample in samples)]

    reading = asyncio.create_task(postgresql_harness.store.read(build_query(), read_times))
    assert await asyncio.to_thread(has_started.wait, PATIENCE)
    await commit_rows(postgresql_harness, postgresql_harness.store, {DEVICE: [build_row(NOON + DAY + 1)]})
    written.set()
    assert await reading == [NOON, NOON + DAY]
