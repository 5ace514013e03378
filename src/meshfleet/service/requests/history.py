"""Writes the request history to the database, many entries in one transaction.

A request is stored before it is sent if it changes something, has an idempotency key, or no REST client waits
for its response. So such a request is never executed without a record. Other requests are stored when they
are finished.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from meshfleet.errors import DatabaseUnavailable, Unrecorded
from meshfleet.service.requests import store

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.requests.history_entry import HistoryEntry

_log = logging.getLogger(__name__)

_BATCH_SECONDS: Final = 1.0
"""Seconds for which history entries are collected for a batch while no caller waits for a flush."""

_DELETE_INTERVAL_MS: Final = 1_000
"""Milliseconds between two deletions of expired history entries, at most 1000 entries each."""

MAX_PENDING: Final = 20_000
"""Maximum number of history entries that wait to be written to the database."""

_IDLE_SECONDS: Final = 60.0
"""Seconds between two deletions of expired history entries while no new entry is queued."""


class RequestHistory:
    """Writes requests and their outcomes to the request history, in batches."""

    def __init__(
        self, database: Database, now: Now, *, retention: int | None, max_pending: int = MAX_PENDING
    ) -> None:
        """Create a writer of the request history.

        `retention` is the number of milliseconds for which entries are kept; None keeps all entries.
        """
        self._max_pending = max_pending
        self._database = database
        self._now = now
        self.retention = retention
        self._pending: dict[str, HistoryEntry] = {}
        self._next_batch: asyncio.Future[None] | None = None
        """Future that resolves when all queued entries are written; None if no caller waits for that."""
        self._current_batch: asyncio.Future[None] | None = None
        """Future that resolves when the current batch is written; None if no batch is being written."""
        self._flush_requested = asyncio.Event()
        self._has_pending = asyncio.Event()
        self._deleted_at: int | None = None
        self._is_failing = False
        self.dropped = 0
        """Number of entries that were lost, because the queue was full or the database rejected the entry."""
        self._is_stopping = False
        self._is_stopped = False

    def enqueue(self, entry: HistoryEntry) -> None:
        """Queue an entry for the next batch. Drop the entry if the queue is full."""
        if len(self._pending) >= self._max_pending and entry.record.id not in self._pending:
            # The database has been unavailable for long. Requests that change something are not sent
            # meanwhile, so their entries are not counted as lost.
            self.dropped += not entry.is_unsent
            return
        self._pending[entry.record.id] = entry
        self._has_pending.set()

    async def write(self, entry: HistoryEntry) -> None:
        """Write an entry and all queued entries now. Raise `Unrecorded` if the entry cannot be written."""
        problem = Unrecorded("the request was not sent because it cannot be stored in the history now")
        if len(self._pending) >= self._max_pending:
            raise problem
        self.enqueue(entry)
        try:
            await self.flush()
        except BaseException as exc:
            # The entry may have been written, or may be written later: queue an update that marks it failed.
            entry.fail(problem, self._now())
            self.enqueue(entry)
            if isinstance(exc, DatabaseUnavailable):
                raise problem from exc
            raise
        if entry.is_new:
            raise problem  # the database rejected the entry

    async def flush(self) -> None:
        """Wait until all queued entries are written. Raise `DatabaseUnavailable` if that fails."""
        if not self._pending and self._current_batch is not None:
            await asyncio.shield(self._current_batch)  # if it fails, its entries are pending again
        if not self._pending:
            return
        if self._is_stopped:
            raise DatabaseUnavailable("the request history is closed: the service is shutting down")
        if self._next_batch is None:
            self._next_batch = asyncio.get_running_loop().create_future()
        self._flush_requested.set()
        await asyncio.shield(self._next_batch)

    async def restore(self) -> None:
        """Mark all unfinished requests of the previous service process as failed. Call at start-up."""
        await self._database.write(store.fail_unfinished_requests, self._now())

    async def run(self) -> None:
        """Write batches of entries until `stop` is called. Write a last batch before returning."""
        while not self._is_stopping:
            await self._wait_for_entries()
            await self._write_pending()
            await self._delete_expired_entries()
        await self._write_pending()
        self._is_stopped = True
        if self._next_batch is not None:
            self._resolve_flush(self._next_batch, DatabaseUnavailable("the service is shutting down"))

    def stop(self) -> None:
        """Make `run` write a last batch and return.

        If `run` were canceled instead, the current batch might or might not be written.
        """
        self._is_stopping = True
        self._has_pending.set()
        self._flush_requested.set()

    # Internals

    async def _wait_for_entries(self) -> None:
        """Wait until entries for a batch were collected, or a minute has passed without entries."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_SECONDS):
                await self._has_pending.wait()
            async with asyncio.timeout(_BATCH_SECONDS):  # ends early if a caller waits for a flush
                await self._flush_requested.wait()

    async def _write_pending(self) -> None:
        """Write a batch with all queued entries. Let `flush` wait for this batch meanwhile."""
        self._current_batch = asyncio.get_running_loop().create_future()
        try:
            await self._write_batch()
        finally:
            self._current_batch.set_result(None)
            self._current_batch = None

    async def _write_batch(self) -> None:
        """Write all queued entries, or queue them again if the database is unavailable."""
        entries, self._pending = self._pending, {}
        flush_waiter, self._next_batch = self._next_batch, None
        self._flush_requested.clear()
        self._has_pending.clear()
        problem: DatabaseUnavailable | None = None
        try:
            await self._write_entries(list(entries.values()))
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._log_failure(exc)
            self._pending = entries | self._pending
            self._has_pending.set()
            problem = DatabaseUnavailable(type(exc).__name__)
        else:
            self._is_failing = False
        if flush_waiter is not None:
            self._resolve_flush(flush_waiter, problem)

    async def _write_entries(self, entries: list[HistoryEntry]) -> None:
        """Write entries in one transaction. If the database rejects an entry, write them one by one."""
        try:
            await self._database.write(store.upsert_requests, entries)
        except (IntegrityError, DataError) as exc:
            if len(entries) == 1:
                self.dropped += 1
                _log.error(
                    "request rejected by the database and missing in the history: %s", type(exc).__name__
                )
                return
            for each in entries:
                await self._write_entries([each])
        else:
            for each in entries:
                each.is_new = False

    @staticmethod
    def _resolve_flush(flush_waiter: asyncio.Future[None], problem: DatabaseUnavailable | None) -> None:
        """Wake the callers that wait for a flush. `problem` is why the flush failed; None if it succeeded."""
        if problem is None:
            flush_waiter.set_result(None)
        else:
            flush_waiter.set_exception(problem)
            flush_waiter.exception()  # mark as retrieved: the waiting callers may have been canceled

    async def _delete_expired_entries(self) -> None:
        """Delete entries that are older than the retention, if the last deletion is long enough ago."""
        now = self._now()
        # While a caller waits for a flush, delete less often, but do not stop deleting.
        interval = _DELETE_INTERVAL_MS if self._next_batch is None else 10 * _DELETE_INTERVAL_MS
        if self.retention is None or (
            self._deleted_at is not None and 0 <= now - self._deleted_at < interval
        ):
            return
        self._deleted_at = now
        try:
            await self._database.write(store.delete_old_requests, now - self.retention)
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._log_failure(exc)

    def _log_failure(self, exc: Exception) -> None:
        """Log that the database is not available, unless the previous access has failed too."""
        if not self._is_failing:
            _log.warning("request history cannot be written: %s; retrying", type(exc).__name__)
        self._is_failing = True
