"""Ingest pipeline: parses batches of MQTT messages and commits their reports.

A batch is written in one transaction, and acknowledged after the commit. State in memory changes only after
the commit, so a batch that could not be written is simply retried. Device states and minute roll-ups are
collected in memory and written every few seconds. Until that write, a journal in the database holds their
readings; after a crash, states and roll-ups are restored from the journal.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from meshfleet.db.driver_errors import classify_error
from meshfleet.db.samples.sample import ROW_EXTRAS, StoredSample
from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.protocol import UnstorableReport
from meshfleet.errors.readiness import ReadinessProblem
from meshfleet.mqtt.broker import ReportBatch, check_ownership
from meshfleet.protocol.times import format_millis
from meshfleet.service.devices import states
from meshfleet.service.ingest import store
from meshfleet.service.ingest.commit_timer import CommitTimer
from meshfleet.service.ingest.counters import IngestCounters
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.service.ingest.parser import ReportParser
from meshfleet.service.ingest.pending_state import PendingStates, apply_readings, apply_samples
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rejects import RejectedReport, RejectQuota, build_reject
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.ingest.startup_clock import StartupClock
from meshfleet.service.ingest.subscribers import CommitSubscriber, FlushPart, SubscriberList

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleRows, SampleStore
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.service.clock import Now
    from meshfleet.service.ingest.gateway_admission import GatewayAdmission

_log = logging.getLogger(__name__)

_MESSAGES_PER_SLICE: Final = 500
"""Number of messages to parse before the event loop runs other tasks."""

_MIN_FLUSH_POLLS: Final = 2
"""Minimum number of polls (`poll_seconds`) from one flush of device states to the next."""

_MAX_FLUSH_POLLS: Final = 10
"""Maximum number of polls (`poll_seconds`) from one flush of device states to the next."""

_STATES_PER_POLL: Final = 4000
"""Number of device states waiting for a flush that delay the flush by one more poll."""

_DATABASE_REJECTIONS: Final = (DataError, IntegrityError)
"""Errors that a database raises for rows it will never accept."""

_CLOCK_SET_BACK_MS: Final = 1000
"""The clock counts as set back if it is more than this many milliseconds before the last flush."""

_MAX_JOURNALED_DEVICES: Final = 1 << 18
"""Maximum number of devices in `_journaled_devices`; a larger set is cleared to limit memory."""


class _TrialRollback(Exception):
    """Raised to roll back a transaction that only tests whether the database accepts the rows."""


class _CommitIds(NamedTuple):
    """Ids that a committed batch got in the sample store and in the journal of readings."""

    samples: int
    readings: int | None
    """Id of the journal entry, or None if the batch has no readings."""


class _Flush(NamedTuple):
    """Device states and roll-ups to write in one transaction."""

    states: PendingStates
    rows: SampleRows
    journal_before: int
    """Id of the first journal entry that is still needed; older journal entries are deleted."""
    parts: Sequence[FlushPart]
    """Data of subscribers to write in the transaction of this flush."""
    must_cap_times: bool
    """Whether to limit times in stored device states to the current time of this machine's clock."""


class IngestTimings(NamedTuple):
    """Intervals and timeouts of ingest in seconds."""

    poll_seconds: float = 1.0
    """Seconds between two checks whether a flush is due, and between two maintenance runs."""
    max_backoff_seconds: float = 60.0
    """Maximum seconds between retries of sample store maintenance after a failure such as a full disk."""
    capacity_timeout_seconds: float = 5.0
    """Maximum seconds that a batch waits while the sample store is full."""


DEFAULT_TIMINGS: Final = IngestTimings()


