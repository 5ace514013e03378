"""The history of the schema: bringing a database to what this program needs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from meshfleet.db.tables import metadata
from meshfleet.errors import DatabaseUnavailable, UnusableDatabase

if TYPE_CHECKING:
    from threading import Event

    from sqlalchemy import Connection

_LOCK: Final = 0x6D657368
"""Any number, as long as it is the same in all versions of this program."""

_PAUSE: Final = 0.05
"""Seconds between two tries."""

_OLDEST_POSTGRESQL: Final = 15
_OLDEST_SQLITE: Final = (3, 34)
"""The first that can search for parts of names."""


def migrate(connection: Connection, stop: Event) -> None:
    """Bring a database up to date. Safe to do again, and for two programs at once: the second waits.

    Who waits gives up when `stop` is set. Runs in the transaction of `connection`: whatever fails leaves the
    database as it was.
    """
    _check_server(connection)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
        _wait_for_lock(connection, stop)
    config = _config()
    _check_known(connection, config)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _wait_for_lock(connection: Connection, stop: Event) -> None:
    """Wait for our turn by asking again and again: a query that waits could not be stopped."""
    while not connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_LOCK})").scalar():
        if stop.wait(_PAUSE):
            raise DatabaseUnavailable("stopped while another program brings the database up to date")


def is_current(connection: Connection) -> bool:
    """Whether a database is exactly what this program needs."""
    return MigrationContext.configure(connection).get_current_revision() == _newest()


@cache
def _newest() -> str | None:
    return ScriptDirectory.from_config(_config()).get_current_head()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _check_server(connection: Connection) -> None:
    version = connection.dialect.server_version_info or ()
    if connection.dialect.name == "postgresql" and version < (_OLDEST_POSTGRESQL,):
        raise UnusableDatabase(f"PostgreSQL {_OLDEST_POSTGRESQL} or newer is needed; this is {version[0]}")
    if connection.dialect.name == "sqlite" and version < _OLDEST_SQLITE:
        raise UnusableDatabase("SQLite 3.34 or newer is needed")


def _check_known(connection: Connection, config: Config) -> None:
    current = MigrationContext.configure(connection).get_current_revision()
    taken = sorted(set(inspect(connection).get_table_names()) & set(metadata.tables))
    if current is None and taken:
        raise UnusableDatabase(
            f"somebody else's tables are in the way: {', '.join(taken)}; give Meshfleet a database of its own"
        )
    if current is not None and current not in {
        each.revision for each in ScriptDirectory.from_config(config).walk_revisions()
    }:
        raise UnusableDatabase(
            f"the database was used by a newer Meshfleet (its schema is {current}); "
            "run that version, or restore a backup made before"
        )
