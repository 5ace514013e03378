"""A PostgreSQL server that is restarted, gone, or does not let us in: errors of ours, and nothing private."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeVar

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from meshfleet.db import open_database
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

    from meshfleet.db import Database
    from tests.db.conftest import DatabaseLocation

Result = TypeVar("Result")

PASSWORD = "hush-hush"  # noqa: S105 # of nobody
_PRIVATE = "nobody's business"


@pytest.fixture
def database(postgresql_database: Database) -> Iterator[Database]:
    yield postgresql_database
    postgresql_database.close()


def refusal(address: str, folder: Path) -> FleetError:
    """The error of ours with which a server is refused, which does not hold the password."""
    with pytest.raises(FleetError) as raised:
        open_database(address, folder)
    assert PASSWORD not in "".join(traceback.format_exception(raised.value))
    return raised.value


# --- What a server says ---


def test_a_name_that_the_server_cuts_within_a_character_is_told_without_broken_characters(
    postgresql_server: str, tmp_path: Path
) -> None:
    login, _, place = postgresql_server.rpartition("postgres@")
    address = f"{login}postgres:{PASSWORD}@{place}/{'ä' * 40}"  # the server takes 63 bytes of it
    told = str(refusal(address, tmp_path))
    assert "\N{REPLACEMENT CHARACTER}" not in told
    assert r'"' + "ä" * 31 + r'\xc3"' in told
    assert "\n" not in told


def test_a_database_without_an_encoding_is_used_as_utf_8(postgresql_server: str, tmp_path: Path) -> None:
    """Its texts would come as bytes, and what it says in characters that nobody can read."""
    with psycopg.connect(f"{postgresql_server}/postgres", autocommit=True) as server:
        server.execute("CREATE DATABASE plain ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0")
    address = f"{postgresql_server}/plain"
    with closing(open_database(address, tmp_path)) as database:
        database.write_now(add, "Kühlraum 東京")
        assert database.read_now(texts) == ["Kühlraum 東京"]
        with pytest.raises(DBAPIError) as raised:
            database.write_now(scalar, 'DROP TABLE "größe"')
        assert describe_driver_error(raised.value) == 'table "größe" does not exist'


# --- A server that is not there all the time ---


async def _use_all(database: Database) -> None:
    await asyncio.gather(*(database.read(scalar, "SELECT pg_sleep(0.05)") for _ in range(8)))


def test_sessions_that_were_ended_are_replaced_unnoticed(database: Database) -> None:
    asyncio.run(_use_all(database))
    ended = "SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity"
    ended += " WHERE datname = current_database() AND pid != pg_backend_pid()"
    assert database.read_now(scalar, ended) == 7
    asyncio.run(_use_all(database))
    assert database.write_now(add, "a") == "a"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server that a test may break."""
    with postgresql() as (host, port):
        yield f"postgresql://postgres:{PASSWORD}@{host}:{port}/postgres", tmp_path


def test_a_server_that_crashed_and_came_back_is_used_again(own_server: tuple[str, Path]) -> None:
    with closing(_patiently_opened(*own_server)) as database:
        database.write_now(add, "a")
        pid = database.read_now(scalar, "SELECT pg_backend_pid()")
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)  # all other sessions end, and the server recovers
        eventually(lambda: _if_there(lambda: database.write_now(add, "b")))
        assert database.read_now(texts) == ["a", "b"]


def _patiently_opened(address: str, folder: Path) -> Database:
    """A server that listens may still be starting up."""
    return eventually(lambda: _if_there(lambda: open_database(address, folder)))


def _if_there(work: Callable[[], Result]) -> Result | None:
    """Do something with a server; None: it is not there, or not yet."""
    with suppress(DatabaseUnavailable):
        return work()
    return None


def test_a_server_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    with postgresql() as (host, port):
        address = f"postgresql://postgres:{PASSWORD}@{host}:{port}/postgres"
        database = _patiently_opened(address, tmp_path)
        server = database.read_now(
            scalar, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int"
        )
        assert isinstance(server, int)
        os.kill(server, signal.SIGQUIT)  # it does not wait for our sessions
    with closing(database):
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable, match="is unavailable") as raised:
                database.write_now(add, _PRIVATE)
            shown = "".join(traceback.format_exception(raised.value))
            assert PASSWORD not in shown
            assert _PRIVATE not in shown
            with pytest.raises(DatabaseUnavailable):
                database.read_now(texts)
    assert isinstance(refusal(address, tmp_path), DatabaseUnavailable)


# --- A server that does not let us in ---


def test_a_wrong_password_is_told_without_it(own_server: tuple[str, Path]) -> None:
    address, folder = own_server
    _patiently_opened(*own_server).close()
    with psycopg.connect(address, autocommit=True) as server:
        server.execute("ALTER ROLE postgres PASSWORD 'another'")
        lines = b"SELECT 'host all all all scram-sha-256'"
        path = server.execute("SHOW hba_file").fetchone()
        assert path is not None
        server.execute(b"COPY (%b) TO '%b'" % (lines, path[0].encode()))
        server.execute("SELECT pg_reload_conf()")
    eventually(lambda: not _lets_in(address), "that the server reads it")
    assert "password authentication failed" in str(refusal(address, folder))


def _lets_in(address: str) -> bool:
    try:
        psycopg.connect(address).close()
    except psycopg.OperationalError:
        return False
    return True


def test_an_unknown_host_a_shut_port_and_a_missing_database_are_told(
    postgresql_server: str, tmp_path: Path
) -> None:
    server = postgresql_server.replace("postgres@", f"postgres:{PASSWORD}@")
    for address, word in (
        (f"postgresql://u:{PASSWORD}@nowhere.invalid/x", "nowhere.invalid"),
        (f"postgresql://u:{PASSWORD}@127.0.0.1:{free_port()}/x", "refused"),
        (f"{server}/missing", '"missing" does not exist'),
        (f"{server}/postgres?sslmode=require", "SSL"),
    ):
        error = refusal(address, tmp_path)
        assert isinstance(error, DatabaseUnavailable)
        assert word in str(error)


@each_row("tail", ["?port=abc", "?no-such-option=1", "?plugin=x", "?sslmode=bogus"])
def test_an_address_with_nonsense_in_it_is_an_error_of_ours(
    postgresql_server: str, tmp_path: Path, tail: str
) -> None:
    server = postgresql_server.replace("postgres@", f"postgres:{PASSWORD}@")
    refusal(f"{server}/postgres{tail}", tmp_path)


def test_an_address_that_is_none_is_a_wrong_setting() -> None:
    with pytest.raises(WrongSettings) as raised:
        on_server.create_postgresql_engines(f"postgresql//u:{PASSWORD}@host")
    assert PASSWORD not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(("grant", "word"), [(False, "schema public"), (True, "pg_trgm")])
def test_missing_permissions_are_told_in_plain_words(
    postgresql_place: DatabaseLocation,
    grant: bool,  # noqa: FBT001 # a parameter
    word: str,
) -> None:
    role = f"guest_{postgresql_place.address.rpartition('_')[2]}_{word[:2]}"
    with psycopg.connect(postgresql_place.address, autocommit=True) as server:
        server.execute(f"CREATE ROLE {role} LOGIN".encode())
        if grant:
            server.execute(f"GRANT ALL ON SCHEMA public TO {role}".encode())
    address = postgresql_place.address.replace("postgres@", f"{role}:{PASSWORD}@")
    error = refusal(address, postgresql_place.folder)
    assert isinstance(error, UnusableDatabase)
    assert word in str(error)
    assert "CREATE TABLE" not in str(error)
