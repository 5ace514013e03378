"""The database: SQLite in the data directory, or a PostgreSQL server.

Stores are functions that take a `Connection`; `Database.read` and `Database.write` run such a function in a
thread, in one transaction.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from meshfleet.db import postgresql, sqlite
from meshfleet.db.database import Database, describe_driver_error
from meshfleet.db.schema import migrate_schema
from meshfleet.errors.startup import UnusableDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

__all__ = [
    "Database",
    "connect_database",
    "explain_driver_errors",
    "open_database",
    "open_read_only",
    "upgrade_database",
]


def open_database(address: str, folder: Path, *, stop: Event | None = None) -> Database:
    """Open the SQLite file in `folder` (address `sqlite`) or a `postgresql://` server; migrate the schema.

    Wait while another process migrates the database. Raise DatabaseUnavailable if `stop` is set while
    waiting.
    """
    database = connect_database(address, folder)
    try:
        upgrade_database(database, stop or Event())
    except BaseException:
        database.close()
        raise
    return database


def connect_database(address: str, folder: Path) -> Database:
    """Create the connection pools of a database.

    Do not connect to a server, and do not migrate the schema.
    """
    return Database(
        sqlite.create_sqlite_engines(folder / "meshfleet.sqlite")
        if address == "sqlite"
        else postgresql.create_postgresql_engines(address)
    )


def upgrade_database(database: Database, stop: Event) -> None:
    """Migrate the schema of a database. Wait while another process migrates it.

    Raise DatabaseUnavailable if `stop` is set while waiting.
    """
    with explain_driver_errors():
        database.write_now(migrate_schema, stop)


@contextmanager
def open_read_only(address: str, folder: Path) -> Iterator[Connection]:
    """Connect to an existing database of any schema, without changing it."""
    engine = (
        sqlite.create_read_only_engine(folder / "meshfleet.sqlite")
        if address == "sqlite"
        else postgresql.create_postgresql_engines(address).readers
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def explain_driver_errors() -> Iterator[None]:
    """Raise database driver errors of the `with` block as `UnusableDatabase` with the driver's message."""
    try:
        yield
    except DBAPIError as exc:
        raise UnusableDatabase(f"the database cannot be used: {describe_driver_error(exc)}") from exc
    except AssertionError as exc:  # SQLAlchemy raises it if it cannot parse the version of a server
        raise UnusableDatabase(
            "PostgreSQL 15 or newer is required; the server did not report a PostgreSQL version"
        ) from exc
