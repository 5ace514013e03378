"""Writer of the request history: reads are complete, no entry is lost, and none is kept too long."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from meshfleet.errors import DatabaseUnavailable, GatewayTimeout, Interrupted, Unrecorded
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.rest.requests import NewRequest, RequestState
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.audit import log as audit
from meshfleet.service.requests import store
from meshfleet.service.requests.history import RequestHistory
from meshfleet.service.requests.history_entry import HistoryEntry
from meshfleet.service.requests.prepared_request import prepare_request
from tests.eventually import eventually_async
from tests.mqtt.broker.raw_client import TIMEOUT
from tests.mqtt.broker.running_broker import Clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.rest.requests import RequestRecord

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

DEVICE = Mac("c0ffee0000a1")
HOUR = 3_600_000
_numbers = count(1)


def write_entry(now: int) -> HistoryEntry:
    """Create the entry of a write request."""
    prepared = prepare_request(NewRequest(operation=Operation.WRITE, identifier="8010", value="ff"))
    return HistoryEntry.create(f"r-{next(_numbers)}", DEVICE, prepared, by=COMMAND_LINE, now=now)


@asynccontextmanager
async def running_history(
    database: Database, clock: Clock, retention: int | None = None
) -> AsyncIterator[RequestHistory]:
    history_writer = RequestHistory(database, clock, retention=retention)
    run_task = asyncio.create_task(history_writer.run())
    yield history_writer
    history_writer.stop()
    async with asyncio.timeout(TIMEOUT):
        await run_task


class FailingDatabase:
    """Database that fails as scripted, and otherwise works."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.errors: list[Exception | None] = []
        self.write_started = asyncio.Event()
        """Set when a batch is being written, or was."""
        self.during: Callable[[], object] | None = None
        """Called while a batch is written."""

    async def write(self, work: Any, *args: Any) -> Any:
        if work is store.upsert_requests:
            self.write_started.set()
            if self.during is not None:
                self.during()
                await asyncio.sleep(0)
            if self.errors and (error := self.errors.pop(0)) is not None:
                await asyncio.sleep(0)
                raise error
        return await self._database.write(work, *args)


@asynccontextmanager
async def history_on_failing_database(
    database: Database, clock: Clock
) -> AsyncIterator[tuple[RequestHistory, FailingDatabase]]:
    failing_database = FailingDatabase(database)
    history_writer = RequestHistory(failing_database, clock, retention=None)  # type: ignore[arg-type] # implements only what the writer uses
    run_task = asyncio.create_task(history_writer.run())
    try:
        yield history_writer, failing_database
    finally:
        history_writer.stop()
        await run_task


def list_history(database: Database) -> list[RequestRecord]:
    return database.read_now(store.list_requests, mac_to_int(DEVICE), before=None, limit=5000)


def count_audit_rows(database: Database) -> int:
    return len(database.read_now(audit.list_entries, audit.AuditFilter(), before=None, limit=1000))


def execute(database: Database, *statements: str) -> None:
    def work(connection: Connection) -> None:
        for each in statements:
            connection.execute(text(each))

    database.write_now(work)


@pytest.mark.rule("rest-195")
async def test_an_entry_is_stored_and_audited_once(database: Database) -> None:
    clock = Clock()
    async with running_history(database, clock) as history_writer:
        entry = write_entry(clock())
        await history_writer.write(entry)
        assert [each.state for each in list_history(database)] == [RequestState.PENDING]
        entry.fail(GatewayTimeout("late"), clock())
        history_writer.enqueue(entry)
        await history_writer.flush()
        (record,) = list_history(database)
        assert (record.state, record.problem and record.problem.code) == (
            RequestState.TIMED_OUT,
            "gateway-timeout",
        )
        assert record == entry.record
    assert count_audit_rows(database) == 1


