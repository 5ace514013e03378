"""What holds on PostgreSQL alone: sessions, conflicts, and what takes too long."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, update

from meshfleet.db.tables import label
from meshfleet.errors import DatabaseUnavailable, Unavailable
from tests.db.test_database import PATIENCE, add, texts
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database

_LOCK = 4711
_TRIED = "SELECT count(*) > 1 FROM pg_stat_activity WHERE query = 'SELECT pg_try_advisory_lock(4711)'"
_KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = 4711"
)


@pytest.fixture
def database(postgresql_database: Database) -> Iterator[Database]:
    yield postgresql_database
    postgresql_database.close()


def scalar(connection: Connection, query: str) -> object:
    found: object = connection.exec_driver_sql(query).scalar()
    return found


# --- Sessions ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TimeZone", "UTC"),
        ("plan_cache_mode", "force_custom_plan"),
        ("jit", "off"),
        ("statement_timeout", "30s"),
        ("lock_timeout", "10s"),
        ("idle_in_transaction_session_timeout", "1min"),
        ("application_name", "meshfleet"),
    ],
)
def test_every_session_is_set_up(database: Database, name: str, value: str) -> None:
    assert database.read_now(scalar, f"SHOW {name}") == value
    assert database.write_now(scalar, f"SHOW {name}") == value


def test_what_a_transaction_sets_ends_with_it(database: Database) -> None:
    for _ in range(2):
        assert database.write_now(scalar, "SHOW statement_timeout") == "30s"
        database.write_now(scalar, "SELECT set_config('statement_timeout', '1s', true)")


async def _busy(database: Database) -> list[object]:
    """How many sessions the server sees while as many reads and writes run as can."""
    count = "SELECT count(*), pg_sleep(0.02) FROM pg_stat_activity WHERE datname = current_database()"
    runs = [database.read(scalar, count) for _ in range(30)] + [
        database.write(scalar, count) for _ in range(30)
    ]
    return list(await asyncio.gather(*runs))


def test_sessions_are_limited(database: Database) -> None:
    found = asyncio.run(_busy(database))
    assert len(found) == 60
    assert set(found) <= set(range(1, 9))


# --- Conflicts ---


def test_two_writers_in_each_others_way_both_succeed(database: Database) -> None:
    database.write_now(add, "a", at=0)
    database.write_now(add, "b", at=0)
    both = threading.Barrier(2)
    runs: list[str] = []

    def raise_both(connection: Connection, first: str, second: str) -> None:
        runs.append(first)
        for text in (first, second):
            connection.execute(
                update(label).where(label.c.text == text).values(created_at=label.c.created_at + 1)
            )
            if text == first and runs.count(first) == 1:
                both.wait(PATIENCE)

    async def race() -> None:
        await asyncio.gather(database.write(raise_both, "a", "b"), database.write(raise_both, "b", "a"))

    asyncio.run(race())
    assert len(runs) > 2  # one of the two ran again
    assert database.read_now(
        lambda connection: connection.execute(select(label.c.created_at)).scalars().all()
    ) == [
        2,
        2,
    ]


def test_who_never_gets_through_is_told_so(database: Database) -> None:
    runs: list[int] = []

    def conflict(connection: Connection) -> None:
        runs.append(len(runs))
        connection.exec_driver_sql("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")

    with pytest.raises(DatabaseUnavailable, match="too busy"):
        database.write_now(conflict)
    assert runs == [0, 1, 2, 3, 4]


# --- A slow server ---


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
def test_what_takes_too_long_is_unavailable_and_the_next_one_works(database: Database, limit: str) -> None:
    def wait(connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL {limit} = '50ms'")
        connection.exec_driver_sql("LOCK TABLE label IN EXCLUSIVE MODE")

    def hold(connection: Connection) -> None:
        connection.exec_driver_sql("LOCK TABLE label IN EXCLUSIVE MODE")
        for run in (database.read_now, database.write_now):
            with pytest.raises(DatabaseUnavailable, match="timeout"):
                run(wait)

    database.write_now(hold)
    assert DatabaseUnavailable.http == 503
    assert database.write_now(add, "a") == "a"


def _sessions(connection: Connection) -> list[object]:
    return list(connection.exec_driver_sql("SELECT pid FROM pg_stat_activity").scalars())


def test_who_idles_in_a_transaction_is_told_the_same(database: Database) -> None:
    def idle(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '20ms'")
        mine = scalar(connection, "SELECT pg_backend_pid()")
        while mine in database.read_now(_sessions):
            pass
        connection.exec_driver_sql("SELECT 1")

    with pytest.raises(Unavailable):
        database.write_now(idle)
    assert database.read_now(texts) == []


def test_a_server_that_only_reads_is_unavailable_to_writers(database: Database) -> None:
    """As is a server that was left behind when another took over."""

    def write(connection: Connection) -> None:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        add(connection, "a")

    with pytest.raises(DatabaseUnavailable):
        database.write_now(write)


# --- Only one ---


def test_who_starts_right_after_one_that_was_killed_waits_until_the_server_has_noticed(
    database: Database,
) -> None:
    with database.hold_advisory_lock(_LOCK) as alone:
        assert alone
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(_is_alone, database)
            eventually(lambda: database.read_now(scalar, _TRIED) or waiting.done())
            assert not waiting.done()
            assert database.write_now(scalar, _KILL)
            assert waiting.result(PATIENCE)


def _is_alone(database: Database) -> bool:
    with database.hold_advisory_lock(_LOCK) as alone:
        return alone
