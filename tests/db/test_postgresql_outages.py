"""A PostgreSQL server that restarts, is down or refuses access raises our errors without secrets."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from contextlib import closing, suppress
from threading import Barrier
from typing import TYPE_CHECKING, TypeVar

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from meshfleet.db import Database, open_database
from meshfleet.db import postgresql as on_server
from meshfleet.db.database import describe_driver_error
from meshfleet.errors import DatabaseUnavailable, FleetError
from meshfleet.errors.startup import UnusableDatabase, WrongSettings
from tests.db.test_database import add, texts
from tests.db.test_postgresql import scalar
from tests.eventually import eventually
from tests.row_tables import each_row
from tests.servers import free_port, postgresql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from tests.db.conftest import DatabaseLocation

Result = TypeVar("Result")

PASSWORD = "hush-hush"  # noqa: S105 # not a real password
_PRIVATE = "private value"


@pytest.fixture
def database(postgresql_database: Database) -> Database:
    return postgresql_database


def refuse_to_open(address: str, folder: Path) -> FleetError:
    """Return the error with which a server is refused; it does not contain the password."""
    with pytest.raises(FleetError) as raised:
        open_database(address, folder)
    assert PASSWORD not in "".join(traceback.format_exception(raised.value))
    return raised.value


# --- Messages of the server ---


def test_a_name_that_the_server_truncates_within_a_character_is_shown_escaped(
    postgresql_server: str, tmp_path: Path
) -> None:
    login, _, host = postgresql_server.rpartition("postgres@")
    address = f"{login}postgres:{PASSWORD}@{host}/{'ä' * 40}"  # the server truncates it to 63 bytes
    message = str(refuse_to_open(address, tmp_path))
    assert "\N{REPLACEMENT CHARACTER}" not in message
    assert r'"' + "ä" * 31 + r'\xc3"' in message
    assert "\n" not in message


def test_a_database_without_an_encoding_is_used_as_utf_8(postgresql_server: str, tmp_path: Path) -> None:
    """Check `client_encoding`: without it texts would arrive as bytes, and messages unreadable."""
    with psycopg.connect(f"{postgresql_server}/postgres", autocommit=True) as server:
        server.execute("CREATE DATABASE plain ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0")
    address = f"{postgresql_server}/plain"
    with closing(open_database(address, tmp_path)) as database:
        database.write_now(add, "Kühlraum 東京")
        assert database.read_now(texts) == ["Kühlraum 東京"]
        with pytest.raises(DBAPIError) as raised:
            database.write_now(scalar, 'DROP TABLE "größe"')
        assert describe_driver_error(raised.value) == 'table "größe" does not exist'


# --- Outages ---


async def _use_all_connections(database: Database) -> None:
    """Run eight reads, none of which ends before all have a connection."""
    all_connected = Barrier(8)

    def wait_for_others(connection: Connection) -> None:
        scalar(connection, "SELECT 1")
        all_connected.wait(timeout=60)

    await asyncio.gather(*(database.read(wait_for_others) for _ in range(8)))


def test_terminated_sessions_are_replaced_without_an_error(database: Database) -> None:
    asyncio.run(_use_all_connections(database))
    terminate = "SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity"
    terminate += " WHERE datname = current_database() AND pid != pg_backend_pid()"
    assert database.read_now(scalar, terminate) == 7
    asyncio.run(_use_all_connections(database))
    assert database.write_now(add, "a") == "a"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Start a server that a test may break."""
    with postgresql() as (host, port):
        yield f"postgresql://postgres:{PASSWORD}@{host}:{port}/postgres", tmp_path


def test_a_server_is_used_again_after_a_crash(own_server: tuple[str, Path]) -> None:
    with closing(_open_when_ready(*own_server)) as database:
        database.write_now(add, "a")
        pid = database.read_now(scalar, "SELECT pg_backend_pid()")
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)  # the server ends all other sessions and recovers
        eventually(lambda: _try_call(lambda: database.write_now(add, "b")))
        assert database.read_now(texts) == ["a", "b"]


def _open_when_ready(address: str, folder: Path) -> Database:
    """Open a database; a server that listens may still be starting."""
    return eventually(lambda: _try_call(lambda: open_database(address, folder)))


