"""Behavior on PostgreSQL only: session settings, conflicts and timeouts."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, select, update

from meshfleet.db.tables import label
from meshfleet.errors import DatabaseUnavailable, Unavailable
from tests.db.test_database import PATIENCE, add, texts
from tests.eventually import eventually

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database

_LOCK = 4711
_IS_TRIED = "SELECT count(*) > 1 FROM pg_stat_activity WHERE query = 'SELECT pg_try_advisory_lock(4711)'"
_KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = 4711"
)


@pytest.fixture
def database(postgresql_database: Database) -> Database:
    return postgresql_database


def scalar(connection: Connection, query: str) -> object:
    value: object = connection.exec_driver_sql(query).scalar()
    return value


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
def test_every_session_has_its_settings(database: Database, name: str, value: str) -> None:
    assert database.read_now(scalar, f"SHOW {name}") == value
    assert database.write_now(scalar, f"SHOW {name}") == value


def test_settings_of_a_transaction_end_with_it(database: Database) -> None:
    for _ in range(2):
        assert database.write_now(scalar, "SHOW statement_timeout") == "30s"
        database.write_now(scalar, "SELECT set_config('statement_timeout', '1s', true)")


async def _count_sessions_under_load(database: Database) -> list[object]:
    """Return the numbers of busy sessions that the server sees while many reads and writes run."""
    # The server has other sessions for a moment: of an automatic vacuum, or of a client that has just left.
    count = """
        SELECT count(*), pg_sleep(0.02) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND state = 'active'
    """
    calls = [database.read(scalar, count) for _ in range(30)] + [
        database.write(scalar, count) for _ in range(30)
    ]
    return list(await asyncio.gather(*calls))


def test_the_number_of_sessions_is_limited(database: Database) -> None:
    counts = asyncio.run(_count_sessions_under_load(database))
    assert len(counts) == 60
    assert set(counts) <= set(range(1, 9))


# --- Conflicts ---


def test_two_conflicting_writers_both_succeed(database: Database) -> None:
    database.write_now(add, "a", at=0)
    database.write_now(add, "b", at=0)
    barrier = threading.Barrier(2)
    runs: list[str] = []

    def increment_both(connection: Connection, first: str, second: str) -> None:
        runs.append(first)
        for text in (first, second):
            connection.execute(
                update(label).where(label.c.text == text).values(created_at=label.c.created_at + 1)
            )
            if text == first and runs.count(first) == 1:
                barrier.wait(PATIENCE)

    async def run_both() -> None:
        await asyncio.gather(
            database.write(increment_both, "a", "b"), database.write(increment_both, "b", "a")
        )

    asyncio.run(run_both())
    assert len(runs) > 2  # one of the two ran again
    assert database.read_now(
        lambda connection: connection.execute(select(label.c.created_at)).scalars().all()
    ) == [
        2,
        2,
    ]


def test_a_write_that_always_conflicts_raises_database_unavailable(database: Database) -> None:
    runs: list[int] = []

    def conflict(connection: Connection) -> None:
        runs.append(len(runs))
        connection.exec_driver_sql("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")

    with pytest.raises(DatabaseUnavailable, match="too busy"):
        database.write_now(conflict)
    assert runs == [0, 1, 2, 3, 4]


# --- A slow server ---


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
def test_a_timeout_raises_database_unavailable_and_the_next_write_works(
    database: Database, limit: str
) -> None:
    def wait_for_lock(connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL {limit} = '50ms'")
        connection.exec_driver_sql("LOCK TABLE label IN EXCLUSIVE MODE")

    def hold_lock(connection: Connection) -> None:
        connection.exec_driver_sql("LOCK TABLE label IN EXCLUSIVE MODE")
        for run in (database.read_now, database.write_now):
            with pytest.raises(DatabaseUnavailable, match="timeout"):
                run(wait_for_lock)

    database.write_now(hold_lock)
    assert DatabaseUnavailable.http == 503
    assert database.write_now(add, "a") == "a"


def _list_sessions(connection: Connection) -> list[object]:
    return list(connection.exec_driver_sql("SELECT pid FROM pg_stat_activity").scalars())


def test_an_idle_transaction_is_ended_and_raises_unavailable(database: Database) -> None:
    def idle_in_transaction(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '20ms'")
        own_pid = scalar(connection, "SELECT pg_backend_pid()")
        while own_pid in database.read_now(_list_sessions):
            pass
        connection.exec_driver_sql("SELECT 1")

    with pytest.raises(Unavailable):
        database.write_now(idle_in_transaction)
    assert database.read_now(texts) == []


def test_a_read_only_server_is_unavailable_for_writes(database: Database) -> None:
    """Simulate a former primary server, which is read-only after a failover."""

    def write(connection: Connection) -> None:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        add(connection, "a")

    with pytest.raises(DatabaseUnavailable):
        database.write_now(write)


# --- Advisory lock ---


def test_a_start_waits_until_the_server_releases_the_lock_of_a_killed_process(
    database: Database,
) -> None:
    with database.hold_advisory_lock(_LOCK) as is_acquired:
        assert is_acquired
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(_acquire_lock, database)
            eventually(lambda: database.read_now(scalar, _IS_TRIED) or waiting.done())
            assert not waiting.done()
            assert database.write_now(scalar, _KILL)
            assert waiting.result(PATIENCE)


def _acquire_lock(database: Database) -> bool:
    with database.hold_advisory_lock(_LOCK) as is_acquired:
        return is_acquired
