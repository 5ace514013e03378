"""The history as it is written: in rounds, many entries at once.

What changes something, has an idempotency key, or has nobody who waits for it, is written before it is sent:
nothing is done without a trace. The rest is written when it is over.
"""

from __future__ import annotations

import asyncio
import logging
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
"""Seconds between two rounds when nobody waits for one."""

_DELETE_INTERVAL_MS: Final = 1_000
"""Milliseconds between two looks for what is too old: each of them forgets a thousand."""

MAX_PENDING: Final = 20_000
"""Entries that wait to be written."""

_IDLE_SECONDS: Final = 60.0
"""Seconds between two such looks when nothing happens."""


class RequestHistory:
    """Writes down requests and what became of them."""

    def __init__(
        self, database: Database, now: Now, *, retention: int | None, max_pending: int = MAX_PENDING
    ) -> None:
        """`retention`: for how many milliseconds the history is kept. At most `most` entries wait."""
        self._max_pending = max_pending
        self._database = database
        self._now = now
        self._retention = retention
        self._pending: dict[str, HistoryEntry] = {}
        self._next_batch: asyncio.Future[None] | None = None
        """What is there by now will be written with this one."""
        self._current_batch: asyncio.Future[None] | None = None
        """The end of the round that is being written, if any."""
        self._flush_requested = asyncio.Event()
        self._has_pending = asyncio.Event()
        self._deleted_at: int | None = None
        self._is_failing = False
        self.dropped = 0
        """Entries that are in no history: there was no room for them, or the database does not take them."""
        self._is_stopping = False
        self._is_stopped = False

    def enqueue(self, entry: HistoryEntry) -> None:
        """Write this soon."""
        if len(self._pending) >= self._max_pending and entry.record.id not in self._pending:
            # The database has been away for long. What changes something is not sent then, and so not missed.
            self.dropped += not entry.is_unsent
            return
        self._pending[entry.record.id] = entry
        self._has_pending.set()

    async def write(self, entry: HistoryEntry) -> None:
        """Write this now, together with all that is to be written; raises `Unrecorded`."""
        problem = Unrecorded("it cannot be written down now, and so it was not sent")
        if len(self._pending) >= self._max_pending:
            raise problem
        self.enqueue(entry)
        try:
            await self.flush()
        except BaseException as exc:
            # It may have been written all the same, or be about to: so this follows it.
            entry.fail(problem, self._now())
            self.enqueue(entry)
            if isinstance(exc, DatabaseUnavailable):
                raise problem from exc
            raise
        if entry.is_new:
            raise problem  # the database does not take it

    async def flush(self) -> None:
        """Wait until all is written that is to be written by now; raises `DatabaseUnavailable`."""
        if not self._pending and self._current_batch is not None:
            await asyncio.shield(self._current_batch)  # if that fails it is to be written again
        if not self._pending:
            return
        if self._is_stopped:
            raise DatabaseUnavailable("nothing is written any more: the service is about to end")
        if self._next_batch is None:
            self._next_batch = asyncio.get_running_loop().create_future()
        self._flush_requested.set()
        await asyncio.shield(self._next_batch)

    async def restore(self) -> None:
        """End what a service before this one did not come to an end with."""
        await self._database.write(store.fail_unfinished_requests, self._now())

    async def run(self) -> None:
        """Write rounds until `end`, and then a last one."""
        while not self._is_stopping:
            await self._wait_for_entries()
            await self._write_pending()
            await self._delete_expired()
        await self._write_pending()
        self._is_stopped = True
        if self._next_batch is not None:
            self._resolve(self._next_batch, DatabaseUnavailable("the service is about to end"))

    def stop(self) -> None:
        """Write what is there, and then no more. To cancel a round would leave open what became of it."""
        self._is_stopping = True
        self._has_pending.set()
        self._flush_requested.set()

    # Inside

    async def _wait_for_entries(self) -> None:
        """Wait until there is something to do."""
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                await self._has_pending.wait()
        except TimeoutError:
            return
        await self._wait_for_more()

    async def _wait_for_more(self) -> None:
        """Let more come together, unless somebody waits."""
        try:
            async with asyncio.timeout(_BATCH_SECONDS):
                await self._flush_requested.wait()
        except TimeoutError:
            pass

    async def _write_pending(self) -> None:
        self._current_batch = asyncio.get_running_loop().create_future()
        try:
            await self._write_batch()
        finally:
            self._current_batch.set_result(None)
            self._current_batch = None

    async def _write_batch(self) -> None:
        entries, self._pending = self._pending, {}
        waiting, self._next_batch = self._next_batch, None
        self._flush_requested.clear()
        self._has_pending.clear()
        problem: DatabaseUnavailable | None = None
        try:
            await self._write_all(list(entries.values()))
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._log_failure(exc)
            self._pending = entries | self._pending
            self._has_pending.set()
            problem = DatabaseUnavailable(type(exc).__name__)
        else:
            self._is_failing = False
        if waiting is not None:
            self._resolve(waiting, problem)

    async def _write_all(self, entries: list[HistoryEntry]) -> None:
        """Write all together; if one of them cannot be written ever, all others one by one."""
        try:
            await self._database.write(store.upsert_requests, entries)
        except (IntegrityError, DataError) as exc:
            if len(entries) == 1:
                self.dropped += 1
                _log.error("a request cannot be written into the history: %s", type(exc).__name__)
                return
            for each in entries:
                await self._write_all([each])
        else:
            for each in entries:
                each.is_new = False

    @staticmethod
    def _resolve(waiting: asyncio.Future[None], problem: DatabaseUnavailable | None) -> None:
        if problem is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(problem)
            waiting.exception()  # those who waited may have gone

    async def _delete_expired(self) -> None:
        now = self._now()
        between = (
            _DELETE_INTERVAL_MS if self._next_batch is None else 10 * _DELETE_INTERVAL_MS
        )  # somebody waits, but not for ever
        if self._retention is None or (
            self._deleted_at is not None and 0 <= now - self._deleted_at < between
        ):
            return
        self._deleted_at = now
        try:
            await self._database.write(store.delete_old_requests, now - self._retention)
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._log_failure(exc)

    def _log_failure(self, exc: Exception) -> None:
        if not self._is_failing:
            _log.warning("the history of requests cannot be written now: %s", type(exc).__name__)
        self._is_failing = True
