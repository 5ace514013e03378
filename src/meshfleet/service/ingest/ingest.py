"""Ingest: batches of messages in, committed rows out.

A batch becomes a draft, and a draft one transaction; when that is committed the batch is acknowledged. Only
then is anything in memory changed: a batch that could not be written is simply tried again. What is coalesced
(states of devices, minutes of the radio) is written every other second; until then a journal has it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from meshfleet.broker import check_owner
from meshfleet.db.outages import cause_of
from meshfleet.errors import DatabaseUnavailable, Trouble, UnstorableReport
from meshfleet.service.devices import states
from meshfleet.service.ingest import store
from meshfleet.service.ingest.draft import Draft
from meshfleet.service.ingest.figures import Counts
from meshfleet.service.ingest.followers import Followers
from meshfleet.service.ingest.notes import learn, learn_from_samples
from meshfleet.service.ingest.reading import Reader
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rejects import Quota, reject
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.ingest.start_clock import StartClock
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.broker import Batch
    from meshfleet.db import Database
    from meshfleet.db.samples import Rows, SampleStore
    from meshfleet.service.clock import Now
    from meshfleet.service.ingest.followers import Entry, Follower
    from meshfleet.service.ingest.guests import Guests
    from meshfleet.service.ingest.notes import Notes
    from meshfleet.service.ingest.rejects import Reject
    from meshfleet.wire.mqtt.packets import Publish

_log = logging.getLogger(__name__)

_SLICE: Final = 500
"""Messages that are read before others have their turn."""

_LEAST, _MOST = 2, 10
"""Looks between two times that notes are written: the more there are, the less often."""

_PER_LOOK: Final = 4000
"""Notes that may be written for each look."""


_REFUSALS: Final = (DataError, IntegrityError)
"""What a database raises for what it will never take."""


_SET_BACK: Final = 1000
"""Milliseconds by which the time has to be earlier than at the last flush to be called set back."""

_HEARD: Final = 1 << 18
"""How many devices that were heard are remembered."""


class _OnlyTried(Exception):
    """Ends a transaction of which nothing is wanted but to know that it could be."""


class _Numbers(NamedTuple):
    """What a committed draft is called."""

    samples: int
    readings: int | None


class _Flush(NamedTuple):
    """What is to be written of what was coalesced."""

    notes: Notes
    rows: Rows
    before: int
    """Readings that are in here, and needed no more."""
    entries: Sequence[Entry]
    """What followers have to write."""
    must_limit: bool
    """Whether states may be later than the clock of this machine, and have to become earlier."""


class Pauses(NamedTuple):
    """How long ingest waits, in seconds."""

    look: float = 1.0
    """Between two looks at what is to be done."""
    longest: float = 60.0
    """The same while something is wrong that somebody has to mend, such as a full disk."""
    room: float = 5.0
    """For a batch until there is room for it."""


PAUSES: Final = Pauses()


class Ingest:
    """Takes reports, whoever brings them."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        samples: SampleStore,
        *,
        prefix: str,
        guests: Guests | None,
        owner: bytes | None = None,
        rollups: Rollups | None = None,
        pauses: Pauses = PAUSES,
        now: Now,
    ) -> None:
        """`owner` is the token of who takes reports, where several programs could.

        `rollups` are the open minutes, if others read them, too.
        """
        self._database = database
        self._samples = samples
        self._guests = guests
        self._owner = owner
        self._pauses = pauses
        self._now = now
        self.acking: set[int] = set()
        """The gateways that take acknowledgements of samples; whoever knows keeps it current."""
        self.shifts: Mapping[int, int] = {}
        """Corrections of gateways whose clocks are wrong; see `Clocks`, which keeps it current."""
        self.is_proved: Callable[[int], bool] = lambda _gateway: True
        """Tells whether the correction of a gateway holds for all that it reports; see `Clocks`."""
        self._reader = Reader(prefix, guests)
        self._quota = Quota()
        self._notes: Notes = {}
        self._rollups = Rollups() if rollups is None else rollups
        self._heard: set[int] = set()
        """Devices that the journal or the database knows."""
        self._newest = 0
        """The number of the last readings that are in memory."""
        self._flush: _Flush | None = None
        self._flushed_at = now()
        self._start_clock: StartClock | None = None
        """Decides when the clock counts as right that was far behind stored states at the start."""
        self._turn = asyncio.Lock()
        """What is written is seen by readers in the same order."""
        self._troubles: dict[str, Trouble] = {}
        """What fails at the moment, by what is tried."""
        self.figures = Counts()
        self._followers = Followers(self.figures)

    def lead(self, follower: Follower) -> None:
        """Let somebody go on with all that is committed from now on."""
        self._followers.add(follower)

    async def restore(self) -> None:
        """Go on where a program before this one ended, in whatever way it did."""
        now = self._now()
        newest = await self._database.read(states.find_newest) or now
        start_clock = StartClock(newest, now)
        if start_clock.is_right(now):
            await self._database.write(states.limit, now)
        else:
            self._start_clock = start_clock
            _log.warning(
                "the clock of this machine (%s) is days behind the newest stored state (%s); set the clock,"
                " for example by NTP; until then states of devices do not change, unless the clock shows a"
                " plausible year and runs for 10 minutes: then it is believed",
                write_millis(now),
                write_millis(newest),
            )
        if self._guests is not None:
            await self._guests.look(self._database)
        for number, readings in await self._database.read(store.journal):
            draft = Draft(self._now())
            draft.readings += readings
            self._remember(draft, number)

    async def take(self, batch: Batch) -> None:
        """Commit a batch; see `Consumer`."""
        await self._wait_for_room()
        try:
            await self._commit_what_is_taken(batch)
        except DBAPIError as exc:  # nobody knows what it means, so nobody loses a report for it
            raise DatabaseUnavailable(f"the database fails: {_words(exc)}", cause_of(exc)) from exc

    @property
    def trouble(self) -> Trouble | None:
        """What cannot be written besides batches, of which whoever brings them knows."""
        return next((self._troubles[each] for each in sorted(self._troubles)), None)

    async def run(self) -> None:
        """Write what is coalesced, and keep the store in order, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_flushing(), name="ingest.flush")
            tasks.create_task(self._keep_up(self._samples.make_room), name="ingest.room")
            tasks.create_task(self._keep_up(self._samples.tend), name="ingest.tend")

    async def flush(self) -> None:
        """Write what was coalesced, and the minutes that are over; first what could not be written before."""
        async with self._turn:  # no batch is under way, so the journal has nothing that is not in memory
            if self._flush is not None:
                await self._finish(self._flush)
            now = self._now()
            rows = self._rollups.close(now)
            before = self._rollups.oldest(self._newest + 1)
            entries = self._followers.collect(self._notes, now)
            must_limit, self._flushed_at = self._must_limit_states(now), now
            self._flush, self._notes = _Flush(self._notes, rows, before, entries, must_limit), {}
            await self._finish(self._flush)

    async def _keep_flushing(self) -> None:
        waited = 0
        while True:
            await asyncio.sleep(self._pauses.look)
            waited += 1
            if waited < min(max(_LEAST, len(self._notes) // _PER_LOOK), _MOST):
                continue
            waited = 0
            try:
                if self._guests is not None:
                    await self._guests.look(self._database)
                await self.flush()
            except (DatabaseUnavailable, DBAPIError) as exc:
                words = f"what was coalesced cannot be written: {_words(exc)}"
                self._troubles["flush"] = Trouble(cause_of(exc), words)
                _log.error("%s; it is kept", words)
            else:
                self._troubles.pop("flush", None)

    async def _keep_up(self, work: Callable[[int], Awaitable[None]]) -> None:
        pause = self._pauses.look
        while True:
            await asyncio.sleep(pause)
            try:
                await work(self._now())
            except (DatabaseUnavailable, DBAPIError, OSError, sqlite3.Error) as exc:
                words = f"samples cannot be put in order: {_words(exc)}"
                self._troubles[work.__name__] = Trouble(cause_of(exc), words)
                _log.error("%s; they stay where they are", words)
                passes = isinstance(exc, DatabaseUnavailable)  # a server that was away comes back by itself
                pause = self._pauses.look if passes else min(2 * pause, self._pauses.longest)
            else:
                self._troubles.pop(work.__name__, None)
                pause = self._pauses.look

    # Inside

    async def _wait_for_room(self) -> None:
        """Not for ever without a word: whoever brings reports tells why they wait."""
        try:
            async with asyncio.timeout(self._pauses.room):
                await self._samples.room()
        except TimeoutError:
            if (trouble := self.trouble) is not None:
                raise DatabaseUnavailable(trouble.detail, trouble.code) from None
            raise DatabaseUnavailable("samples are not written out fast enough") from None

    async def _read(self, messages: Sequence[Publish]) -> Draft:
        draft = Draft(self._now(), self.acking, self.shifts, self.is_proved)
        for start in range(0, len(messages), _SLICE):
            if start:
                await asyncio.sleep(0)
            self._reader.read(messages[start : start + _SLICE], draft)
        if self._guests is not None and await self._guests.look_for(draft.strangers, self._database):
            return await self._read(messages)
        return draft

    async def _commit_what_is_taken(self, batch: Batch) -> None:
        """Commit a batch, without the reports that the database will never take."""
        try:
            await self._commit(await self._read(batch.messages), batch)
        except _REFUSALS as exc:
            _log.error("a batch cannot be stored, the report at fault is sought: %s", type(exc.orig).__name__)
            refused = await self._refused(batch.messages)
            draft = await self._read([each for each in batch.messages if id(each) not in refused])
            draft.rejects += refused.values()
            await self._commit(draft, batch)

    async def _refused(self, messages: Sequence[Publish]) -> dict[int, Reject]:
        """Find the reports that the database does not take, by halves: they must not keep others from it.

        Nothing is written. Messages are told apart by `id`, for two may be alike.
        """
        draft = await self._read(messages)
        try:
            async with self._turn:
                await self._database.write(self._try, draft)
        except _OnlyTried:
            return {}
        except _REFUSALS as exc:
            if len(messages) == 1:
                reason = UnstorableReport("report", f"the database refuses it: {type(exc.orig).__name__}")
                return {id(messages[0]): reject(messages[0], reason, draft.now)}
        half = len(messages) // 2
        return await self._refused(messages[:half]) | await self._refused(messages[half:])

    async def _commit(self, draft: Draft, batch: Batch) -> None:
        kept = self._quota.admit(draft.rejects, draft.now)
        new = self._announce(draft)
        async with self._turn:
            numbers = await self._database.write(self._write, draft, batch, kept)
            self._samples.committed(numbers.samples, draft.rows)
        self._quota.charge(kept, draft.now)
        self._remember(draft, numbers.readings)
        if len(self._heard) > _HEARD:
            self._heard.clear()
        self._heard |= new
        self.figures.count(draft, time.monotonic() - batch.came_at)
        if self._guests is not None:
            self._guests.known |= draft.newcomers
        self._followers.follow(draft)

    def _write(self, connection: Connection, draft: Draft, batch: Batch, kept: Sequence[Reject]) -> _Numbers:
        self._fence(connection)
        if batch.has_news:
            batch.record(connection)
        number = self._samples.write(connection, draft.rows, draft.now)
        return _Numbers(number, store.write_draft(connection, draft, kept))

    def _try(self, connection: Connection, draft: Draft) -> None:
        self._samples.write(connection, draft.rows, draft.now)
        store.write_draft(connection, draft, draft.rejects)
        raise _OnlyTried

    def _announce(self, draft: Draft) -> set[int]:
        """Let the journal have the devices that were not heard before; gives them.

        What samples tell of a device is only in memory until it is flushed. After a crash nobody would know a
        device that is new, and so nobody could ask for its samples.
        """
        new = draft.rows.keys() - self._heard
        for device in new:
            rows = draft.rows[device]
            believed = next((row for row in rows if row[7] is None or row[7].is_believed), None)
            kind, row = (ReadingKind.MET, rows[0]) if believed is None else (ReadingKind.HEARD, believed)
            at = row[0] if row[7] is None or row[7].shift is None else row[0] + row[7].shift
            draft.readings.append((kind, device, row[4], min(at, draft.now), None, 0, False))
        return new

    def _remember(self, draft: Draft, number: int | None) -> None:
        """A draft is committed: let what it says be part of what is coalesced."""
        learn_from_samples(self._notes, draft.rows, draft.now)
        learn(self._notes, draft.readings, draft.now)
        if number is not None:
            self._newest = number
            self._rollups.add(number, draft.readings, draft.now)

    def _fence(self, connection: Connection) -> None:
        """Write nothing when another program has taken our place, as may be when a server was restarted."""
        if self._owner is not None:
            check_owner(connection, self._owner)

    async def _finish(self, flush: _Flush) -> None:
        number = await self._database.write(self._write_flush, flush)
        self._samples.committed(number, flush.rows)
        self._rollups.forget_closed(flush.rows)
        self._flush = None
        self._followers.written(flush.entries)

    def _must_limit_states(self, now: int) -> bool:
        """Tell whether the clock was set back since the last flush, or is believed from now on."""
        if self._start_clock is None:
            return now < self._flushed_at - _SET_BACK
        if not self._start_clock.is_right(now):
            return False
        self._start_clock = None
        _log.warning(
            "the clock of this machine (%s) is believed from now on; states that are later get its time",
            write_millis(now),
        )
        return True

    def _write_flush(self, connection: Connection, flush: _Flush) -> int:
        self._fence(connection)
        added = store.write_notes(connection, flush.notes, self._now())
        if flush.must_limit:
            states.limit(connection, self._now())
        for entry in flush.entries:
            entry.write(connection, added)
        store.forget_readings(connection, flush.before)
        store.trim_rejects(connection)
        return self._samples.write(connection, flush.rows, self._now())


def _words(exc: Exception) -> str:
    """What went wrong, without the statement and its values."""
    return type(exc.orig).__name__ if isinstance(exc, DBAPIError) else str(exc)
