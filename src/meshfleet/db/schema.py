"""The history of the schema: bringing a database to what this program needs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import inspect

from meshfleet.db.tables import metadata
from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.startup import UnusableDatabase

if TYPE_CHECKING:
    from threading import Event

    from sqlalchemy import Connection

_MIGRATION_LOCK: Final = 0x6D657368
"""Any number, as long as it is the same in all versions of this program."""

_LOCK_POLL_SECONDS: Final = 0.05
"""Seconds between two tries."""

_MIGRATIONS: Final = Path(__file__).parent / "migrations"

_OLDEST_POSTGRESQL: Final = 15
_OLDEST_SQLITE: Final = (3, 34)
"""The first that can search for parts of names."""


def migrate_schema(connection: Connection, stop: Event) -> None:
    """Bring a database up to date. Safe to do again, and for two programs at once: the second waits.

    Who waits gives up when `stop` is set. Runs in the transaction of `connection`: whatever fails leaves the
    database as it was.
    """
    _check_server_version(connection)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
        _wait_for_lock(connection, stop)
    if not is_schema_current(connection):
        _check_revision(connection)
        run_migrations(connection)


def run_migrations(connection: Connection, revision: str = "head") -> None:
    """Run the missing migrations up to this one. Alembic is loaded here, as a database is rarely old."""
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _wait_for_lock(connection: Connection, stop: Event) -> None:
    """Wait for our turn by asking again and again: a query that waits could not be stopped."""
    while not connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_MIGRATION_LOCK})").scalar():
        if stop.wait(_LOCK_POLL_SECONDS):
            raise DatabaseUnavailable("stopped while another program brings the database up to date")


def is_schema_current(connection: Connection) -> bool:
    """Whether a database is exactly what this program needs."""
    return _revision(connection) == _revisions()[-1]


def _revision(connection: Connection) -> str | None:
    """Return the newest migration that a database has; Alembic keeps it in a table of one row."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return found


@cache
def _revisions() -> tuple[str, ...]:
    """Return all migrations of this program, which are numbered: m0001_first.py is 0001."""
    return tuple(sorted(each.name[1:5] for each in (_MIGRATIONS / "versions").glob("m[0-9]*_*.py")))


def _check_server_version(connection: Connection) -> None:
    version = connection.dialect.server_version_info or ()
    if connection.dialect.name == "postgresql" and version < (_OLDEST_POSTGRESQL,):
        raise UnusableDatabase(f"PostgreSQL {_OLDEST_POSTGRESQL} or newer is needed; this is {version[0]}")
    if connection.dialect.name == "sqlite" and version < _OLDEST_SQLITE:
        raise UnusableDatabase("SQLite 3.34 or newer is needed")


def _check_revision(connection: Connection) -> None:
    current = _revision(connection)
    taken = sorted(set(inspect(connection).get_table_names()) & set(metadata.tables))
    if current is None and taken:
        raise UnusableDatabase(
            f"somebody else's tables are in the way: {', '.join(taken)}; give Meshfleet a database of its own"
        )
    if current is not None and current not in _revisions():
        raise UnusableDatabase(
            f"the database was used by a newer Meshfleet (its schema is {current}); "
            "run that version, or restore a backup made before"
        )
