"""The history as it is written: nothing is read too early, nothing is lost, and nothing is kept too long."""

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
from meshfleet.rest import NewRequest, RequestState
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
    from meshfleet.rest import RequestRecord

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

DEVICE = Mac("c0ffee0000a1")
HOUR = 3_600_000
_numbers = count(1)


def write_entry(now: int) -> HistoryEntry:
    """A write that is about to be sent."""
    order = prepare_request(NewRequest(operation=Operation.WRITE, identifier="8010", value="ff"))
    return HistoryEntry.create(f"r-{next(_numbers)}", DEVICE, order, by=COMMAND_LINE, now=now)


@asynccontextmanager
async def running_history(
    database: Database, clock: Clock, retention: int | None = None
) -> AsyncIterator[RequestHistory]:
    book = RequestHistory(database, clock, retention=retention)
    running = asyncio.create_task(book.run())
    yield book
    book.stop()
    async with asyncio.timeout(TIMEOUT):
        await running


class FailingDatabase:
    """A database that does not take what it is told to refuse, and all else."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.errors: list[Exception | None] = []
        self.write_started = asyncio.Event()
        """Whether a round is being written, or was."""
        self.during: Callable[[], object] | None = None
        """What happens while a round is written."""

    async def write(self, work: Any, *args: Any) -> Any:
        if work is store.upsert_requests:
            self.write_started.set()
            if self.during is not None:
                self.during()
                await asyncio.sleep(0)
            if self.errors and (mood := self.errors.pop(0)) is not None:
                await asyncio.sleep(0)
                raise mood
        return await self._database.write(work, *args)


@asynccontextmanager
async def history_on_failing_database(
    database: Database, clock: Clock
) -> AsyncIterator[tuple[RequestHistory, FailingDatabase]]:
    mood = FailingDatabase(database)
    book = RequestHistory(mood, clock, retention=None)  # type: ignore[arg-type] # as much of one as it needs
    running = asyncio.create_task(book.run())
    try:
        yield book, mood
    finally:
        book.stop()
        await running


def history(database: Database) -> list[RequestRecord]:
    return database.read_now(store.list_requests, mac_to_int(DEVICE), before=None, limit=5000)


def count_audit_rows(database: Database) -> int:
    return len(database.read_now(audit.list_entries, audit.AuditFilter(), before=None, limit=1000))


def execute(database: Database, *statements: str) -> None:
    def work(connection: Connection) -> None:
        for each in statements:
            connection.execute(text(each))

    database.write_now(work)


@pytest.mark.rule("rest-195")
async def test_what_is_written_is_there_and_audited_once(database: Database) -> None:
    clock = Clock()
    async with running_history(database, clock) as book:
        entry = write_entry(clock())
        await book.write(entry)
        assert [each.state for each in history(database)] == [RequestState.PENDING]
        entry.fail(GatewayTimeout("late"), clock())
        book.enqueue(entry)
        await book.flush()
        (record,) = history(database)
        assert (record.state, record.problem and record.problem.code) == (
            RequestState.TIMED_OUT,
            "gateway-timeout",
        )
        assert record == entry.record
    assert count_audit_rows(database) == 1


async def test_who_wants_the_history_complete_waits_for_what_is_being_written(
    sqlite_database: Database,
) -> None:
    """SQLite has one writer: as long as it is busy, a round is on its way."""
    clock, busy, free = Clock(), threading.Event(), threading.Event()

    def hold(_: Connection) -> None:
        busy.set()
        assert free.wait(TIMEOUT)

    async with history_on_failing_database(sqlite_database, clock) as (book, mood):
        holding = asyncio.create_task(sqlite_database.write(hold))
        await asyncio.to_thread(busy.wait, TIMEOUT)
        entry = write_entry(clock())
        writing = asyncio.create_task(book.write(entry))
        async with asyncio.timeout(TIMEOUT):
            await mood.write_started.wait()
        settling = asyncio.create_task(book.flush())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not settling.done()
        free.set()
        await settling
        assert len(history(sqlite_database)) == 1
        await asyncio.gather(writing, holding)
    sqlite_database.close()


async def test_what_cannot_be_written_is_refused_and_what_is_over_is_written_later(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with running_history(database, clock) as book:
        sent = write_entry(clock())
        await book.write(sent)
        execute(database, "ALTER TABLE request RENAME TO request_away")
        refused = [write_entry(clock()) for _ in range(3)]
        for each in refused:
            with pytest.raises(Unrecorded):
                await book.write(each)
        sent.fail(GatewayTimeout("late"), clock())
        book.enqueue(sent)
        with pytest.raises(DatabaseUnavailable):
            await book.flush()
        execute(database, "ALTER TABLE request_away RENAME TO request")
        await eventually_async(lambda: len(history(database)) == 4, "all four are written")
        await book.flush()
        ends = {each.id: (each.state, each.problem and each.problem.code) for each in history(database)}
        assert ends == {
            sent.record.id: (RequestState.TIMED_OUT, "gateway-timeout"),
            **{each.record.id: (RequestState.FAILED, "unrecorded") for each in refused},
        }
        assert count_audit_rows(database) == 1  # what was not sent changed nothing
        again = write_entry(clock())
        await book.write(again)
    assert caplog.text.count("request history cannot be written") == 1


async def test_what_cannot_be_forgotten_does_not_keep_anybody_from_writing(sqlite_database: Database) -> None:
    clock = Clock()
    execute(
        sqlite_database,
        "CREATE TRIGGER stay BEFORE DELETE ON request BEGIN SELECT RAISE(ABORT, 'stay'); END",
    )
    async with running_history(sqlite_database, clock, retention=HOUR) as book:
        for _ in range(3):
            await book.write(write_entry(clock()))
            clock.move(seconds=3700)
        assert len(history(sqlite_database)) == 3
    assert count_audit_rows(sqlite_database) == 3
    sqlite_database.close()


async def test_what_is_too_old_is_forgotten_and_nothing_else(database: Database) -> None:
    clock = Clock()

    def many(connection: Connection) -> None:
        old = [write_entry(clock() - HOUR - 1) for _ in range(1500)]  # more than are forgotten at once
        store.upsert_requests(connection, old)

    database.write_now(many)
    async with running_history(database, clock, retention=HOUR) as book:
        young = write_entry(clock() - HOUR + 600_000)
        await book.write(young)

        async def is_forgotten() -> bool:
            clock.move(seconds=1)
            await book.write(write_entry(clock()))
            return database.read_now(_oldest) == young.record.id

        await eventually_async(is_forgotten, "what is too old is forgotten")
    assert history(database)[-1].id == young.record.id


def _oldest(connection: Connection) -> str:
    return str(connection.execute(text("SELECT id FROM request ORDER BY requested_at LIMIT 1")).scalar_one())


async def test_without_a_limit_nothing_is_forgotten(database: Database) -> None:
    clock = Clock()
    async with running_history(database, clock) as book:
        await book.write(write_entry(0))
        await book.write(write_entry(clock()))
    assert len(history(database)) == 2


async def test_at_the_end_all_is_written_and_then_nothing_any_more(database: Database) -> None:
    clock = Clock()
    async with running_history(database, clock) as book:
        entry = write_entry(clock())
        await book.write(entry)
        entry.fail(Interrupted("the end"), clock())
        book.enqueue(entry)
    assert [each.state for each in history(database)] == [RequestState.FAILED]
    await book.flush()
    with pytest.raises(Unrecorded):
        await book.write(write_entry(clock()))
    assert len(history(database)) == 1


async def test_what_was_refused_stays_refused_though_the_next_round_has_it_too(database: Database) -> None:
    clock = Clock()
    refused, taken = write_entry(clock()), write_entry(clock())
    refused.key = "a key"
    async with history_on_failing_database(database, clock) as (book, mood):
        mood.errors = [DatabaseUnavailable("a moment")]
        first = asyncio.create_task(book.write(refused))
        await mood.write_started.wait()
        await asyncio.gather(book.write(taken))
        with pytest.raises(Unrecorded):
            await first
    ends = {each.id: each.state for each in history(database)}
    assert ends == {refused.record.id: RequestState.FAILED, taken.record.id: RequestState.PENDING}
    assert database.read_now(store.find_request_by_key, "a key") is None


async def test_one_that_the_database_never_takes_stops_no_others(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    good, bad = [write_entry(clock()) for _ in range(3)], write_entry(clock())
    bad.record = replace(bad.record, by=None)  # which no row may have
    async with running_history(database, clock) as book:
        for each in good[:2]:
            book.enqueue(each)
        book.enqueue(bad)
        await book.write(good[2])
        with pytest.raises(Unrecorded):
            await book.write(bad)
        assert book.dropped == 2
    assert {each.id for each in history(database)} == {each.record.id for each in good}
    assert caplog.text.count("rejected by the database") == 2


async def test_only_so_many_wait_for_a_database_that_is_away(sqlite_database: Database) -> None:
    clock = Clock()
    book = RequestHistory(sqlite_database, clock, retention=None, max_pending=3)
    for _ in range(5):
        book.enqueue(write_entry(clock()))
    assert book.dropped == 2
    with pytest.raises(Unrecorded):
        await book.write(write_entry(clock()))
    sqlite_database.close()


async def test_who_comes_while_the_last_round_is_written_is_refused(database: Database) -> None:
    clock, late = Clock(), list[asyncio.Task[None]]()
    async with history_on_failing_database(database, clock) as (book, mood):
        await book.write(write_entry(clock()))
        mood.during = lambda: late.append(asyncio.create_task(book.write(write_entry(clock()))))
    mood.during = None
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(Unrecorded):
            await late[-1]


async def test_an_end_in_the_middle_of_a_round_waits_for_it(sqlite_database: Database) -> None:
    clock, busy, free = Clock(), threading.Event(), threading.Event()

    def hold(_: Connection) -> None:
        busy.set()
        assert free.wait(TIMEOUT)

    mood = FailingDatabase(sqlite_database)
    book = RequestHistory(mood, clock, retention=None)  # type: ignore[arg-type] # as much of one as it needs
    running = asyncio.create_task(book.run())
    holding = asyncio.create_task(sqlite_database.write(hold))
    await asyncio.to_thread(busy.wait, TIMEOUT)
    entry, last = write_entry(clock()), write_entry(clock())
    writing = asyncio.create_task(book.write(entry))
    async with asyncio.timeout(TIMEOUT):
        await mood.write_started.wait()
    book.enqueue(last)
    book.stop()
    free.set()
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(running, writing, holding)
    assert {each.id for each in history(sqlite_database)} == {entry.record.id, last.record.id}
    assert count_audit_rows(sqlite_database) == 2
    sqlite_database.close()


async def test_what_a_service_before_did_not_end_is_over_and_the_rest_stays(database: Database) -> None:
    clock = Clock()
    done, left = write_entry(clock()), write_entry(clock())
    async with running_history(database, clock) as book:
        await book.write(done)
        await book.write(left)
        done.complete(None, clock())
        book.enqueue(done)
    async with running_history(database, clock) as book:
        await book.restore()
    states = {each.id: (each.state, each.problem and each.problem.code) for each in history(database)}
    assert states == {
        done.record.id: (RequestState.DONE, None),
        left.record.id: (RequestState.FAILED, "interrupted"),
    }
