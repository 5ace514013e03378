"""The history of the schema: bringing a database to what this program needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from meshfleet.errors import UnusableDatabase

if TYPE_CHECKING:
    from sqlalchemy import Connection

_LOCK: Final = 0x6D657368
"""Any number, as long as it is the same in all versions of this program."""

_OLDEST_POSTGRESQL: Final = 15
_OLDEST_SQLITE: Final = (3, 34)
"""The first that can search for parts of names."""


def migrate(connection: Connection) -> None:
    """Bring a database up to date. Safe to do again, and for two programs at once: the second waits.

    Runs in the transaction of `connection`: whatever fails leaves the database as it was.
    """
    _check_server(connection)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    config = _config()
    _check_known(connection, config)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def is_current(connection: Connection) -> bool:
    """Whether a database is exactly what this program needs."""
    script = ScriptDirectory.from_config(_config())
    return MigrationContext.configure(connection).get_current_revision() == script.get_current_head()


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
    if current is not None and current not in {
        each.revision for each in ScriptDirectory.from_config(config).walk_revisions()
    }:
        raise UnusableDatabase(
            f"the database was used by a newer Meshfleet (its schema is {current}); "
            "run that version, or restore a backup made before"
        )
