"""The database: SQLite in the data directory, or a PostgreSQL server.

    tables ── what there is          database ── where queries run
    schema ── migrations                └ sqlite, postgresql

Stores are functions on a `Connection`; `Database.read` and `Database.write` run them in threads.
"""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from meshfleet.db import postgresql, sqlite
from meshfleet.db.database import Database, words
from meshfleet.db.schema import migrate
from meshfleet.errors import UnusableDatabase

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Database", "open_database"]


def open_database(address: str, folder: Path, *, stop: Event | None = None) -> Database:
    """Open `sqlite`, which is a file in that folder, or a `postgresql://` server, and bring it up to date.

    Who waits for another program that does the same gives up when `stop` is set.
    """
    engines = (
        sqlite.engines(folder / "meshfleet.sqlite") if address == "sqlite" else postgresql.engines(address)
    )
    database = Database(engines)
    try:
        database.write_now(migrate, stop or Event())
    except DBAPIError as exc:
        database.close()
        raise UnusableDatabase(f"the database cannot be used: {words(exc)}") from exc
    except AssertionError as exc:  # what SQLAlchemy says when it cannot read the version of a server
        database.close()
        raise UnusableDatabase("PostgreSQL 15 or newer is needed; this is another server") from exc
    except BaseException:
        database.close()
        raise
    return database
