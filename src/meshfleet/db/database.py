"""Database connections: worker threads, transactions, retries and advisory locks.

Stores are plain functions that take a `Connection`. Stores run in threads, so that the event loop never
blocks. Readers run in parallel. SQLite has a single writer thread, so writers of this process never wait for
a lock held by another writer.
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

    from meshfleet.errors.readiness import ReadinessProblem

Params = ParamSpec("Params")
Result = TypeVar("Result")

_DATABASE_FAILURES: Final = (OperationalError, InternalError, PoolTimeout)
"""Exceptions that mean that the database failed, not that a query is wrong.

A write to a server that has become read-only after a failover raises one of these exceptions too.
"""

MAX_ATTEMPTS: Final = 5
"""Maximum attempts to run a transaction that conflicts with another transaction."""

_CONFLICT_SQLSTATES: Final = {"40001", "40P01", "23503"}
"""SQLSTATEs for a serialization failure, a deadlock, and a foreign key to a concurrently deleted row."""

_UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
_MESSAGE_FIELD: Final = ord("M")
"""Field code of the error message in a PostgreSQL error."""

_LOCK_WAIT_SECONDS: Final = 2.0
"""Maximum seconds to wait for an advisory lock, which a killed process may still hold.

The server usually notices the closed connection and releases the lock within milliseconds.
"""

_LOCK_POLL_SECONDS: Final = 0.05
"""Seconds between two attempts to acquire an advisory lock."""


class WriteConflict(Exception):
    """Raised in a transaction to run the transaction again, after another process has changed its data."""


class Engines(NamedTuple):
    """SQLAlchemy engines for reading and for writing, and the sizes of their thread pools."""

    readers: Engine
    writers: Engine
    reader_threads: int
    writer_threads: int


class Database:
    """Open database. `read` and `write` run a function in a transaction, and return its result."""

    def __init__(self, engines: Engines, *, max_attempts: int = MAX_ATTEMPTS) -> None:
        """Create the thread pools. A transaction with conflicts runs up to `max_attempts` times."""
        self._engines = engines
        self._max_attempts = max_attempts
        self._readers = ThreadPoolExecutor(engines.reader_threads, "db.read")
        self._writers = ThreadPoolExecutor(engines.writer_threads, "db.write")
        self.write_problem: ReadinessProblem | None = None
        """Why the last write failed, such as a full disk; None once a later write has stored a change."""

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
        """Run a function that only reads, in a thread. All its queries see one snapshot of the database."""
        task = partial(self.read_now, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._readers, task)

    async def write(
        self,
        work: Callable[Concatenate[Connection, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """Run a function in a thread, in a transaction that is committed before this method returns.

        The function runs again after a conflict. If the caller is canceled, the function still runs to its
        end, and the transaction is committed.
        """
        task = partial(self.write_now, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._writers, task)

    def read_now(
        self,
        work: Callable[Concatenate[Connection, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """Run a function like `read`, but in the calling thread, for programs without an event loop."""
        try:
            with self._engines.readers.connect() as connection:
                return work(connection, *args, **kwargs)
        except _DATABASE_FAILURES as exc:
            raise _to_unavailable_error(exc) from exc

    def write_now(
        self,
        work: Callable[Concatenate[Connection, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """Run a function like `write`, but in the calling thread, for programs without an event loop."""
        for attempts_left in reversed(range(self._max_attempts)):
            try:
                with self._begin_write() as connection:
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
                error = _to_unavailable_error(exc)
                self.write_problem = error.readiness_problem
                raise error from exc
        raise AssertionError("unreachable: the last attempt returns or raises")

    @contextmanager
    def _begin_write(self) -> Iterator[Connection]:
        """Run a transaction in a `with` block. Clear `write_problem` if the transaction stores a change.

        A transaction that changes nothing needs no disk space, so it succeeds even if the disk is full.
        """
        is_failing, has_changed = self.write_problem is not None, False
        with self._engines.writers.begin() as connection:
            mark = _mark_changes(connection) if is_failing else None
            yield connection
            if is_failing:
                has_changed = _mark_changes(connection) != mark
        if has_changed:
            self.write_problem = None

    @contextmanager
    def hold_advisory_lock(self, lock: int) -> Iterator[bool]:
        """Hold a PostgreSQL advisory lock during the `with` block. Yield False if another process holds it.

        The lock has its own connection. The server releases the lock when the connection ends, which may be a
        little after its process was killed. So this method tries for two seconds to acquire the lock. On
        SQLite, always yield True: only one service uses the file.
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
                raise _to_unavailable_error(exc) from exc
            yield is_acquired

    def close(self) -> None:
        """Wait for running reads and writes, then close all connections."""
        self._writers.shutdown()
        self._readers.shutdown()
        self._engines.readers.dispose()
        self._engines.writers.dispose()


def _mark_changes(connection: Connection) -> object:
    """Return a value that is different after the current transaction has changed something."""
    if connection.dialect.name == "sqlite":
        driver_connection: Any = connection.connection.driver_connection
        return driver_connection.total_changes
    return connection.exec_driver_sql("SELECT txid_current_if_assigned()").scalar()


def _acquire_lock(connection: Connection, lock: int) -> bool:
    """Try for `_LOCK_WAIT_SECONDS` to acquire an advisory lock. Return whether the lock was acquired."""
    deadline = time.monotonic() + _LOCK_WAIT_SECONDS
    while not connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({lock})").scalar():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOCK_POLL_SECONDS)
    return True


def _is_conflict(exc: Exception) -> bool:
    """Return whether a failed transaction may succeed if it runs again."""
    return (
        isinstance(exc, WriteConflict)
        or getattr(getattr(exc, "orig", None), "sqlstate", None) in _CONFLICT_SQLSTATES
    )


def is_duplicate_error(exc: IntegrityError) -> bool:
    """Return whether the database refused a row because its key exists already.

    Return False if a concurrent transaction deleted the row to which a foreign key points.
    """
    return not _is_conflict(exc)


def _to_unavailable_error(exc: Exception) -> DatabaseUnavailable:
    """Convert a database failure to `DatabaseUnavailable`, with the driver's message and a readiness code."""
    return DatabaseUnavailable(
        f"the database is unavailable: {describe_driver_error(exc)}", classify_error(exc)
    )


def describe_driver_error(exc: Exception) -> str:
    """Return the message of a database error on one line.

    Omit the SQL statement and its values, which may contain secrets.
    """
    reason = exc.orig if isinstance(exc, DBAPIError) else exc
    diagnosis = getattr(reason, "diag", None)  # PostgreSQL only; str() would append the statement
    text = getattr(diagnosis, "message_primary", None) or str(reason)
    if _UNREADABLE in text and hasattr(reason, "pgresult"):
        text = _decode_server_message(reason) or text.replace(_UNREADABLE, "?")
    return " ".join(text.split())


def _decode_server_message(error: Any) -> str | None:
    """Return the message of a PostgreSQL error with invalid UTF-8 bytes escaped; None if it has no message.

    Invalid bytes occur because the server truncates long names to 63 bytes, even within a character, and
    sends messages before the login in an unknown encoding. psycopg would replace such bytes by U+FFFD.
    """
    raw = None
    if error.pgresult is not None:
        raw = error.pgresult.error_field(_MESSAGE_FIELD)
    elif error.pgconn is not None:
        raw = error.pgconn.error_message
    return str(raw, "utf-8", "backslashreplace") if raw else None
