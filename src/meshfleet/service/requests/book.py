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
    from meshfleet.service.requests.entry import Entry

_log = logging.getLogger(__name__)

_REST: Final = 1.0
"""Seconds between two rounds when nobody waits for one."""

_BETWEEN: Final = 1_000
"""Milliseconds between two looks for what is too old: each of them forgets a thousand."""

MOST: Final = 20_000
"""Entries that wait to be written."""

_IDLE: Final = 60.0
"""Seconds between two such looks when nothing happens."""


class Book:
    """Writes down requests and what became of them."""

    def __init__(self, database: Database, now: Now, *, retention: int | None, most: int = MOST) -> None:
        """`retention`: for how many milliseconds the history is kept. At most `most` entries wait."""
        self._most = most
        self._database = database
        self._now = now
        self._retention = retention
        self._unwritten: dict[str, Entry] = {}
        self._round: asyncio.Future[None] | None = None
        """What is there by now will be written with this one."""
        self._writing: asyncio.Future[None] | None = None
        """The end of the round that is being written, if any."""
        self._is_due = asyncio.Event()
        self._has_news = asyncio.Event()
        self._forgot_at: int | None = None
        self._is_failing = False
        self.dropped = 0
        """Entries that are in no history: there was no room for them, or the database does not take them."""
        self._is_ending = False
        self._is_over = False

    def note(self, entry: Entry) -> None:
        """Write this soon."""
        if len(self._unwritten) >= self._most and entry.record.id not in self._unwritten:
            # The database has been away for long. What changes something is not sent then, and so not missed.
            self.dropped += not entry.is_unsent
            return
        self._unwritten[entry.record.id] = entry
        self._has_news.set()

    async def write(self, entry: Entry) -> None:
        """Write this now, together with all that is to be written; raises `Unrecorded`."""
        problem = Unrecorded("it cannot be written down now, and so it was not sent")
        if len(self._unwritten) >= self._most:
            raise problem
        self.note(entry)
        try:
            await self.settle()
        except BaseException as exc:
            # It may have been written all the same, or be about to: so this follows it.
            entry.fail(problem, self._now())
            self.note(entry)
            if isinstance(exc, DatabaseUnavailable):
                raise problem from exc
            raise
        if entry.is_new:
            raise problem  # the database does not take it

    async def settle(self) -> None:
        """Wait until all is written that is to be written by now; raises `DatabaseUnavailable`."""
        if not self._unwritten and self._writing is not None:
            await asyncio.shield(self._writing)  # if that fails it is to be written again
        if not self._unwritten:
            return
        if self._is_over:
            raise DatabaseUnavailable("nothing is written any more: the service is about to end")
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
        self._is_due.set()
        await asyncio.shield(self._round)

    async def restore(self) -> None:
        """End what a service before this one did not come to an end with."""
        await self._database.write(store.close_old, self._now())

    async def run(self) -> None:
        """Write rounds until `end`, and then a last one."""
        while not self._is_ending:
            await self._wait_for_news()
            await self._write()
            await self._forget()
        await self._write()
        self._is_over = True
        if self._round is not None:
            self._tell(self._round, DatabaseUnavailable("the service is about to end"))

    def end(self) -> None:
        """Write what is there, and then no more. To cancel a round would leave open what became of it."""
        self._is_ending = True
        self._has_news.set()
        self._is_due.set()

    # Inside

    async def _wait_for_news(self) -> None:
        """Wait until there is something to do."""
        try:
            async with asyncio.timeout(_IDLE):
                await self._has_news.wait()
        except TimeoutError:
            return
        await self._rest()

    async def _rest(self) -> None:
        """Let more come together, unless somebody waits."""
        try:
            async with asyncio.timeout(_REST):
                await self._is_due.wait()
        except TimeoutError:
            pass

    async def _write(self) -> None:
        self._writing = asyncio.get_running_loop().create_future()
        try:
            await self._write_round()
        finally:
            self._writing.set_result(None)
            self._writing = None

    async def _write_round(self) -> None:
        entries, self._unwritten = self._unwritten, {}
        waiting, self._round = self._round, None
        self._is_due.clear()
        self._has_news.clear()
        problem: DatabaseUnavailable | None = None
        try:
            await self._write_all(list(entries.values()))
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._complain(exc)
            self._unwritten = entries | self._unwritten
            self._has_news.set()
            problem = DatabaseUnavailable(type(exc).__name__)
        else:
            self._is_failing = False
        if waiting is not None:
            self._tell(waiting, problem)

    async def _write_all(self, entries: list[Entry]) -> None:
        """Write all together; if one of them cannot be written ever, all others one by one."""
        try:
            await self._database.write(store.write, entries)
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
    def _tell(waiting: asyncio.Future[None], problem: DatabaseUnavailable | None) -> None:
        if problem is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(problem)
            waiting.exception()  # those who waited may have gone

    async def _forget(self) -> None:
        now = self._now()
        between = _BETWEEN if self._round is None else 10 * _BETWEEN  # somebody waits, but not for ever
        if self._retention is None or (self._forgot_at is not None and 0 <= now - self._forgot_at < between):
            return
        self._forgot_at = now
        try:
            await self._database.write(store.forget, now - self._retention)
        except (DatabaseUnavailable, DBAPIError) as exc:
            self._complain(exc)

    def _complain(self, exc: Exception) -> None:
        if not self._is_failing:
            _log.warning("the history of requests cannot be written now: %s", type(exc).__name__)
        self._is_failing = True
