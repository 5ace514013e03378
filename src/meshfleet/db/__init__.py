"""The database: SQLite in the data directory, or a PostgreSQL server.

    tables ── what there is          database ── where queries run
    schema ── migrations                └ sqlite, postgresql

Stores are functions on a `Connection`; `Database.read` and `Database.write` run them in threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.db import postgresql, sqlite
from meshfleet.db.database import Database
from meshfleet.db.schema import migrate

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Database", "open_database"]


def open_database(address: str, folder: Path) -> Database:
    """Open `sqlite`, which is a file in that folder, or a `postgresql://` server, and bring it up to date."""
    engines = (
        sqlite.engines(folder / "meshfleet.sqlite") if address == "sqlite" else postgresql.engines(address)
    )
    database = Database(engines)
    try:
        database.write_now(migrate)
    except BaseException:
        database.close()
        raise
    return database
