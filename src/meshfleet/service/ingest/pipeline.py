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

from meshfleet.db.driver_errors import classify_error
from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.protocol import UnstorableReport
from meshfleet.errors.readiness import ReadinessProblem
from meshfleet.mqtt.broker import check_ownership
from meshfleet.protocol.times import format_millis
from meshfleet.service.devices import states
from meshfleet.service.ingest import store
from meshfleet.service.ingest.metrics import IngestCounters
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.service.ingest.parser import ReportParser
from meshfleet.service.ingest.pending_state import apply_readings, apply_samples
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rejects import RejectQuota, build_reject
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.ingest.startup_clock import StartupClock
from meshfleet.service.ingest.subscribers import SubscriberList

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleRows, SampleStore
    from meshfleet.mqtt.broker import ReportBatch
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.service.clock import Now
    from meshfleet.service.ingest.gateway_admission import GatewayAdmission
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.ingest.rejects import RejectedReport
    from meshfleet.service.ingest.subscribers import CommitSubscriber, FlushPart

_log = logging.getLogger(__name__)

_MESSAGES_PER_SLICE: Final = 500
"""Messages that are read before others have their turn."""

_MIN_FLUSH_POLLS, _MAX_FLUSH_POLLS = 2, 10
"""Looks between two times that notes are written: the more there are, the less often."""

_STATES_PER_POLL: Final = 4000
"""Notes that may be written for each look."""


_DATABASE_REJECTIONS: Final = (DataError, IntegrityError)
"""What a database raises for what it will never take."""


_CLOCK_SET_BACK_MS: Final = 1000
"""Milliseconds by which the time has to be earlier than at the last flush to be called set back."""

_MAX_JOURNALED_DEVICES: Final = 1 << 18
"""How many devices that were heard are remembered."""


class _TrialRollback(Exception):
    """Ends a transaction of which nothing is wanted but to know that it could be."""


class _CommitIds(NamedTuple):
    """What a committed draft is called."""

    samples: int
    readings: int | None


class _Flush(NamedTuple):
    """What is to be written of what was coalesced."""

    states: PendingStates
    rows: SampleRows
    journal_before: int
    """Readings that are in here, and needed no more."""
    parts: Sequence[FlushPart]
    """What followers have to write."""
    must_cap_times: bool
    """Whether states may be later than the clock of this machine, and have to become earlier."""


class IngestTimings(NamedTuple):
    """How long ingest waits, in seconds."""

    poll_seconds: float = 1.0
    """Between two looks at what is to be done."""
    max_backoff_seconds: float = 60.0
    """The same while something is wrong that somebody has to mend, such as a full disk."""
    capacity_timeout_seconds: float = 5.0
    """For a batch until there is room for it."""


DEFAULT_TIMINGS: Final = IngestTimings()


