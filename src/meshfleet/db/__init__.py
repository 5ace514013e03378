"""The database: SQLite in the data directory, or a PostgreSQL server.

Stores are functions on a `Connection`; `Database.read` and `Database.write` run them in threads, one
transaction each.
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

__all__ = ["Database", "connect_database", "explain_driver_errors", "open_database", "upgrade_database"]


def open_database(address: str, folder: Path, *, stop: Event | None = None) -> Database:
    """Open `sqlite`, which is a file in that folder, or a `postgresql://` server, and bring it up to date.

    Who waits for another program that does the same gives up when `stop` is set.
    """
    database = connect_database(address, folder)
    try:
        upgrade_database(database, stop or Event())
    except BaseException:
        database.close()
        raise
    return database


def connect_database(address: str, folder: Path) -> Database:
    """Prepare connections to a database without changing it; a server is not asked yet."""
    return Database(
        sqlite.create_sqlite_engines(folder / "meshfleet.sqlite")
        if address == "sqlite"
        else postgresql.create_postgresql_engines(address)
    )


def upgrade_database(database: Database, stop: Event) -> None:
    """Bring a database up to date; wait while another program does that, until `stop` is set."""
    with explain_driver_errors():
        database.write_now(migrate_schema, stop)


@contextmanager
def explain_driver_errors() -> Iterator[None]:
    """Turn errors of the driver into `UnusableDatabase` with its words."""
    try:
        yield
    except DBAPIError as exc:
        raise UnusableDatabase(f"the database cannot be used: {describe_driver_error(exc)}") from exc
    except AssertionError as exc:  # what SQLAlchemy says when it cannot read the version of a server
        raise UnusableDatabase("PostgreSQL 15 or newer is needed; this is another server") from exc
