"""Databases for tests: each test that requests one gets a new one, on SQLite or PostgreSQL."""

from __future__ import annotations

import atexit
import shutil
from contextlib import closing
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import event

from meshfleet.db import Database, open_database
from meshfleet.db import postgresql as on_server
from meshfleet.db import sqlite as in_file
from meshfleet.db.database import MAX_ATTEMPTS
from tests.servers import postgresql, shared_directory

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

_numbers = count()


def pytest_configure() -> None:
    """Create the directory that all workers share before they start."""
    shared_directory()


@pytest.fixture
def database(request: pytest.FixtureRequest, database_kind: str) -> Database:
    """Return an empty database with the current schema."""
    database: Database = request.getfixturevalue(f"{database_kind}_database")
    return database


@pytest.fixture
def sqlite_database(sqlite_template: Path, tmp_path: Path) -> Iterator[Database]:
    path = tmp_path / "meshfleet.sqlite"
    shutil.copy(sqlite_template, path)
    with closing(open_sqlite(path)) as database:
        yield database


@pytest.fixture
def postgresql_database(postgresql_server: str) -> Iterator[Database]:
    name = f"test_{next(_numbers)}"
    address = create_database(postgresql_server, name)
    with closing(Database(on_server.create_postgresql_engines(address))) as database:
        yield database
    _execute(postgresql_server, f"DROP DATABASE {name}")


@pytest.fixture(scope="session")
def sqlite_template() -> Path:
    """Return a file with all tables, to be copied."""
    return sqlite_template_file()


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server with a database `migrated`, to be used as a template."""
    with postgresql() as (host, port):
        server = f"postgresql://postgres@{host}:{port}"
        _execute(server, "CREATE DATABASE migrated")
        open_database(f"{server}/migrated", tmp_path_factory.mktemp("unused")).close()
        yield server


@cache
def sqlite_template_file() -> Path:
    """Create a file with all tables once; the databases of tests are copies of it."""
    directory = Path(mkdtemp(prefix="meshfleet-sqlite-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    open_database("sqlite", directory).close()
    return directory / "meshfleet.sqlite"


def fresh_database(request: pytest.FixtureRequest, kind: str, *, tries: int = MAX_ATTEMPTS) -> Database:
    """Create another empty database, for a fixture that may be set up more than once.

    It is closed with the fixture or test that requests it.
    """
    if kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        address = create_database(server, f"fresh_{next(_numbers)}")
        database = Database(on_server.create_postgresql_engines(address), max_attempts=tries)
    else:
        path = request.getfixturevalue("tmp_path_factory").mktemp("fresh") / "meshfleet.sqlite"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        database = open_sqlite(path, tries=tries)
    request.addfinalizer(database.close)
    return database


def open_sqlite(path: Path, *, tries: int = MAX_ATTEMPTS) -> Database:
    """Open a file that need not survive a power failure: syncing takes most of the time."""
    engines = in_file.create_sqlite_engines(path)

    @event.listens_for(engines.writers, "connect")
    def disable_sync(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    return Database(engines, max_attempts=tries)


def create_database(server: str, name: str) -> str:
    """Create a database with all tables, and return its URL."""
    # Copying files takes a tenth of the time that PostgreSQL needs to log each of their pages.
    _execute(server, f"CREATE DATABASE {name} TEMPLATE migrated STRATEGY file_copy")
    return f"{server}/{name}"


def create_empty_database(server: str, name: str) -> str:
    """Create a database without tables, and return its URL."""
    _execute(server, f"CREATE DATABASE {name}")
    return f"{server}/{name}"


def _execute(server: str, command: str) -> None:
    """Execute a statement outside of a transaction, as CREATE DATABASE requires."""
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(command.encode())
