"""Schema migration: upgrades a database to the schema of this version of Meshfleet."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, inspect

from meshfleet.db.tables import metadata
from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.startup import UnusableDatabase

if TYPE_CHECKING:
    from threading import Event
    from types import ModuleType


_MIGRATION_LOCK: Final = 0x6D657368
"""Key of the advisory lock for migrations: any number, but equal in all versions of Meshfleet."""

_LOCK_POLL_SECONDS: Final = 0.05
"""Seconds between two attempts to acquire the migration lock."""

_MIGRATIONS: Final = Path(__file__).parent / "migrations"

OLDEST_POSTGRESQL: Final = 15
"""Oldest supported major version of PostgreSQL."""
_OLDEST_SQLITE: Final = (3, 34)
"""Oldest supported SQLite version: the first with the trigram index for substring searches."""


_MIGRATED_ROWS_PER_SECOND: Final = 50_000
"""Rows that a migration processes, measured with SQLite on two busy cores: 54,000 to 100,000."""


class MigrationEstimate(NamedTuple):
    """Estimated cost of a migration."""

    rows: int
    """Rows that the migration copies or adds to an index; 0 if it only adds tables and columns."""
    seconds: float


def migrate_schema(connection: Connection, stop: Event) -> None:
    """Upgrade the schema to this version of Meshfleet. Do nothing if the schema is current.

    Wait while another process migrates the database; raise DatabaseUnavailable if `stop` is set while
    waiting. All changes are in the transaction of `connection`: a failure leaves the database unchanged.
    """
    _check_server_version(connection)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
        _wait_for_lock(connection, stop)
    if not is_schema_current(connection):
        _check_revision(connection)
        run_migrations(connection)


def run_migrations(connection: Connection, revision: str = "head") -> None:
    """Run the missing schema migrations up to `revision`.

    Alembic is imported only here, as most starts need no migration.
    """
    from alembic import command  # noqa: PLC0415 # loaded only when needed
    from alembic.config import Config  # noqa: PLC0415 # loaded only when needed

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _wait_for_lock(connection: Connection, stop: Event) -> None:
    """Acquire the migration lock by polling, because a query that waits for the lock could not be stopped."""
    while not connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_MIGRATION_LOCK})").scalar():
        if stop.wait(_LOCK_POLL_SECONDS):
            raise DatabaseUnavailable("stopped while another process was migrating the database")


def is_schema_current(connection: Connection) -> bool:
    """Return whether the database has the newest schema revision of this version of Meshfleet."""
    return load_revision(connection) == list_revisions()[-1]


def load_revision(connection: Connection) -> str | None:
    """Return the schema revision that Alembic stored in the database; None if there is no schema yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return revision


@cache
def list_revisions() -> tuple[str, ...]:
    """Return all schema revisions of this version of Meshfleet, in order: m0001_first.py is 0001."""
    return tuple(sorted(file.name[1:5] for file in (_MIGRATIONS / "versions").glob("m[0-9]*_*.py")))


def load_migration_summary(revision: str) -> str:
    """Return the first line of the description of a migration."""
    return (_load_migration(revision).__doc__ or "").splitlines()[0]


def estimate_migration(connection: Connection, revision: str) -> MigrationEstimate:
    """Estimate how long a migration takes, from the rows that it copies or adds to an index."""
    table: str | None = getattr(_load_migration(revision), "REWRITTEN_TABLE", None)
    if table is None or not inspect(connection).has_table(table):
        return MigrationEstimate(0, 0)
    rows: int = connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()  # noqa: S608 # constant names
    return MigrationEstimate(rows, rows / _MIGRATED_ROWS_PER_SECOND)


def _load_migration(revision: str) -> ModuleType:
    (file,) = (_MIGRATIONS / "versions").glob(f"m{revision}_*.py")
    return import_module(f"meshfleet.db.migrations.versions.{file.stem}")


def _check_server_version(connection: Connection) -> None:
    """Raise `UnusableDatabase` if PostgreSQL or SQLite is too old."""
    version = connection.dialect.server_version_info or ()
    if connection.dialect.name == "postgresql" and version < (OLDEST_POSTGRESQL,):
        raise UnusableDatabase(
            f"PostgreSQL {OLDEST_POSTGRESQL} or newer is required; the server is {version[0]}"
        )
    if connection.dialect.name == "sqlite" and version < _OLDEST_SQLITE:
        raise UnusableDatabase("SQLite 3.34 or newer is required")


def _check_revision(connection: Connection) -> None:
    """Raise `UnusableDatabase` if the tables belong to another program or to a newer Meshfleet."""
    revision = load_revision(connection)
    existing_tables = sorted(set(inspect(connection).get_table_names()) & set(metadata.tables))
    if revision is None and existing_tables:
        raise UnusableDatabase(
            f"the database contains tables of another program: {', '.join(existing_tables)}; "
            "give Meshfleet a database of its own"
        )
    if revision is not None and revision not in list_revisions():
        raise UnusableDatabase(
            f"the database was used by a newer Meshfleet (its schema is {revision}); "
            "run that version, or restore a backup made before"
        )
