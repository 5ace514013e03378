"""Where queries run: in threads, whole or not at all, the same on both databases."""

from __future__ import annotations

import asyncio
import threading
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from meshfleet.db.tables import label
from meshfleet.errors import DatabaseUnavailable, FleetError, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

PATIENCE = 30.0
"""Seconds until something must have happened; reached only when it is broken."""


def add(connection: Connection, text: str, *, at: int = 1) -> str:
    connection.execute(insert(label).values(text=text, created_at=at))
    return text


def texts(connection: Connection) -> list[str]:
    return list(connection.execute(select(label.c.text).order_by(label.c.text)).scalars())


class Gate:
    """Where a thread waits until it may go on."""

    def __init__(self) -> None:
        self._reached, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Wait here."""
        self._reached.set()
        assert self._open.wait(PATIENCE)

    def reached(self) -> bool:
        """Wait until somebody waits here."""
        return self._reached.wait(PATIENCE)

    def open(self) -> None:
        """Let everybody through."""
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()  # else a test that failed would never end


def add_behind(connection: Connection, text: str, gate: Gate) -> str:
    """Add something, but wait before it is committed."""
    add(connection, text)
    gate.wait()
    return text


def look_behind(connection: Connection, gate: Gate) -> str:
    """Look at what is there, and wait."""
    texts(connection)
    gate.wait()
    return "a"


# --- What comes back ---


async def test_what_a_function_returns_comes_back(database: Database) -> None:
    assert await database.write(add, "a", at=2) == "a"
    assert await database.read(texts) == ["a"]
    assert database.write_now(add, "b", at=2) == "b"
    assert database.read_now(texts) == ["a", "b"]


async def test_an_error_comes_back_as_itself_and_nothing_is_kept(database: Database) -> None:
    error = NotFound("nobody")

    def add_and_fail(connection: Connection) -> None:
        add(connection, "a")
        raise error

    def look_and_fail(connection: Connection) -> None:
        texts(connection)
        raise error

    for attempt in (database.write(add_and_fail), database.read(look_and_fail)):
        with pytest.raises(NotFound) as raised:
            await attempt
        assert raised.value is error
    assert await database.read(texts) == []


async def test_what_contradicts_the_tables_is_an_error_of_its_own(database: Database) -> None:
    await database.write(add, "a")
    with pytest.raises(IntegrityError):
        await database.write(add, "a")
    assert await database.read(texts) == ["a"]


async def test_what_a_reader_changes_is_not_kept(database: Database) -> None:
    with suppress(DBAPIError, FleetError):  # it may be refused as well
        await database.read(add, "a")
    assert await database.read(texts) == []


# --- Who waits for whom ---


async def test_the_event_loop_goes_on_meanwhile(database: Database, gate: Gate) -> None:
    writing = asyncio.create_task(database.write(add_behind, "a", gate))
    assert await asyncio.to_thread(gate.reached)
    assert not writing.done()
    gate.open()
    assert await writing == "a"


async def test_readers_run_side_by_side(database: Database) -> None:
    all_there = threading.Barrier(4)

    def meet(connection: Connection) -> list[str]:
        found = texts(connection)
        all_there.wait(PATIENCE)
        return found

    assert await asyncio.gather(*(database.read(meet) for _ in range(4))) == [[]] * 4


async def test_a_reader_does_not_wait_for_a_writer(database: Database, gate: Gate) -> None:
    writing = asyncio.create_task(database.write(add_behind, "a", gate))
    assert await asyncio.to_thread(gate.reached)
    assert await database.read(texts) == []
    gate.open()
    await writing
    assert await database.read(texts) == ["a"]


async def test_a_writer_does_not_wait_for_a_reader_who_sees_one_moment(
    database: Database, gate: Gate
) -> None:
    def look_twice(connection: Connection) -> tuple[list[str], list[str]]:
        before = texts(connection)
        gate.wait()
        return before, texts(connection)

    await database.write(add, "a")
    reading = asyncio.create_task(database.read(look_twice))
    assert await asyncio.to_thread(gate.reached)
    await database.write(add, "b")
    gate.open()
    assert await reading == (["a"], ["a"])
    assert await database.read(texts) == ["a", "b"]


async def test_many_writers_at_once_all_succeed(database: Database) -> None:
    names = [f"{number:02}" for number in range(40)]
    assert await asyncio.gather(*(database.write(add, name) for name in names)) == names
    assert await database.read(texts) == names


# --- Whoever asked goes away ---


async def test_who_is_cancelled_disturbs_nobody(database: Database, gate: Gate) -> None:
    writing = asyncio.create_task(database.write(add_behind, "a", gate))
    assert await asyncio.to_thread(gate.reached)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    gate.open()
    await asyncio.gather(*(database.write(add, text) for text in "bcdefghijk"))
    assert await database.read(texts) == list("abcdefghijk")


async def test_who_is_cancelled_before_their_turn_disturbs_nobody(database: Database, gate: Gate) -> None:
    busy = [asyncio.create_task(database.write(add_behind, text, gate)) for text in "abcdefgh"]
    assert await asyncio.to_thread(gate.reached)
    waiting = [asyncio.create_task(database.write(add, text)) for text in "xyz"]
    await asyncio.sleep(0)  # so that each of them has begun
    for each in waiting:
        each.cancel()
    assert [type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 3
    gate.open()
    await asyncio.gather(*busy)
    await database.write(add, "i")
    assert set(await database.read(texts)) - set("xyz") == set("abcdefghi")


# --- Its end ---


@pytest.mark.parametrize("how", ["read", "write"])
async def test_closing_waits_for_work_that_runs(database: Database, gate: Gate, how: str) -> None:
    if how == "read":
        running = asyncio.create_task(database.read(look_behind, gate))
    else:
        running = asyncio.create_task(database.write(add_behind, "a", gate))
    assert await asyncio.to_thread(gate.reached)
    closing = asyncio.create_task(asyncio.to_thread(database.close))
    ended, _ = await asyncio.wait([closing], timeout=0.05)  # long enough for one that does not wait
    assert not ended
    gate.open()
    assert await running == "a"
    await closing


async def test_closing_waits_for_work_that_has_not_begun(database: Database) -> None:
    writing = [asyncio.create_task(database.write(add, f"{number:02}")) for number in range(20)]
    await asyncio.sleep(0)  # so that each of them has begun
    await asyncio.to_thread(database.close)
    assert await asyncio.gather(*writing) == [f"{number:02}" for number in range(20)]


def test_closing_twice_is_harmless(database: Database) -> None:
    assert database.read_now(lambda connection: connection.scalar(select(func.count(label.c.id)))) == 0
    database.close()
    database.close()


# --- What must not be seen ---

_PRIVATE = "nobody's business"


def test_what_goes_wrong_is_told_without_the_values(database: Database) -> None:
    """The log shows an error with its causes: no value of a statement may stand there."""
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
