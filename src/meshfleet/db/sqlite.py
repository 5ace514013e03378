"""SQLAlchemy engines for SQLite: one file, one writer, parallel readers."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event

from meshfleet.db.database import Engines
from meshfleet.errors.startup import UnusableDatabase

if TYPE_CHECKING:
    from pathlib import Path


_READERS: Final = 4

_PRAGMA_ATTEMPTS: Final = 100
"""Maximum attempts to set a pragma of a connection."""
_PRAGMA_RETRY_SECONDS: Final = 0.02
"""Seconds between two attempts to set a pragma."""

_PRAGMAS: Final = {
    "busy_timeout": 10_000,  # milliseconds; another process, such as a backup, may hold the lock
    "journal_mode": "WAL",
    "synchronous": "FULL",  # acknowledged data survives a power cut
    "wal_autocheckpoint": 8000,  # pages; a frequently changed page is written back once for many changes
    "foreign_keys": "ON",
    "trusted_schema": "OFF",
    "cache_size": -262_144,  # KiB
    "mmap_size": 2**31,  # bytes; halves the time of random reads
    "temp_store": "MEMORY",
}


def create_sqlite_engines(path: Path) -> Engines:
    """Create the engines for an SQLite file. Create a missing file, readable only by its owner."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as exc:
        raise UnusableDatabase(f"{path} cannot be used: {exc.strerror}") from exc
    return Engines(
        readers=_create_engine(path, "BEGIN", size=_READERS),
        writers=_create_engine(path, "BEGIN IMMEDIATE", size=1),
        reader_threads=_READERS,
        writer_threads=1,
    )


def create_read_only_engine(path: Path) -> Engine:
    """Create an engine that reads an existing SQLite file and changes nothing, not even files beside it.

    If there is no write-ahead log, no process has the file open. Then the engine opens the file as immutable,
    or SQLite would create a write-ahead log to read the file.
    """
    options = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    uri = f"{path.absolute().as_uri()}?{options}"
    return create_engine("sqlite://", creator=lambda: sqlite3.connect(uri, uri=True), poolclass=NullPool)


def _create_engine(path: Path, begin: str, *, size: int) -> Engine:
    """Create an engine with `size` connections. `begin` is the SQL statement that begins a transaction."""
    url = URL.create("sqlite", database=str(path))
    engine = create_engine(
        url,
        pool_size=size,
        max_overflow=0,
        hide_parameters=True,  # they include hashes and secrets, which must not be logged
        connect_args={"check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def configure_connection(connection: Any, _record: object) -> None:
        # By default the driver begins transactions itself, but not before reads or schema changes.
        connection.isolation_level = None
        for name, value in _PRAGMAS.items():
            _set_pragma(connection, f"PRAGMA {name} = {value}")

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _set_pragma(connection: Any, pragma: str) -> None:
    """Run a PRAGMA statement, with retries.

    If two connections switch a new file to WAL at the same time, one of them fails at once despite
    `busy_timeout`.
    """
    for attempts_left in reversed(range(_PRAGMA_ATTEMPTS)):
        try:
            connection.execute(pragma)
        except sqlite3.OperationalError:
            if not attempts_left:
                raise
            time.sleep(_PRAGMA_RETRY_SECONDS)
        else:
            return
