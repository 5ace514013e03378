"""The database: where queries run, and in which transaction.

Stores are plain functions that take a `Connection`. Here they run in threads, so that the event loop never
waits: readers side by side, and on SQLite one writer, who never waits for a lock.
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
"""Of the database, not of whoever asks. A server that only reads, since another took over, is among them."""

MAX_ATTEMPTS: Final = 5
"""For a transaction that PostgreSQL ends because two of them stood in each other's way."""

_CONFLICT_SQLSTATES: Final = {"40001", "40P01", "23503"}
"""Serialization failure, deadlock, and a row that went while another began to refer to it."""

_UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
_MESSAGE_FIELD: Final = ord("M")
"""The field of an error of PostgreSQL that says what is wrong."""

_LOCK_WAIT_SECONDS: Final = 2.0
"""Seconds in which a server notices that a program was killed, and drops its locks. The server waits for the
next query of that connection, so it learns of its end at once: within milliseconds, if it is not busy."""

_LOCK_POLL_SECONDS: Final = 0.05
"""Seconds between two looks."""


class WriteConflict(Exception):
    """Another process wrote what this transaction was about to write: it is to run again."""


class Engines(NamedTuple):
    """How to get connections: for reading, and for writing."""

    readers: Engine
    writers: Engine
    reader_threads: int
    """How many threads read."""
    writer_threads: int
    """How many threads write."""


class Database:
    """An open database. `read` and `write` run a store's function and give back what it returns."""

    def __init__(self, engines: Engines, *, max_attempts: int = MAX_ATTEMPTS) -> None:
        """`tries` is how often a transaction runs that meets others, before it fails."""
        self._engines = engines
        self._max_attempts = max_attempts
        self._readers = ThreadPoolExecutor(engines.reader_threads, "db.read")
        self._writers = ThreadPoolExecutor(engines.writer_threads, "db.write")

    @property
    def is_sqlite(self) -> bool:
        """Whether it is SQLite, not PostgreSQL."""
        return self._engines.writers.dialect.name == "sqlite"

    async def read(
        self,
        work: Callable[Concatenate[Connection, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """Run a function that changes nothing; it sees one moment of the database."""
        task = partial(self.read_now, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._readers, task)

    async def write(
        self,
        work: Callable[Concatenate[Connection, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """Run a function in a transaction, which is committed when this returns, whole or not at all.

        The function may run more than once. Who cancels this does not stop it: it may still be committed.
        """
        task = partial(self.write_now, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._writers, task)

    def read_now(
        self,
        work: Callable[Concatenate[Connection, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """`read` for programs without an event loop."""
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
        """`write` for programs without an event loop."""
        for tries_left in reversed(range(self._max_attempts)):
            try:
                with self._engines.writers.begin() as connection:
                    return work(connection, *args, **kwargs)
            except (IntegrityError, WriteConflict, *_DATABASE_FAILURES) as exc:
                if tries_left and _is_conflict(exc):
                    continue
                if isinstance(exc, IntegrityError):
                    raise
                if _is_conflict(exc):
                    raise DatabaseUnavailable("the database is too busy") from exc
                raise _unavailable(exc) from exc
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def hold_advisory_lock(self, lock: int) -> Iterator[bool]:
        """Hold an advisory lock of a server while the block runs. Give False if another program holds it.

        A file belongs to one service anyway. The lock lasts as long as a connection of its own. That of a
        program that was killed may outlive it for a moment, so a lock that is taken is tried again.
        """
        if self.is_sqlite:
            yield True
            return
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(self._engines.writers.connect())
                connection.execution_options(isolation_level="AUTOCOMMIT")
                connection.detach()
                is_ours = _acquire_lock(connection, lock)
            except _DATABASE_FAILURES as exc:
                raise _unavailable(exc) from exc
            yield is_ours

    def close(self) -> None:
        """Let running work end, then close all connections."""
        self._writers.shutdown()
        self._readers.shutdown()
        self._engines.readers.dispose()
        self._engines.writers.dispose()


def _acquire_lock(connection: Connection, lock: int) -> bool:
    until = time.monotonic() + _LOCK_WAIT_SECONDS
    while not connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({lock})").scalar():
        if time.monotonic() >= until:
            return False
        time.sleep(_LOCK_POLL_SECONDS)
    return True


def _is_conflict(exc: Exception) -> bool:
    """Whether another try may succeed."""
    return (
        isinstance(exc, WriteConflict)
        or getattr(getattr(exc, "orig", None), "sqlstate", None) in _CONFLICT_SQLSTATES
    )


def is_duplicate_error(exc: IntegrityError) -> bool:
    """Whether a row was refused because there is one like it already."""
    return not _is_conflict(exc)


def _unavailable(exc: Exception) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"the database does not answer: {describe_driver_error(exc)}", classify_error(exc)
    )


def describe_driver_error(exc: Exception) -> str:
    """Put what the driver says on one line, without the statement and its values, which may be secret."""
    reason = exc.orig if isinstance(exc, DBAPIError) else exc
    diagnosis = getattr(reason, "diag", None)  # of PostgreSQL, whose text goes on with the statement
    text = getattr(diagnosis, "message_primary", None) or str(reason)
    if _UNREADABLE in text and hasattr(reason, "pgresult"):
        text = _decode_server_message(reason) or text.replace(_UNREADABLE, "?")
    return " ".join(text.split())


def _decode_server_message(error: Any) -> str | None:
    """Read a message of a server that is not UTF-8 throughout; show what cannot be read by its bytes.

    A server cuts long names after 63 bytes, be it within a character, and sends what comes before the login
    in an encoding that it does not tell. psycopg replaces all that it cannot read by the same character.
    """
    raw = None
    if error.pgresult is not None:
        raw = error.pgresult.error_field(_MESSAGE_FIELD)
    elif error.pgconn is not None:
        raw = error.pgconn.error_message
    return str(raw, "utf-8", "backslashreplace") if raw else None