class IngestPipeline:
    """Parses and commits the reports that arrive through the embedded or an external MQTT broker."""

    def __init__(  # noqa: PLR0913 # keyword-only
        self,
        database: Database,
        samples: SampleStore,
        *,
        prefix: str,
        admission: GatewayAdmission | None,
        owner: bytes | None = None,
        rollups: Rollups | None = None,
        commit_timer: CommitTimer | None = None,
        acking_gateways: Container[int] = frozenset(),
        clock_shifts: Mapping[int, int] = MappingProxyType({}),
        is_shift_confirmed: Callable[[int], bool] = lambda _gateway: True,
        timings: IngestTimings = DEFAULT_TIMINGS,
        now: Now,
    ) -> None:
        """Create the pipeline. `owner` is the token that proves that no other process writes to the database.

        `owner` is None if there can be no other process. `rollups` are the open minutes; `rollups` and
        `commit_timer` are passed in if other objects read them too. Samples of `acking_gateways` are
        acknowledged. `clock_shifts` contains, by gateway, the milliseconds to add to times of a wrong clock.
        The caller keeps `acking_gateways` and `clock_shifts` up to date. `is_shift_confirmed` returns whether
        the clock correction of a gateway is valid for all its reports.
        """
        self._database = database
        self._samples = samples
        self._admission = admission
        self._owner = owner
        self._timings = timings
        self._now = now
        self._acking_gateways = acking_gateways
        self._clock_shifts = clock_shifts
        self._is_shift_confirmed = is_shift_confirmed
        self._parser = ReportParser(prefix, admission)
        self._reject_quota = RejectQuota()
        self._pending_states: PendingStates = {}
        self._rollups = Rollups() if rollups is None else rollups
        self._commit_timer = CommitTimer() if commit_timer is None else commit_timer
        self._journaled_devices: set[int] = set()
        """Devices known to be in the journal or the database; cleared above `_MAX_JOURNALED_DEVICES`."""
        self._last_journal_id = 0
        """Id of the last journal entry whose readings are applied to the states and roll-ups in memory."""
        self._unfinished_flush: _Flush | None = None
        self._flushed_at = now()
        self._startup_clock: StartupClock | None = None
        """Check of this machine's clock, None once trusted: at the start it was days behind stored states."""
        self._write_lock = asyncio.Lock()
        """Held from a write until readers of samples see the written rows, so rows appear in write order."""
        self._problems: dict[str, ReadinessProblem] = {}
        """Current failures by the name of the background task that failed."""
        self.counters = IngestCounters()
        self._subscribers = SubscriberList(self.counters)

    def subscribe(self, subscriber: CommitSubscriber) -> None:
        """Register a subscriber for all batches that are committed from now on."""
        self._subscribers.add(subscriber)

    async def restore(self) -> None:
        """Apply the journal of readings that the previous process left, and check this machine's clock."""
        now = self._now()
        newest_state_time = await self._database.read(states.find_newest_state_time) or now
        startup_clock = StartupClock(newest_state_time, now)
        if startup_clock.is_trusted(now):
            await self._database.write(states.limit_state_times, now)
        else:
            self._startup_clock = startup_clock
            _log.warning(
                "the clock of this machine (%s) is days behind the newest stored state (%s). Set the clock,"
                " for example by NTP. Until then, device states do not change. If the clock shows a plausible"
                " year, it is trusted after 10 minutes.",
                format_millis(now),
                format_millis(newest_state_time),
            )
        if self._admission is not None:
            await self._admission.reload_claimed_gateways(self._database)
        last_id = 0
        while (entry := await self._database.read(store.load_next_journal_entry, last_id)) is not None:
            last_id = entry.id
            batch = ParsedBatch(self._now())
            batch.readings += entry.readings
            self._apply_committed(batch, entry.id)

    async def commit(self, batch: ReportBatch) -> None:
        """Parse a batch of MQTT messages, and write its reports to the database.

        Raise DatabaseUnavailable if nothing was stored. The caller must then commit the batch again.
        """
        with self._commit_timer.measure(batch.received_at):
            await self._wait_for_capacity()
            try:
                await self._commit_acceptable_reports(batch)
            except DBAPIError as exc:  # an unknown failure must not lose reports: they are sent again
                raise DatabaseUnavailable(
                    f"the database reported an error: {_describe_error(exc)}", classify_error(exc)
                ) from exc

    @property
    def problem(self) -> ReadinessProblem | None:
        """Current failure of a background task, or None. A failure to write a batch is raised by `commit`."""
        return next((self._problems[name] for name in sorted(self._problems)), None)

    async def run(self) -> None:
        """Write device states from memory regularly and maintain the sample store until canceled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_flushes(), name="ingest.flush")
            tasks.create_task(
                self._run_maintenance(self._samples.ensure_capacity), name="ingest.ensure_capacity"
            )
            tasks.create_task(self._run_maintenance(self._samples.maintain), name="ingest.maintain")

    async def flush(self) -> None:
        """Retry an unfinished flush. Then write device states in memory, and roll-ups of ended minutes."""
        # The lock excludes writes of batches: meanwhile, everything in the journal is also in memory.
        async with self._write_lock:
            if self._unfinished_flush is not None:
                await self._commit_flush(self._unfinished_flush)
            now = self._now()
            rows = self._rollups.close_ended_minutes(now)
            journal_before = self._rollups.find_oldest_journal_id(self._last_journal_id + 1)
            parts = self._subscribers.prepare_flush(self._pending_states, now)
            must_cap_times, self._flushed_at = self._check_clock_changes(now), now
            pending_states, self._pending_states = self._pending_states, {}
            self._unfinished_flush = _Flush(pending_states, rows, journal_before, parts, must_cap_times)
            await self._commit_flush(self._unfinished_flush)

    async def _run_flushes(self) -> None:
        """Call `flush` every few seconds, less often if many device states changed. Retry after failures."""
        polls = 0
        while True:
            await asyncio.sleep(self._timings.poll_seconds)
            polls += 1
            if polls < min(
                max(_MIN_FLUSH_POLLS, len(self._pending_states) // _STATES_PER_POLL), _MAX_FLUSH_POLLS
            ):
                continue
            polls = 0
            try:
                if self._admission is not None:
                    await self._admission.reload_claimed_gateways(self._database)
                await self.flush()
            except (DatabaseUnavailable, DBAPIError) as exc:
                detail = f"device states cannot be written: {_describe_error(exc)}"
                self._problems["flush"] = ReadinessProblem(classify_error(exc), detail)
                _log.error("%s; they are kept in memory until a later write succeeds", detail)
            else:
                self._problems.pop("flush", None)

    async def _run_maintenance(self, work: Callable[[int], Awaitable[None]]) -> None:
        """Call a maintenance function of the sample store regularly, with longer pauses after failures."""
        pause = self._timings.poll_seconds
        while True:
            await asyncio.sleep(pause)
            try:
                await work(self._now())
            except (DatabaseUnavailable, DBAPIError, OSError, sqlite3.Error) as exc:
                detail = f"maintenance of the sample store failed: {_describe_error(exc)}"
                self._problems[work.__name__] = ReadinessProblem(classify_error(exc), detail)
                _log.error("%s; no samples are lost; maintenance will be retried", detail)
                is_temporary = isinstance(exc, DatabaseUnavailable)  # a server comes back without an operator
                pause = (
                    self._timings.poll_seconds
                    if is_temporary
                    else min(2 * pause, self._timings.max_backoff_seconds)
                )
            else:
                self._problems.pop(work.__name__, None)
                pause = self._timings.poll_seconds

    # Internals

    async def _wait_for_capacity(self) -> None:
        """Wait while the sample store is full. Raise DatabaseUnavailable after `capacity_timeout_seconds`."""
        try:
            async with asyncio.timeout(self._timings.capacity_timeout_seconds):
                await self._samples.wait_for_capacity()
        except TimeoutError:
            if (problem := self.problem) is not None:
                raise DatabaseUnavailable(problem.detail, problem.code) from None
            raise DatabaseUnavailable(
                "the sample store is full: samples are not flushed fast enough"
            ) from None

    async def _parse_messages(self, messages: Sequence[Publish]) -> ParsedBatch:
        """Parse MQTT messages in slices, so that other tasks of the event loop can run in between."""
        parsed = ParsedBatch(self._now(), self._acking_gateways, self._clock_shifts, self._is_shift_confirmed)
        for start in range(0, len(messages), _MESSAGES_PER_SLICE):
            if start:
                await asyncio.sleep(0)
            self._parser.parse(messages[start : start + _MESSAGES_PER_SLICE], parsed)
        if self._admission is not None and await self._admission.recheck_unclaimed_gateways(
            parsed.unclaimed_gateways, self._database
        ):
            return await self._parse_messages(messages)
        return parsed

    async def _commit_acceptable_reports(self, batch: ReportBatch) -> None:
        """Commit a batch. If the database refuses a report, store that report as rejected instead."""
        try:
            await self._commit_parsed_batch(await self._parse_messages(batch.messages), batch)
        except _DATABASE_REJECTIONS as exc:
            _log.error(
                "a batch of reports cannot be stored (%s); searching for the report that causes it",
                type(exc.orig).__name__,
            )
            rejects = await self._find_unacceptable_messages(batch.messages)
            parsed = await self._parse_messages(
                [message for message in batch.messages if id(message) not in rejects]
            )
            parsed.rejects += rejects.values()
            await self._commit_parsed_batch(parsed, batch)

    async def _find_unacceptable_messages(self, messages: Sequence[Publish]) -> dict[int, RejectedReport]:
        """Find by bisection the messages that the database refuses. Return their rejects by `id(message)`.

        Every trial is rolled back, so nothing is written. Keys are object ids because messages may be equal.
        """
        parsed = await self._parse_messages(messages)
        try:
            async with self._write_lock:
                await self._database.write(self._write_and_roll_back, parsed)
        except _TrialRollback:
            return {}
        except _DATABASE_REJECTIONS as exc:
            if len(messages) == 1:
                reason = UnstorableReport("report", f"refused by the database: {type(exc.orig).__name__}")
                return {id(messages[0]): build_reject(messages[0], reason, parsed.now)}
        half = len(messages) // 2
        return await self._find_unacceptable_messages(
            messages[:half]
        ) | await self._find_unacceptable_messages(messages[half:])

    async def _commit_parsed_batch(self, parsed: ParsedBatch, batch: ReportBatch) -> None:
        """Write a parsed batch, update the state in memory, and pass the batch to the subscribers."""
        recorded_rejects = self._reject_quota.admit(parsed.rejects, parsed.now)
        new_devices = self._journal_new_devices(parsed)
        async with self._write_lock:
            commit_ids = await self._database.write(self._write_batch, parsed, batch, recorded_rejects)
            self._samples.publish_committed(commit_ids.samples, parsed.rows)
        self._reject_quota.charge(recorded_rejects, parsed.now)
        self._apply_committed(parsed, commit_ids.readings)
        if len(self._journaled_devices) > _MAX_JOURNALED_DEVICES:
            self._journaled_devices.clear()
        self._journaled_devices |= new_devices
        self.counters.record_commit(parsed, time.monotonic() - batch.received_at)
        if self._admission is not None:
            self._admission.claimed |= parsed.new_gateways
        self._subscribers.on_commit(parsed)

    def _write_batch(
        self,
        connection: Connection,
        parsed: ParsedBatch,
        batch: ReportBatch,
        rejects: Sequence[RejectedReport],
    ) -> _CommitIds:
        """Write a parsed batch and the changes that came with its messages in one transaction."""
        self._check_ownership(connection)
        if batch.has_changes:
            batch.write_changes(connection)
        sample_batch = self._samples.write(connection, parsed.rows, parsed.now)
        return _CommitIds(sample_batch, store.insert_batch(connection, parsed, rejects))

    def _write_and_roll_back(self, connection: Connection, parsed: ParsedBatch) -> None:
        """Write a parsed batch as a trial. Raise `_TrialRollback` to roll back if the database accepts it."""
        self._samples.write(connection, parsed.rows, parsed.now)
        store.insert_batch(connection, parsed, parsed.rejects)
        raise _TrialRollback

    def _journal_new_devices(self, parsed: ParsedBatch) -> set[int]:
        """Add a reading to the batch for each device that is not in the journal yet. Return these devices.

        A new device is only in memory until the next flush. Without the reading, a crash would lose the
        device, and its stored samples could not be queried.
        """
        new_devices = parsed.rows.keys() - self._journaled_devices
        for device in new_devices:
            rows = parsed.rows[device]
            plausible_row = next(
                (row for row in rows if (extras := row[ROW_EXTRAS]) is None or extras.has_plausible_time),
                None,
            )
            has_plausible = plausible_row is not None
            kind = ReadingKind.FIRST_SAMPLE if has_plausible else ReadingKind.FIRST_SAMPLE_IMPLAUSIBLE
            sample = StoredSample(*(plausible_row or rows[0]))
            shift = 0 if sample.more is None else sample.more.shift or 0
            at = min(sample.time + shift, parsed.now)
            parsed.readings.append((kind, device, sample.gateway, at, None, 0, 0))
        return new_devices

    def _apply_committed(self, parsed: ParsedBatch, journal_id: int | None) -> None:
        """Update the device states and roll-ups in memory by a batch that was committed."""
        apply_samples(self._pending_states, parsed.rows, parsed.now)
        apply_readings(self._pending_states, parsed.readings, parsed.now)
        if journal_id is not None:
            self._last_journal_id = journal_id
            self._rollups.add(journal_id, parsed.readings, parsed.now)

    def _check_ownership(self, connection: Connection) -> None:
        """Raise UnusableDatabase if another Meshfleet process has taken over the database."""
        if self._owner is not None:
            check_ownership(connection, self._owner)

    async def _commit_flush(self, flush: _Flush) -> None:
        """Write a flush, show its samples to readers, and notify the subscribers."""
        sample_batch = await self._database.write(self._write_flush, flush)
        self._samples.publish_committed(sample_batch, flush.rows)
        self._rollups.drop_closed_minutes(flush.rows)
        self._unfinished_flush = None
        self._subscribers.on_flushed(flush.parts)

    def _check_clock_changes(self, now: int) -> bool:
        """Return whether times in stored device states may be in the future.

        That is so if the clock of this machine was set back since the last flush, or has just become trusted.
        """
        if self._startup_clock is None:
            return now < self._flushed_at - _CLOCK_SET_BACK_MS
        if not self._startup_clock.is_trusted(now):
            return False
        self._startup_clock = None
        _log.warning(
            "the clock of this machine (%s) is trusted from now on. Stored device states with a later time"
            " are set to this time.",
            format_millis(now),
        )
        return True

    def _write_flush(self, connection: Connection, flush: _Flush) -> int:
        """Write a flush in one transaction. Return the id that its samples got in the sample store."""
        self._check_ownership(connection)
        added_devices = store.upsert_devices(connection, flush.states, self._now())
        if flush.must_cap_times:
            states.limit_state_times(connection, self._now())
        for part in flush.parts:
            part.write(connection, added_devices)
        store.delete_journal_entries(connection, flush.journal_before)
        store.delete_old_rejects(connection)
        return self._samples.write(connection, flush.rows, self._now())


def _describe_error(exc: Exception) -> str:
    """Describe a database error without the SQL statement and the statement's parameters."""
    return type(exc.orig).__name__ if isinstance(exc, DBAPIError) else str(exc)
