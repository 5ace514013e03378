"""Transactions run in threads, as a whole or not at all, in the same way on both databases."""

from __future__ import annotations

import asyncio
import threading
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, func, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from meshfleet.db.tables import label
from meshfleet.errors import DatabaseUnavailable, FleetError, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

PATIENCE = 30.0
"""Seconds until an expected event must have happened; reached only by a defect."""


def add(connection: Connection, text: str, *, at: int = 1) -> str:
    connection.execute(insert(label).values(text=text, created_at=at))
    return text


def texts(connection: Connection) -> list[str]:
    return list(connection.execute(select(label.c.text).order_by(label.c.text)).scalars())


class Gate:
    """Point at which a thread waits until the test opens it."""

    def __init__(self) -> None:
        self._reached, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Wait until the gate is open."""
        self._reached.set()
        assert self._open.wait(PATIENCE)

    def reached(self) -> bool:
        """Wait until a thread waits at the gate."""
        return self._reached.wait(PATIENCE)

    def open(self) -> None:
        """Release all waiting threads."""
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()  # otherwise a failed test would never end


def add_and_wait(connection: Connection, text: str, gate: Gate) -> str:
    """Insert a label, and wait before the commit."""
    add(connection, text)
    gate.wait()
    return text


def read_and_wait(connection: Connection, gate: Gate) -> str:
    """Read all labels, and wait."""
    texts(connection)
    gate.wait()
    return "a"


# --- Results and errors ---


async def test_the_result_of_a_function_is_returned(database: Database) -> None:
    assert await database.write(add, "a", at=2) == "a"
    assert await database.read(texts) == ["a"]
    assert database.write_now(add, "b", at=2) == "b"
    assert database.read_now(texts) == ["a", "b"]


async def test_an_error_is_raised_unchanged_and_nothing_is_stored(database: Database) -> None:
    error = NotFound("not found")

    def add_and_fail(connection: Connection) -> None:
        add(connection, "a")
        raise error

    def read_and_fail(connection: Connection) -> None:
        texts(connection)
        raise error

    for attempt in (database.write(add_and_fail), database.read(read_and_fail)):
        with pytest.raises(NotFound) as raised:
            await attempt
        assert raised.value is error
    assert await database.read(texts) == []


async def test_a_violated_constraint_raises_an_integrity_error(database: Database) -> None:
    await database.write(add, "a")
    with pytest.raises(IntegrityError):
        await database.write(add, "a")
    assert await database.read(texts) == ["a"]


async def test_changes_of_a_reader_are_not_stored(database: Database) -> None:
    with suppress(DBAPIError, FleetError):  # it may also be refused
        await database.read(add, "a")
    assert await database.read(texts) == []


# --- Concurrency ---


async def test_a_write_does_not_block_the_event_loop(database: Database, gate: Gate) -> None:
    writing = asyncio.create_task(database.write(add_and_wait, "a", gate))
    assert await asyncio.to_thread(gate.reached)
    assert not writing.done()
    gate.open()
    assert await writing == "a"


async def test_readers_run_in_parallel(database: Database) -> None:
    barrier = threading.Barrier(4)

    def read_in_parallel(connection: Connection) -> list[str]:
        found = texts(connection)
        barrier.wait(PATIENCE)
        return found

    assert await asyncio.gather(*(database.read(read_in_parallel) for _ in range(4))) == [[]] * 4


async def test_a_reader_does_not_wait_for_a_writer(database: Database, gate: Gate) -> None:
    writing = asyncio.create_task(database.write(add_and_wait, "a", gate))
    assert await asyncio.to_thread(gate.reached)
    assert await database.read(texts) == []
    gate.open()
    await writing
    assert await database.read(texts) == ["a"]


async def test_a_writer_does_not_wait_for_a_reader_which_sees_one_snapshot(
    database: Database, gate: Gate
) -> None:
    def read_twice(connection: Connection) -> tuple[list[str], list[str]]:
        before = texts(connection)
        gate.wait()
        return before, texts(connection)

    await database.write(add, "a")
    reading = asyncio.create_task(database.read(read_twice))
    assert await asyncio.to_thread(gate.reached)
    await database.write(add, "b")
    gate.open()
    assert await reading == (["a"], ["a"])
    assert await database.read(texts) == ["a", "b"]


async def test_many_concurrent_writers_all_succeed(database: Database) -> None:
    names = [f"{number:02}" for number in range(40)]
    assert await asyncio.gather(*(database.write(add, name) for name in names)) == names
    assert await database.read(texts) == names


# --- Cancellation ---


async def test_canceling_a_running_write_does_not_affect_others(database: Database, gate: Gate) -> None:
    writing = asyncio.create_task(database.write(add_and_wait, "a", gate))
    assert await asyncio.to_thread(gate.reached)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    gate.open()
    await asyncio.gather(*(database.write(add, text) for text in "bcdefghijk"))
    assert await database.read(texts) == list("abcdefghijk")


async def test_canceling_a_queued_write_does_not_affect_others(database: Database, gate: Gate) -> None:
    busy = [asyncio.create_task(database.write(add_and_wait, text, gate)) for text in "abcdefgh"]
    assert await asyncio.to_thread(gate.reached)
    waiting = [asyncio.create_task(database.write(add, text)) for text in "xyz"]
    await asyncio.sleep(0)  # so that each of them has started
    for task in waiting:
        task.cancel()
    assert [type(result) for result in await asyncio.gather(*waiting, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 3
    gate.open()
    await asyncio.gather(*busy)
    await database.write(add, "i")
    assert set(await database.read(texts)) - set("xyz") == set("abcdefghi")


# --- Closing ---


@pytest.mark.parametrize("operation", ["read", "write"])
async def test_closing_waits_for_running_work(database: Database, gate: Gate, operation: str) -> None:
    if operation == "read":
        running = asyncio.create_task(database.read(read_and_wait, gate))
    else:
        running = asyncio.create_task(database.write(add_and_wait, "a", gate))
    assert await asyncio.to_thread(gate.reached)
    closing = asyncio.create_task(asyncio.to_thread(database.close))
    ended, _ = await asyncio.wait([closing], timeout=0.05)  # long enough for a close that does not wait
    assert not ended
    gate.open()
    assert await running == "a"
    await closing


async def test_closing_waits_for_queued_work(database: Database) -> None:
    writing = [asyncio.create_task(database.write(add, f"{number:02}")) for number in range(20)]
    await asyncio.sleep(0)  # so that each of them has started
    await asyncio.to_thread(database.close)
    assert await asyncio.gather(*writing) == [f"{number:02}" for number in range(20)]


def test_closing_twice_is_harmless(database: Database) -> None:
    assert database.read_now(lambda connection: connection.scalar(select(func.count(label.c.id)))) == 0
    database.close()
    database.close()


# --- Secrets ---

_PRIVATE = "private value"


def test_an_error_does_not_contain_the_values_of_its_statement(database: Database) -> None:
    """Check the text that the log shows: the error with its causes."""
    with pytest.raises(DatabaseUnavailable) as raised:
        database.write_now(_fail_with, _PRIVATE)
    assert issubclass(raised.type, Unavailable)
    assert _PRIVATE not in "".join(traceback.format_exception(raised.value))
    assert "SELECT" not in str(raised.value)


def _fail_with(connection: Connection, value: str) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("SELECT ? FROM missing", (value,))
    connection.exec_driver_sql("SET LOCAL statement_timeout = '50ms'")
    connection.exec_driver_sql("SELECT pg_sleep(60), %s", (value,))
