"""Database connections: worker threads, transactions, retries and advisory locks.

Stores are plain functions that take a `Connection`. They run in threads, so that the event loop never blocks:
readers in parallel, and on SQLite a single writer, which never waits for another writer of this process.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError, IntegrityError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from meshfleet.db.driver_errors import classify_error
from meshfleet.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine

Params = ParamSpec("Params")
Result = TypeVar("Result")

_DATABASE_FAILURES: Final = (OperationalError, InternalError, PoolTimeout)
"""Failures of the database, not of a query.

They include writes to a server that has become read-only after a failover.
"""

MAX_ATTEMPTS: Final = 5
"""Attempts for a transaction that PostgreSQL aborts because of a conflict with another one."""

_CONFLICT_SQLSTATES: Final = {"40001", "40P01", "23503"}
"""Serialization failure, deadlock, and a foreign key to a row that was deleted concurrently."""

_UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
_MESSAGE_FIELD: Final = ord("M")
"""Field code of the message text in a PostgreSQL error."""

_LOCK_WAIT_SECONDS: Final = 2.0
"""Seconds to wait for a lock held by a killed process.

The server usually notices the closed connection and releases the lock within milliseconds.
"""

_LOCK_POLL_SECONDS: Final = 0.05
"""Seconds between two attempts to acquire a lock."""


class WriteConflict(Exception):
    """Signal that another process wrote the same data: the transaction runs again."""


class Engines(NamedTuple):
    """SQLAlchemy engines for reading and for writing, and the sizes of their thread pools."""

    readers: Engine
    writers: Engine
    reader_threads: int
    writer_threads: int


class Database:
    """Open database. `read` and `write` run a function in a transaction and return its result."""

    def __init__(self, engines: Engines, *, max_attempts: int = MAX_ATTEMPTS) -> None:
        """Create the thread pools. `max_attempts` limits how often a conflicting transaction runs."""
        self._engines = engines
        self._max_attempts = max_attempts
        self._readers = ThreadPoolExecutor(engines.reader_threads, "db.read")
        self._writers = ThreadPoolExecutor(engines.writer_threads, "db.write")

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is SQLite; otherwise it is PostgreSQL."""
        return self._engines.writers.dialect.name == "sqlite"

    async def read(
        self,
        work: Callable[Concatenate[Connection, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """Run a function that only reads; it sees one consistent snapshot of the database."""
        task = partial(self.read_now, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._readers, task)

    async def write(
        self,
        work: Callable[Concatenate[Connection, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """Run a function in a transaction, which is committed as a whole before this returns.

        The function may run more than once. Canceling the caller does not stop it: it may still be committed.
        """
        task = partial(self.write_now, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._writers, task)

    def read_now(
        self,
        work: Callable[Concatenate[Connection, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """Run `read` in the calling thread, for programs without an event loop."""
        try:
            with self._engines.readers.connect() as connection:
                return work(connection, *args, **kwargs)
        except _DATABASE_FAILURES as exc:
            raise _unavailable(exc) from exc

    def write_now(
        self,
        work: Callable[Concatenate[Connection, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """Run `write` in the calling thread, for programs without an event loop."""
        for attempts_left in reversed(range(self._max_attempts)):
            try:
                with self._engines.writers.begin() as connection:
                    return work(connection, *args, **kwargs)
            except (IntegrityError, WriteConflict, *_DATABASE_FAILURES) as exc:
                if attempts_left and _is_conflict(exc):
                    continue
                if isinstance(exc, IntegrityError):
                    raise
                if _is_conflict(exc):
                    raise DatabaseUnavailable(
                        "the database is too busy: the transaction kept conflicting with others"
                    ) from exc
                raise _unavailable(exc) from exc
        raise AssertionError("unreachable: the last attempt returns or raises")

    @contextmanager
    def hold_advisory_lock(self, lock: int) -> Iterator[bool]:
        """Hold a PostgreSQL advisory lock while the block runs. Yield False if another process holds it.

        On SQLite it always yields True: the file belongs to one service. The lock lasts as long as a
        dedicated connection. The lock of a killed process may outlive it for a moment, so acquiring is
        retried.
        """
        if self.is_sqlite:
            yield True
            return
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(self._engines.writers.connect())
                connection.execution_options(isolation_level="AUTOCOMMIT")
                connection.detach()
                is_acquired = _acquire_lock(connection, lock)
            except _DATABASE_FAILURES as exc:
                raise _unavailable(exc) from exc
            yield is_acquired

    def close(self) -> None:
        """Wait for running work, then close all connections."""
        self._writers.shutdown()
        self._readers.shutdown()
        self._engines.readers.dispose()
        self._engines.writers.dispose()


def _acquire_lock(connection: Connection, lock: int) -> bool:
    deadline = time.monotonic() + _LOCK_WAIT_SECONDS
    while not connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({lock})").scalar():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOCK_POLL_SECONDS)
    return True


def _is_conflict(exc: Exception) -> bool:
    """Return whether the transaction may succeed if it runs again."""
    return (
        isinstance(exc, WriteConflict)
        or getattr(getattr(exc, "orig", None), "sqlstate", None) in _CONFLICT_SQLSTATES
    )


def is_duplicate_error(exc: IntegrityError) -> bool:
    """Return whether a row was refused because its key exists, not because of a concurrent transaction."""
    return not _is_conflict(exc)


def _unavailable(exc: Exception) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"the database is unavailable: {describe_driver_error(exc)}", classify_error(exc)
    )


def describe_driver_error(exc: Exception) -> str:
    """Return the driver's message on one line, without the statement and its values, which may be secret."""
    reason = exc.orig if isinstance(exc, DBAPIError) else exc
    diagnosis = getattr(reason, "diag", None)  # PostgreSQL only; str() would append the statement
    text = getattr(diagnosis, "message_primary", None) or str(reason)
    if _UNREADABLE in text and hasattr(reason, "pgresult"):
        text = _decode_server_message(reason) or text.replace(_UNREADABLE, "?")
    return " ".join(text.split())


def _decode_server_message(error: Any) -> str | None:
    """Return a PostgreSQL error message with invalid UTF-8 bytes escaped, or None if it has no raw message.

    A server truncates long names to 63 bytes, even within a character, and before the login it sends messages
    in an unknown encoding. psycopg replaces every invalid byte by the same character.
    """
    raw = None
    if error.pgresult is not None:
        raw = error.pgresult.error_field(_MESSAGE_FIELD)
    elif error.pgconn is not None:
        raw = error.pgconn.error_message
    return str(raw, "utf-8", "backslashreplace") if raw else None
