"""Job runner: advances due executions, applies registry changes, dispatches executions and sends requests.

The state of all jobs is in the database, so a runner can be killed at any point. Several processes can each
have a runner: a runner skips rows that another one has locked, and continues the work of ended processes.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.db.database import describe_driver_error
from meshfleet.errors import FleetError
from meshfleet.mqtt.broker.log_limiter import LogLimiter
from meshfleet.rest.jobs import JobState
from meshfleet.service.clock import ClockReading
from meshfleet.service.jobs.execution import downtime, execution_events, job_scheduler, outbox
from meshfleet.service.jobs.execution.queries import EXECUTIONS_PER_TRANSACTION, JobSpecCache
from meshfleet.service.jobs.execution.request_sender import RESPONSE_TIMEOUT_S, JobRequestSender
from meshfleet.service.jobs.notifications import ignore_changes
from meshfleet.service.jobs.planning import conflicts, job_drafts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from meshfleet.db import Database
    from meshfleet.service.clock import MonotonicClock, Now
    from meshfleet.service.jobs.execution.execution_events import AdvanceResult, RequestResult
    from meshfleet.service.jobs.execution.job_scheduler import JobAdvanceResult
    from meshfleet.service.jobs.execution.queries import GatewayRoutes
    from meshfleet.service.jobs.notifications import ChangeListener
    from meshfleet.service.requests.gateway_ranking import SelectGateways
    from meshfleet.service.requests.rpc import RpcClient

_log = logging.getLogger(__name__)

_ROUND_S: Final = 0.5
"""Seconds between two rounds, and maximum duration of a round. A round advances all open jobs."""

_IDLE_RECHECK_MS: Final = 5000
"""Milliseconds between two checks of an idle job."""

_YIELD_S: Final = 0.005
"""Pause between two transactions in seconds, so that other database writers get their turn."""

_IDLE_SLEEP_S: Final = 2.0
"""Seconds between two rounds while there are no open jobs."""

ABANDONED_CHECK_INTERVAL_S: Final = 5.0
"""Seconds between two checks for outbox requests that an ended process has leased."""

_CLEANUP_INTERVAL_MS: Final = 3_600_000
"""Milliseconds between two cleanups of abandoned job drafts and of takeovers of devices by newer jobs."""

_DRAFT_EXPIRY_MS: Final = 3_600_000
"""Age in milliseconds at which an unpublished job draft counts as abandoned."""

_LEASE_MARGIN_MS: Final = 30_000
"""Milliseconds by which the lease of a request exceeds the response timeout: time to apply the result."""

_RESULT_WINDOW_S: Final = 0.03
"""Seconds for which results of requests are collected before one transaction applies them."""


class JobRunner:
    """Runs all jobs of a database, possibly together with runners in other processes."""

    def __init__(  # noqa: PLR0913 # the last four are keyword-only
        self,
        database: Database,
        rpc: RpcClient,
        now: Now,
        *,
        monotonic: MonotonicClock,
        notify: ChangeListener = ignore_changes,
        select_gateways: SelectGateways | None = None,
        abandoned_check_interval: float = ABANDONED_CHECK_INTERVAL_S,
    ) -> None:
        """Create a job runner. Call `run` to start it.

        `notify` is called with changed jobs and executions. `select_gateways` selects the gateway for
        requests to each device; None means that each device is reached through its own gateway.
        `abandoned_check_interval` is in seconds.
        """
        self._abandoned_check_interval = abandoned_check_interval
        self._database = database
        self._sender = JobRequestSender(rpc)
        self._wall = now
        self._monotonic = monotonic
        self._notify = notify
        self._select_gateways = select_gateways
        self._spec_cache = JobSpecCache()
        self._has_work = asyncio.Event()
        self._has_requests = asyncio.Event()
        self._has_cleanup = asyncio.Event()
        self._log_limiter = LogLimiter()
        self._alive_at: int | None = None
        """Monotonic time of the last call of `downtime.record_alive`; None before the first call."""
        self._backlog = 0
        """Number of jobs and kinds of events that were not finished in the last round."""
        self._idle_until: dict[int, int] = {}
        """Monotonic time of the next check of each idle job. A changed execution ends the idle time early."""

    def wake(self) -> None:
        """Wake the runner after a job was created or changed."""
        self._idle_until.clear()
        self._has_work.set()
        self._has_cleanup.set()

    async def run(self) -> None:
        """Run all jobs until this task is canceled."""
        if self._database.is_sqlite:  # there is no other process, so all leases are left from an earlier one
            await self._database.write(outbox.expire_leases)
        while not await self._run_or_log_error(self._record_alive):  # noqa: ASYNC110 # retry until the database is available
            await asyncio.sleep(_ROUND_S)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._run_rounds(), name="jobs.rounds")
                tasks.create_task(self._run_sender(), name="jobs.sender")
                tasks.create_task(self._run_result_writer(), name="jobs.results")
                tasks.create_task(self._run_abandoned_check(), name="jobs.abandoned")
                tasks.create_task(self._run_cleanup(), name="jobs.cleanup")
        finally:
            await self._sender.close()

    # Rounds

    async def _run_rounds(self) -> None:
        """Advance all open jobs again and again until canceled, with a pause after each round."""
        while True:
            delay = _IDLE_SLEEP_S
            if await self._run_or_log_error(self._run_round):
                delay = _ROUND_S if self._backlog == 0 else _YIELD_S
            await _wait_for_event(self._has_work, delay)

    async def _run_round(self) -> bool:
        """Advance executions and jobs for at most `_ROUND_S` seconds. Return whether there are open jobs."""
        await self._record_alive()
        jobs = await self._load_open_jobs()
        # Another process may have advanced a canceled job, and starts may be leased while it is canceled.
        self._sender.set_canceled_jobs(job for job, state in jobs.items() if state is JobState.CANCELING)
        self._idle_until = {job: until for job, until in self._idle_until.items() if job in jobs}
        until = self._monotonic() + int(_ROUND_S * 1000)
        busy_jobs, has_more = list(jobs), [bool(jobs)]
        while (busy_jobs or any(has_more)) and self._monotonic() < until:
            has_more = [await self._advance_due_executions(), await self._apply_registry_changes()]
            busy_jobs = [
                job
                for job in busy_jobs
                if not self._is_idle(job) and await self._run_or_log_error(partial(self._advance_job, job))
            ]
            await asyncio.sleep(_YIELD_S if busy_jobs or any(has_more) else 0)
        self._backlog = len(busy_jobs) + sum(has_more) if jobs else 0
        return bool(jobs)

    def _is_idle(self, job: int) -> bool:
        """Return whether a job had nothing to do a short time ago, and has not changed since."""
        return self._monotonic() < self._idle_until.get(job, 0)

    async def _load_open_jobs(self) -> dict[int, JobState]:
        """Load the states of all open jobs, by job number."""
        jobs: dict[int, JobState] = {}
        while page := await self._database.read(job_scheduler.list_open_jobs, max(jobs, default=0)):
            jobs |= page
        return jobs

    async def _record_alive(self) -> bool:
        """Store every few seconds that this process runs jobs; after downtime, postpone the job timers."""
        now = self._monotonic()
        if self._alive_at is None or now - self._alive_at >= downtime.ALIVE_INTERVAL_MS:
            await self._database.write(downtime.record_alive, now, self._alive_at)
            self._alive_at = now
        return True

    async def _advance_due_executions(self) -> bool:
        """Advance active executions whose timers are due. Return whether there may be more."""
        await self._record_alive()
        routes = None
        if self._select_gateways is not None:
            devices = await self._database.read(execution_events.list_due_devices, self._monotonic())
            routes = await self._select_gateways(devices)
        result = await self._database.write(
            execution_events.advance_due_executions, self._spec_cache, self._clock_reading, routes
        )
        self._publish_changes(result)
        return result.has_more

    async def _apply_registry_changes(self) -> bool:
        """Apply changes in the device registry to active executions. Return whether there may be more."""
        devices = await self._database.read(execution_events.list_changed_devices)
        if not devices:
            return False
        routes = await self._select_routes(devices)
        result = await self._database.write(
            execution_events.apply_registry_changes, self._spec_cache, devices, self._clock_reading, routes
        )
        self._publish_changes(result)
        return result.has_more

    async def _advance_job(self, job: int) -> bool:
        """Advance a job once, and select gateways if necessary. Return whether it can go on."""
        result = await self._advance_job_once(job, None if self._select_gateways is None else {})
        if result.unrouted:
            result = await self._advance_job_once(job, await self._select_routes(result.unrouted))
        if result.is_canceling:
            self._sender.drop_start_commands(job)
        if result.is_idle:
            self._idle_until[job] = self._monotonic() + _IDLE_RECHECK_MS
        return result.has_more or bool(result.unrouted)

    async def _advance_job_once(self, job: int, routes: GatewayRoutes | None) -> JobAdvanceResult:
        """Advance a job in one transaction, and publish what changed."""
        result = await self._database.write(
            job_scheduler.advance_job, self._spec_cache, job, self._clock_reading, routes
        )
        self._publish_changes(result, jobs=[job] if result.is_changed else [])
        return result

    async def _select_routes(self, devices: Sequence[int]) -> GatewayRoutes | None:
        """Return the gateway selected for each device.

        Return None if each device is reached through its own gateway.
        """
        return None if self._select_gateways is None else await self._select_gateways(devices)

    @property
    def _clock_reading(self) -> ClockReading:
        return ClockReading(self._monotonic(), self._wall())

    def _publish_changes(self, result: AdvanceResult | JobAdvanceResult, jobs: Sequence[int] = ()) -> None:
        """Notify about changed jobs and executions, and wake the sender if there are new requests."""
        if result.request_count:
            self._has_requests.set()
        for job in {each.job for each in result.changed}:
            self._idle_until.pop(job, None)
        if result.changed or jobs:
            self._notify(jobs, result.changed)

    # Requests

    async def _run_sender(self) -> None:
        """Send outbox requests until canceled."""
        while True:
            while await self._run_or_log_error(self._send_batch):  # noqa: ASYNC110 # lets other writers run between batches
                await asyncio.sleep(_YIELD_S)
            await _wait_for_event(self._has_requests, _IDLE_SLEEP_S)

    async def _send_batch(self) -> bool:
        """Lease and send a batch of outbox requests. Return whether there may be more requests."""
        limit = min(outbox.REQUESTS_PER_BATCH, self._sender.free_slots)
        if not limit:
            return True
        until = self._monotonic() + int(RESPONSE_TIMEOUT_S * 1000) + _LEASE_MARGIN_MS
        batch = await self._database.write(
            outbox.lease_requests, limit, self._sender.in_flight_by_gateway, until=until
        )
        for request in batch.requests:
            self._sender.send(request, lambda: self._monotonic() < until)
        return batch.has_more

    async def _run_result_writer(self) -> None:
        """Apply the results of requests in batches until canceled."""
        while True:
            results = [await self._sender.results.get()]
            await asyncio.sleep(_RESULT_WINDOW_S)
            while not self._sender.results.empty() and len(results) < EXECUTIONS_PER_TRANSACTION:
                results.append(self._sender.results.get_nowait())
            await self._run_or_log_error(partial(self._apply_results, results))
            self._sender.mark_processed(results)
            self._has_requests.set()  # the completed requests have freed slots for others

    async def _run_abandoned_check(self) -> None:
        """Apply the results of requests whose process has ended, regularly until canceled."""
        while True:
            await self._run_or_log_error(self._apply_abandoned_requests)
            await asyncio.sleep(self._abandoned_check_interval)

    async def _run_cleanup(self) -> None:
        """Finish the takeovers of devices by newer jobs that an earlier process did not finish.

        Then delete the rows of deleted jobs and of abandoned drafts. Repeat both regularly until canceled.
        """
        while True:
            await self._run_or_log_error(self._finish_takeovers)
            until = self._monotonic() + _CLEANUP_INTERVAL_MS
            while (remaining := until - self._monotonic()) > 0:
                await self._run_or_log_error(self._delete_abandoned_rows)
                await _wait_for_event(self._has_cleanup, remaining / 1000)

    async def _finish_takeovers(self) -> bool:
        """Finish the takeovers of devices by newer jobs that an earlier process did not finish."""
        await conflicts.finish_takeovers(self._database, self._wall(), self._notify)
        return True

    async def _delete_abandoned_rows(self) -> bool:
        """Delete the rows of deleted jobs and of abandoned drafts, in small transactions."""
        while await self._database.write(job_drafts.delete_abandoned_rows, self._wall() - _DRAFT_EXPIRY_MS):  # noqa: ASYNC110 # lets other writers run between chunks
            await asyncio.sleep(_YIELD_S)
        return True

    async def _apply_abandoned_requests(self) -> bool:
        """Apply the result "unanswered" to requests with an expired lease, because their process has ended.

        Requests of this process are left out. Their leases may have expired while the machine was suspended,
        but the requests are still in flight: the event loop that times them out was suspended as well.
        """
        own_ids = self._sender.open_request_ids
        results = await self._database.read(outbox.list_abandoned_requests, self._monotonic(), len(own_ids))
        abandoned = [each for each in results if each.request_id not in own_ids][: outbox.REQUESTS_PER_BATCH]
        return await self._apply_results(abandoned) if abandoned else False

    async def _apply_results(self, results: list[RequestResult]) -> bool:
        """Apply the results of requests to their executions in one transaction."""
        await self._record_alive()
        routes = await self._select_routes([each.device for each in results])
        result = await self._database.write(
            execution_events.apply_results, self._spec_cache, results, self._clock_reading, routes
        )
        self._publish_changes(result)
        if result.changed:
            self._has_work.set()
        return True

    async def _run_or_log_error(self, work: Callable[[], Awaitable[bool]]) -> bool:
        """Return the result of `work()`. After an error, wait and return False.

        Each reason is logged at most once a minute. Other work may succeed between two equal errors, such as
        transactions without a change while the disk is full.
        """
        try:
            return await work()
        except (FleetError, DBAPIError) as exc:
            reason = describe_driver_error(exc)
            if self._log_limiter.count(reason):
                _log.warning("jobs cannot continue, retrying: %s", reason)
        except Exception as exc:  # noqa: BLE001 # no error of a job may end the service
            if self._log_limiter.count(repr(exc)):
                _log.exception("jobs cannot continue, retrying: internal error")
        await asyncio.sleep(_ROUND_S)
        return False


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set or `seconds` have passed. Clear the event if it was set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
    event.clear()