class IngestPipeline:
    """Takes reports, whoever brings them."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        samples: SampleStore,
        *,
        prefix: str,
        admission: GatewayAdmission | None,
        owner: bytes | None = None,
        rollups: Rollups | None = None,
        timings: IngestTimings = DEFAULT_TIMINGS,
        now: Now,
    ) -> None:
        """`owner` is the token of who takes reports, where several programs could.

        `rollups` are the open minutes, if others read them, too.
        """
        self._database = database
        self._samples = samples
        self._admission = admission
        self._owner = owner
        self._timings = timings
        self._now = now
        self.acking_gateways: set[int] = set()
        """The gateways that take acknowledgements of samples; whoever knows keeps it current."""
        self.clock_shifts: Mapping[int, int] = {}
        """Corrections of gateways whose clocks are wrong; see `Clocks`, which keeps it current."""
        self.is_shift_confirmed: Callable[[int], bool] = lambda _gateway: True
        """Tells whether the correction of a gateway holds for all that it reports; see `Clocks`."""
        self._parser = ReportParser(prefix, admission)
        self._reject_quota = RejectQuota()
        self._pending_states: PendingStates = {}
        self._rollups = Rollups() if rollups is None else rollups
        self._journaled_devices: set[int] = set()
        """Devices that the journal or the database knows."""
        self._last_journal_id = 0
        """The number of the last readings that are in memory."""
        self._unfinished_flush: _Flush | None = None
        self._flushed_at = now()
        self._startup_clock: StartupClock | None = None
        """Decides when the clock counts as right that was far behind stored states at the start."""
        self._write_lock = asyncio.Lock()
        """What is written is seen by readers in the same order."""
        self._troubles: dict[str, ReadinessProblem] = {}
        """What fails at the moment, by what is tried."""
        self.counters = IngestCounters()
        self._subscribers = SubscriberList(self.counters)

    def subscribe(self, subscriber: CommitSubscriber) -> None:
        """Let somebody go on with all that is committed from now on."""
        self._subscribers.add(subscriber)

    async def restore(self) -> None:
        """Go on where a program before this one ended, in whatever way it did."""
        now = self._now()
        newest = await self._database.read(states.find_newest_state_time) or now
        start_clock = StartupClock(newest, now)
        if start_clock.is_trusted(now):
            await self._database.write(states.limit_state_times, now)
        else:
            self._startup_clock = start_clock
            _log.warning(
                "the clock of this machine (%s) is days behind the newest stored state (%s); set the clock,"
                " for example by NTP; until then states of devices do not change, unless the clock shows a"
                " plausible year and runs for 10 minutes: then it is believed",
                format_millis(now),
                format_millis(newest),
            )
        if self._admission is not None:
            await self._admission.refresh(self._database)
        for number, readings in await self._database.read(store.load_readings):
            draft = ParsedBatch(self._now())
            draft.readings += readings
            self._apply_committed(draft, number)

    async def commit(self, batch: ReportBatch) -> None:
        """Commit a batch; see `Consumer`."""
        await self._wait_for_capacity()
        try:
            await self._commit_storable(batch)
        except DBAPIError as exc:  # nobody knows what it means, so nobody loses a report for it
            raise DatabaseUnavailable(
                f"the database fails: {_describe_error(exc)}", classify_error(exc)
            ) from exc

    @property
    def trouble(self) -> ReadinessProblem | None:
        """What cannot be written besides batches, of which whoever brings them knows."""
        return next((self._troubles[each] for each in sorted(self._troubles)), None)

    async def run(self) -> None:
        """Write what is coalesced, and keep the store in order, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_flushes(), name="ingest.flush")
            tasks.create_task(self._run_maintenance(self._samples.ensure_capacity), name="ingest.room")
            tasks.create_task(self._run_maintenance(self._samples.maintain), name="ingest.tend")

    async def flush(self) -> None:
        """Write what was coalesced, and the minutes that are over; first what could not be written before."""
        async with (
            self._write_lock
        ):  # no batch is under way, so the journal has nothing that is not in memory
            if self._unfinished_flush is not None:
                await self._commit_flush(self._unfinished_flush)
            now = self._now()
            rows = self._rollups.close_due(now)
            before = self._rollups.oldest_batch(self._last_journal_id + 1)
            entries = self._subscribers.prepare_flush(self._pending_states, now)
            must_limit, self._flushed_at = self._must_cap_times(now), now
            self._unfinished_flush, self._pending_states = (
                _Flush(self._pending_states, rows, before, entries, must_limit),
                {},
            )
            await self._commit_flush(self._unfinished_flush)

    async def _run_flushes(self) -> None:
        waited = 0
        while True:
            await asyncio.sleep(self._timings.poll_seconds)
            waited += 1
            if waited < min(
                max(_MIN_FLUSH_POLLS, len(self._pending_states) // _STATES_PER_POLL), _MAX_FLUSH_POLLS
            ):
                continue
            waited = 0
            try:
                if self._admission is not None:
                    await self._admission.refresh(self._database)
                await self.flush()
            except (DatabaseUnavailable, DBAPIError) as exc:
                words = f"what was coalesced cannot be written: {_describe_error(exc)}"
                self._troubles["flush"] = ReadinessProblem(classify_error(exc), words)
                _log.error("%s; it is kept", words)
            else:
                self._troubles.pop("flush", None)

    async def _run_maintenance(self, work: Callable[[int], Awaitable[None]]) -> None:
        pause = self._timings.poll_seconds
        while True:
            await asyncio.sleep(pause)
            try:
                await work(self._now())
            except (DatabaseUnavailable, DBAPIError, OSError, sqlite3.Error) as exc:
                words = f"samples cannot be put in order: {_describe_error(exc)}"
                self._troubles[work.__name__] = ReadinessProblem(classify_error(exc), words)
                _log.error("%s; they stay where they are", words)
                passes = isinstance(exc, DatabaseUnavailable)  # a server that was away comes back by itself
                pause = (
                    self._timings.poll_seconds
                    if passes
                    else min(2 * pause, self._timings.max_backoff_seconds)
                )
            else:
                self._troubles.pop(work.__name__, None)
                pause = self._timings.poll_seconds

    # Inside

    async def _wait_for_capacity(self) -> None:
        """Not for ever without a word: whoever brings reports tells why they wait."""
        try:
            async with asyncio.timeout(self._timings.capacity_timeout_seconds):
                await self._samples.wait_for_capacity()
        except TimeoutError:
            if (trouble := self.trouble) is not None:
                raise DatabaseUnavailable(trouble.detail, trouble.code) from None
            raise DatabaseUnavailable("samples are not written out fast enough") from None

    async def _parse(self, messages: Sequence[Publish]) -> ParsedBatch:
        draft = ParsedBatch(self._now(), self.acking_gateways, self.clock_shifts, self.is_shift_confirmed)
        for start in range(0, len(messages), _MESSAGES_PER_SLICE):
            if start:
                await asyncio.sleep(0)
            self._parser.parse(messages[start : start + _MESSAGES_PER_SLICE], draft)
        if self._admission is not None and await self._admission.recheck(
            draft.unclaimed_gateways, self._database
        ):
            return await self._parse(messages)
        return draft

    async def _commit_storable(self, batch: ReportBatch) -> None:
        """Commit a batch, without the reports that the database will never take."""
        try:
            await self._commit(await self._parse(batch.messages), batch)
        except _DATABASE_REJECTIONS as exc:
            _log.error("a batch cannot be stored, the report at fault is sought: %s", type(exc.orig).__name__)
            refused = await self._find_unstorable(batch.messages)
            draft = await self._parse([each for each in batch.messages if id(each) not in refused])
            draft.rejects += refused.values()
            await self._commit(draft, batch)

    async def _find_unstorable(self, messages: Sequence[Publish]) -> dict[int, RejectedReport]:
        """Find the reports that the database does not take, by halves: they must not keep others from it.

        Nothing is written. Messages are told apart by `id`, for two may be alike.
        """
        draft = await self._parse(messages)
        try:
            async with self._write_lock:
                await self._database.write(self._try_write, draft)
        except _TrialRollback:
            return {}
        except _DATABASE_REJECTIONS as exc:
            if len(messages) == 1:
                reason = UnstorableReport("report", f"the database refuses it: {type(exc.orig).__name__}")
                return {id(messages[0]): build_reject(messages[0], reason, draft.now)}
        half = len(messages) // 2
        return await self._find_unstorable(messages[:half]) | await self._find_unstorable(messages[half:])

    async def _commit(self, parsed: ParsedBatch, batch: ReportBatch) -> None:
        kept = self._reject_quota.admit(parsed.rejects, parsed.now)
        new = self._journal_new_devices(parsed)
        async with self._write_lock:
            numbers = await self._database.write(self._write_batch, parsed, batch, kept)
            self._samples.publish_committed(numbers.samples, parsed.rows)
        self._reject_quota.charge(kept, parsed.now)
        self._apply_committed(parsed, numbers.readings)
        if len(self._journaled_devices) > _MAX_JOURNALED_DEVICES:
            self._journaled_devices.clear()
        self._journaled_devices |= new
        self.counters.record_commit(parsed, time.monotonic() - batch.received_at)
        if self._admission is not None:
            self._admission.claimed |= parsed.new_gateways
        self._subscribers.on_commit(parsed)

    def _write_batch(
        self, connection: Connection, parsed: ParsedBatch, batch: ReportBatch, kept: Sequence[RejectedReport]
    ) -> _CommitIds:
        self._check_ownership(connection)
        if batch.has_changes:
            batch.write_changes(connection)
        number = self._samples.write(connection, parsed.rows, parsed.now)
        return _CommitIds(number, store.insert_batch(connection, parsed, kept))

    def _try_write(self, connection: Connection, parsed: ParsedBatch) -> None:
        self._samples.write(connection, parsed.rows, parsed.now)
        store.insert_batch(connection, parsed, parsed.rejects)
        raise _TrialRollback

    def _journal_new_devices(self, parsed: ParsedBatch) -> set[int]:
        """Let the journal have the devices that were not heard before; gives them.

        What samples tell of a device is only in memory until it is flushed. After a crash nobody would know a
        device that is new, and so nobody could ask for its samples.
        """
        new = parsed.rows.keys() - self._journaled_devices
        for device in new:
            rows = parsed.rows[device]
            believed = next((row for row in rows if row[7] is None or row[7].has_plausible_time), None)
            kind, row = (
                (ReadingKind.FIRST_SAMPLE_IMPLAUSIBLE, rows[0])
                if believed is None
                else (ReadingKind.FIRST_SAMPLE, believed)
            )
            at = row[0] if row[7] is None or row[7].shift is None else row[0] + row[7].shift
            parsed.readings.append((kind, device, row[4], min(at, parsed.now), None, 0, False))
        return new

    def _apply_committed(self, parsed: ParsedBatch, number: int | None) -> None:
        """A draft is committed: let what it says be part of what is coalesced."""
        apply_samples(self._pending_states, parsed.rows, parsed.now)
        apply_readings(self._pending_states, parsed.readings, parsed.now)
        if number is not None:
            self._last_journal_id = number
            self._rollups.add(number, parsed.readings, parsed.now)

    def _check_ownership(self, connection: Connection) -> None:
        """Write nothing when another program has taken our place, as may be when a server was restarted."""
        if self._owner is not None:
            check_ownership(connection, self._owner)

    async def _commit_flush(self, flush: _Flush) -> None:
        number = await self._database.write(self._write_flush, flush)
        self._samples.publish_committed(number, flush.rows)
        self._rollups.drop_closed(flush.rows)
        self._unfinished_flush = None
        self._subscribers.on_flushed(flush.parts)

    def _must_cap_times(self, now: int) -> bool:
        """Tell whether the clock was set back since the last flush, or is believed from now on."""
        if self._startup_clock is None:
            return now < self._flushed_at - _CLOCK_SET_BACK_MS
        if not self._startup_clock.is_trusted(now):
            return False
        self._startup_clock = None
        _log.warning(
            "the clock of this machine (%s) is believed from now on; states that are later get its time",
            format_millis(now),
        )
        return True

    def _write_flush(self, connection: Connection, flush: _Flush) -> int:
        self._check_ownership(connection)
        added = store.upsert_devices(connection, flush.states, self._now())
        if flush.must_cap_times:
            states.limit_state_times(connection, self._now())
        for entry in flush.parts:
            entry.write(connection, added)
        store.delete_readings(connection, flush.journal_before)
        store.delete_old_rejects(connection)
        return self._samples.write(connection, flush.rows, self._now())


def _describe_error(exc: Exception) -> str:
    """What went wrong, without the statement and its values."""
    return type(exc.orig).__name__ if isinstance(exc, DBAPIError) else str(exc)