def _try_call(work: Callable[[], Result]) -> Result | None:
    """Call a function; return None if the server is unavailable."""
    with suppress(DatabaseUnavailable):
        return work()
    return None


def test_a_stopped_server_is_unavailable(tmp_path: Path) -> None:
    with postgresql() as (host, port):
        address = f"postgresql://postgres:{PASSWORD}@{host}:{port}/postgres"
        database = _open_when_ready(address, tmp_path)
        server = database.read_now(
            scalar, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int"
        )
        assert isinstance(server, int)
        os.kill(server, signal.SIGQUIT)  # immediate shutdown: it does not wait for sessions
    with closing(database):
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable, match="is unavailable") as raised:
                database.write_now(add, _PRIVATE)
            shown = "".join(traceback.format_exception(raised.value))
            assert PASSWORD not in shown
            assert _PRIVATE not in shown
            with pytest.raises(DatabaseUnavailable):
                database.read_now(texts)
    assert isinstance(refuse_to_open(address, tmp_path), DatabaseUnavailable)


# --- Refused access ---


def test_a_wrong_password_is_reported_without_showing_it(own_server: tuple[str, Path]) -> None:
    address, folder = own_server
    _open_when_ready(*own_server).close()
    with psycopg.connect(address, autocommit=True) as server:
        server.execute("ALTER ROLE postgres PASSWORD 'another'")
        lines = b"SELECT 'host all all all scram-sha-256'"
        path = server.execute("SHOW hba_file").fetchone()
        assert path is not None
        server.execute(b"COPY (%b) TO '%b'" % (lines, path[0].encode()))
        server.execute("SELECT pg_reload_conf()")
    eventually(lambda: not _can_connect(address), "the server to load the configuration")
    assert "password authentication failed" in str(refuse_to_open(address, folder))


def _can_connect(address: str) -> bool:
    try:
        psycopg.connect(address).close()
    except psycopg.OperationalError:
        return False
    return True


def test_an_unknown_host_a_closed_port_and_a_missing_database_are_reported(
    postgresql_server: str, tmp_path: Path
) -> None:
    server = postgresql_server.replace("postgres@", f"postgres:{PASSWORD}@")
    for address, expected_text in (
        (f"postgresql://u:{PASSWORD}@nowhere.invalid/x", "nowhere.invalid"),
        (f"postgresql://u:{PASSWORD}@127.0.0.1:{free_port()}/x", "refused"),
        (f"{server}/missing", '"missing" does not exist'),
        (f"{server}/postgres?sslmode=require", "SSL"),
    ):
        error = refuse_to_open(address, tmp_path)
        assert isinstance(error, DatabaseUnavailable)
        assert expected_text in str(error)


@each_row("query", ["?port=abc", "?no-such-option=1", "?plugin=x", "?sslmode=bogus"])
def test_an_address_with_invalid_options_raises_our_error(
    postgresql_server: str, tmp_path: Path, query: str
) -> None:
    server = postgresql_server.replace("postgres@", f"postgres:{PASSWORD}@")
    refuse_to_open(f"{server}/postgres{query}", tmp_path)


def test_an_invalid_address_raises_wrong_settings() -> None:
    with pytest.raises(WrongSettings) as raised:
        on_server.create_postgresql_engines(f"postgresql//u:{PASSWORD}@host")
    assert PASSWORD not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(("grant", "expected_text"), [(False, "schema public"), (True, "pg_trgm")])
def test_missing_permissions_are_reported_in_plain_words(
    postgresql_location: DatabaseLocation,
    grant: bool,  # noqa: FBT001 # a parameter
    expected_text: str,
) -> None:
    role = f"guest_{postgresql_location.address.rpartition('_')[2]}_{expected_text[:2]}"
    with psycopg.connect(postgresql_location.address, autocommit=True) as server:
        server.execute(f"CREATE ROLE {role} LOGIN".encode())
        if grant:
            server.execute(f"GRANT ALL ON SCHEMA public TO {role}".encode())
    address = postgresql_location.address.replace("postgres@", f"{role}:{PASSWORD}@")
    error = refuse_to_open(address, postgresql_location.folder)
    assert isinstance(error, UnusableDatabase)
    assert expected_text in str(error)
    assert "CREATE TABLE" not in str(error)
