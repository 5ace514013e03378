"""Databases for tests: each test that asks for one gets a fresh one, on SQLite or on PostgreSQL."""

from __future__ import annotations

import atexit
import shutil
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
from tests.servers import postgresql, shared_folder

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

_numbers = count()


def pytest_configure() -> None:
    """Choose the folder that all workers share before they start."""
    shared_folder()


@pytest.fixture
def database(request: pytest.FixtureRequest, database_kind: str) -> Iterator[Database]:
    """An empty database of this version."""
    database: Database = request.getfixturevalue(f"{database_kind}_database")
    yield database
    database.close()


@pytest.fixture
def sqlite_database(sqlite_template: Path, tmp_path: Path) -> Database:
    path = tmp_path / "meshfleet.sqlite"
    shutil.copy(sqlite_template, path)
    return open_sqlite(path)


@pytest.fixture
def postgresql_database(postgresql_server: str) -> Iterator[Database]:
    name = f"test_{next(_numbers)}"
    yield Database(on_server.create_postgresql_engines(create_database(postgresql_server, name)))
    _execute(postgresql_server, f"DROP DATABASE {name}")


@pytest.fixture(scope="session")
def sqlite_template() -> Path:
    """A file with all tables, to be copied."""
    return sqlite_template_file()


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a database `migrated`, to be used as a template."""
    with postgresql() as (host, port):
        server = f"postgresql://postgres@{host}:{port}"
        _execute(server, "CREATE DATABASE migrated")
        open_database(f"{server}/migrated", tmp_path_factory.mktemp("unused")).close()
        yield server


@cache
def sqlite_template_file() -> Path:
    """Make a file with all tables, once: others are copies of it."""
    folder = Path(mkdtemp(prefix="meshfleet-sqlite-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    open_database("sqlite", folder).close()
    return folder / "meshfleet.sqlite"


def fresh_database(request: pytest.FixtureRequest, kind: str, *, tries: int = MAX_ATTEMPTS) -> Database:
    """Another empty database, for a fixture that may be set up more than once."""
    if kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        address = create_database(server, f"fresh_{next(_numbers)}")
        return Database(on_server.create_postgresql_engines(address), max_attempts=tries)
    path = request.getfixturevalue("tmp_path_factory").mktemp("fresh") / "meshfleet.sqlite"
    shutil.copy(request.getfixturevalue("sqlite_template"), path)
    return open_sqlite(path, tries=tries)


def open_sqlite(path: Path, *, tries: int = MAX_ATTEMPTS) -> Database:
    """Open a file that need not survive a power cut: to wait for the disk takes most of the time."""
    engines = in_file.create_sqlite_engines(path)

    @event.listens_for(engines.writers, "connect")
    def hurry(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    return Database(engines, max_attempts=tries)


def create_database(server: str, name: str) -> str:
    """Make a database with all tables, and tell its address."""
    # To copy files takes a tenth of the time that PostgreSQL needs to log every page of them.
    _execute(server, f"CREATE DATABASE {name} TEMPLATE migrated STRATEGY file_copy")
    return f"{server}/{name}"


def _execute(server: str, command: str) -> None:
    """Do what cannot be done in a transaction."""
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(command.encode())