async def test_a_flush_waits_for_the_batch_being_written(
    sqlite_database: Database,
) -> None:
    """Hold SQLite's only writer, so that a batch stays in progress."""
    clock, busy, free = Clock(), threading.Event(), threading.Event()

    def hold(_: Connection) -> None:
        busy.set()
        assert free.wait(TIMEOUT)

    async with history_on_failing_database(sqlite_database, clock) as (history_writer, failing_database):
        hold_task = asyncio.create_task(sqlite_database.write(hold))
        await asyncio.to_thread(busy.wait, TIMEOUT)
        entry = write_entry(clock())
        write_task = asyncio.create_task(history_writer.write(entry))
        async with asyncio.timeout(TIMEOUT):
            await failing_database.write_started.wait()
        flush_task = asyncio.create_task(history_writer.flush())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not flush_task.done()
        free.set()
        await flush_task
        assert len(list_history(sqlite_database)) == 1
        await asyncio.gather(write_task, hold_task)


async def test_new_entries_are_refused_and_finished_ones_retried_while_the_database_fails(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with running_history(database, clock) as history_writer:
        sent = write_entry(clock())
        await history_writer.write(sent)
        execute(database, "ALTER TABLE request RENAME TO request_away")
        refused = [write_entry(clock()) for _ in range(3)]
        for each in refused:
            with pytest.raises(Unrecorded):
                await history_writer.write(each)
        sent.fail(GatewayTimeout("late"), clock())
        history_writer.enqueue(sent)
        with pytest.raises(DatabaseUnavailable):
            await history_writer.flush()
        execute(database, "ALTER TABLE request_away RENAME TO request")
        await eventually_async(lambda: len(list_history(database)) == 4, "all four entries are written")
        await history_writer.flush()
        outcomes = {
            each.id: (each.state, each.problem and each.problem.code) for each in list_history(database)
        }
        assert outcomes == {
            sent.record.id: (RequestState.TIMED_OUT, "gateway-timeout"),
            **{each.record.id: (RequestState.FAILED, "unrecorded") for each in refused},
        }
        assert count_audit_rows(database) == 1  # requests that were not sent are not audited
        next_entry = write_entry(clock())
        await history_writer.write(next_entry)
    assert caplog.text.count("request history cannot be written") == 1


async def test_a_failing_deletion_does_not_block_writes(sqlite_database: Database) -> None:
    clock = Clock()
    execute(
        sqlite_database,
        "CREATE TRIGGER stay BEFORE DELETE ON request BEGIN SELECT RAISE(ABORT, 'stay'); END",
    )
    async with running_history(sqlite_database, clock, retention=HOUR) as history_writer:
        for _ in range(3):
            await history_writer.write(write_entry(clock()))
            clock.move(seconds=3700)
        assert len(list_history(sqlite_database)) == 3
    assert count_audit_rows(sqlite_database) == 3


async def test_only_expired_entries_are_deleted(database: Database) -> None:
    clock = Clock()

    def insert_expired(connection: Connection) -> None:
        old = [write_entry(clock() - HOUR - 1) for _ in range(1500)]  # more than are deleted at once
        store.upsert_requests(connection, old)

    database.write_now(insert_expired)
    async with running_history(database, clock, retention=HOUR) as history_writer:
        recent = write_entry(clock() - HOUR + 600_000)
        await history_writer.write(recent)

        async def is_deleted() -> bool:
            clock.move(seconds=1)
            await history_writer.write(write_entry(clock()))
            return database.read_now(_find_oldest) == recent.record.id

        await eventually_async(is_deleted, "the expired entries are deleted")
    assert list_history(database)[-1].id == recent.record.id


def _find_oldest(connection: Connection) -> str:
    return str(connection.execute(text("SELECT id FROM request ORDER BY requested_at LIMIT 1")).scalar_one())


async def test_without_a_retention_nothing_is_deleted(database: Database) -> None:
    clock = Clock()
    async with running_history(database, clock) as history_writer:
        await history_writer.write(write_entry(0))
        await history_writer.write(write_entry(clock()))
    assert len(list_history(database)) == 2


async def test_all_entries_are_written_at_the_end_and_none_afterwards(database: Database) -> None:
    clock = Clock()
    async with running_history(database, clock) as history_writer:
        entry = write_entry(clock())
        await history_writer.write(entry)
        entry.fail(Interrupted("the end"), clock())
        history_writer.enqueue(entry)
    assert [each.state for each in list_history(database)] == [RequestState.FAILED]
    await history_writer.flush()
    with pytest.raises(Unrecorded):
        await history_writer.write(write_entry(clock()))
    assert len(list_history(database)) == 1


async def test_a_refused_entry_stays_failed_although_the_next_batch_contains_it(database: Database) -> None:
    clock = Clock()
    refused, accepted = write_entry(clock()), write_entry(clock())
    refused.key = "a key"
    async with history_on_failing_database(database, clock) as (history_writer, failing_database):
        failing_database.errors = [DatabaseUnavailable("a moment")]
        first = asyncio.create_task(history_writer.write(refused))
        await failing_database.write_started.wait()
        await asyncio.gather(history_writer.write(accepted))
        with pytest.raises(Unrecorded):
            await first
    outcomes = {each.id: each.state for each in list_history(database)}
    assert outcomes == {refused.record.id: RequestState.FAILED, accepted.record.id: RequestState.PENDING}
    assert database.read_now(store.find_request_by_key, "a key") is None


async def test_an_entry_that_the_database_rejects_does_not_block_others(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    good, bad = [write_entry(clock()) for _ in range(3)], write_entry(clock())
    bad.record = replace(bad.record, by=None)  # violates a NOT NULL constraint
    async with running_history(database, clock) as history_writer:
        for each in good[:2]:
            history_writer.enqueue(each)
        history_writer.enqueue(bad)
        await history_writer.write(good[2])
        with pytest.raises(Unrecorded):
            await history_writer.write(bad)
        assert history_writer.dropped == 2
    assert {each.id for each in list_history(database)} == {each.record.id for each in good}
    assert caplog.text.count("rejected by the database") == 2


async def test_the_number_of_pending_entries_is_limited(sqlite_database: Database) -> None:
    clock = Clock()
    history_writer = RequestHistory(sqlite_database, clock, retention=None, max_pending=3)
    for _ in range(5):
        history_writer.enqueue(write_entry(clock()))
    assert history_writer.dropped == 2
    with pytest.raises(Unrecorded):
        await history_writer.write(write_entry(clock()))


async def test_entries_during_the_last_batch_are_refused(database: Database) -> None:
    clock, late_writes = Clock(), list[asyncio.Task[None]]()
    async with history_on_failing_database(database, clock) as (history_writer, failing_database):
        await history_writer.write(write_entry(clock()))
        failing_database.during = lambda: late_writes.append(
            asyncio.create_task(history_writer.write(write_entry(clock())))
        )
    failing_database.during = None
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(Unrecorded):
            await late_writes[-1]


async def test_stopping_waits_for_the_batch_in_progress(sqlite_database: Database) -> None:
    clock, busy, free = Clock(), threading.Event(), threading.Event()

    def hold(_: Connection) -> None:
        busy.set()
        assert free.wait(TIMEOUT)

    failing_database = FailingDatabase(sqlite_database)
    history_writer = RequestHistory(failing_database, clock, retention=None)  # type: ignore[arg-type] # implements only what the writer uses
    run_task = asyncio.create_task(history_writer.run())
    hold_task = asyncio.create_task(sqlite_database.write(hold))
    await asyncio.to_thread(busy.wait, TIMEOUT)
    entry, last = write_entry(clock()), write_entry(clock())
    write_task = asyncio.create_task(history_writer.write(entry))
    async with asyncio.timeout(TIMEOUT):
        await failing_database.write_started.wait()
    history_writer.enqueue(last)
    history_writer.stop()
    free.set()
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(run_task, write_task, hold_task)
    assert {each.id for each in list_history(sqlite_database)} == {entry.record.id, last.record.id}
    assert count_audit_rows(sqlite_database) == 2


async def test_a_restart_fails_unfinished_requests_and_keeps_finished_ones(database: Database) -> None:
    clock = Clock()
    done, unfinished = write_entry(clock()), write_entry(clock())
    async with running_history(database, clock) as history_writer:
        await history_writer.write(done)
        await history_writer.write(unfinished)
        done.complete(None, clock())
        history_writer.enqueue(done)
    async with running_history(database, clock) as history_writer:
        await history_writer.restore()
    states = {each.id: (each.state, each.problem and each.problem.code) for each in list_history(database)}
    assert states == {
        done.record.id: (RequestState.DONE, None),
        unfinished.record.id: (RequestState.FAILED, "interrupted"),
    }
