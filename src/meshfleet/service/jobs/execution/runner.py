"""Job runner: advances due executions, applies registry changes, dispatches executions and sends requests.

The state of all jobs is in the database, so a runner can be killed at any point, and several processes can
each have one. Each locks rows that no other runner has locked, and continues the work of ended processes.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.errors import FleetError
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
"""Seconds between two rounds, and maximum seconds of a round. A round advances all open jobs."""

_IDLE_RECHECK_MS: Final = 5000
"""Milliseconds between two checks of an idle job."""

_YIELD_S: Final = 0.005
"""Seconds between two transactions while there is more work, so that other writers get their turn."""

_IDLE_SLEEP_S: Final = 2.0
"""Seconds between two rounds while there are no open jobs."""

ABANDONED_CHECK_INTERVAL_S: Final = 5.0
"""Seconds between two checks for outbox requests whose process has ended."""

_CLEANUP_INTERVAL_MS: Final = 3_600_000
"""Milliseconds between two cleanups of job drafts and of takeovers that an ended process left unfinished."""

_DRAFT_EXPIRY_MS: Final = 3_600_000
"""Milliseconds after which an unpublished job draft counts as abandoned."""

_LEASE_MARGIN_MS: Final = 30_000
"""Milliseconds that a lease lasts longer than the response timeout: time to apply the result."""

_RESULT_WINDOW_S: Final = 0.03
"""Seconds for which results of requests are collected to apply them in one transaction."""


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
        """Create a runner; `run` starts it.

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
        self._is_failing = False
        self._alive_at: int | None = None
        """Time at which this process last recorded that it is running jobs; None before the first time."""
        self._backlog = 0
        """Amount of work that remained after the last round; 0 means that the next round can wait."""
        self._idle_until: dict[int, int] = {}
        """Time until which each idle job is not checked unless one of its executions changes."""

    def wake(self) -> None:
        """Wake the runner after a job was created or changed."""
        self._idle_until.clear()
        self._has_work.set()
        self._has_cleanup.set()

    async def run(self) -> None:
        """Run jobs until canceled."""
        if self._database.is_sqlite:  # there is no other process, so all leases are left from an earlier one
            await self._database.write(outbox.release_leases)
        while not await self._try(self._record_alive):  # noqa: ASYNC110 # retry until the database is available
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
        while True:
            delay = _IDLE_SLEEP_S
            if await self._try(self._run_round):
                delay = _ROUND_S if self._backlog == 0 else _YIELD_S
            await _wait_for(self._has_work, delay)

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
            has_more = [await self._advance_due(), await self._apply_registry_changes()]
            busy_jobs = [
                job
                for job in busy_jobs
                if not self._is_idle(job) and await self._try(partial(self._advance_job, job))
            ]
            await asyncio.sleep(_YIELD_S if busy_jobs or any(has_more) else 0)
        self._backlog = len(busy_jobs) + sum(has_more) if jobs else 0
        return bool(jobs)

    def _is_idle(self, job: int) -> bool:
        return self._monotonic() < self._idle_until.get(job, 0)

    async def _load_open_jobs(self) -> dict[int, JobState]:
        jobs: dict[int, JobState] = {}
        while page := await self._database.read(job_scheduler.list_open_jobs, max(jobs, default=0)):
            jobs |= page
        return jobs

    async def _record_alive(self) -> bool:
        """Record every few seconds that jobs are running; after downtime, move the timers by its length."""
        now = self._monotonic()
        if self._alive_at is None or now - self._alive_at >= downtime.ALIVE_INTERVAL_MS:
            await self._database.write(downtime.record_alive, now, self._alive_at)
            self._alive_at = now
        return True

    async def _advance_due(self) -> bool:
        await self._record_alive()
        routes = None
        if self._select_gateways is not None:
            devices = await self._database.read(execution_events.list_due_devices, self._monotonic())
            routes = await self._select_gateways(devices)
        result = await self._database.write(
            execution_events.advance_due_executions, self._spec_cache, self._moment, routes
        )
        self._publish_changes(result)
        return result.has_more

    async def _apply_registry_changes(self) -> bool:
        devices = await self._database.read(execution_events.list_changed_devices)
        if not devices:
            return False
        routes = await self._select_routes(devices)
        result = await self._database.write(
            execution_events.apply_registry_changes, self._spec_cache, devices, self._moment, routes
        )
        self._publish_changes(result)
        return result.has_more

    async def _advance_job(self, job: int) -> bool:
        result = await self._write_advance(job, None if self._select_gateways is None else {})
        if result.unrouted:
            result = await self._write_advance(job, await self._select_routes(result.unrouted))
        if result.is_canceling:
            self._sender.drop_starts(job)
        if result.is_idle:
            self._idle_until[job] = self._monotonic() + _IDLE_RECHECK_MS
        return result.has_more or bool(result.unrouted)

    async def _write_advance(self, job: int, routes: GatewayRoutes | None) -> JobAdvanceResult:
        result = await self._database.write(
            job_scheduler.advance_job, self._spec_cache, job, self._moment, routes
        )
        self._publish_changes(result, jobs=[job] if result.is_changed else [])
        return result

    async def _select_routes(self, devices: Sequence[int]) -> GatewayRoutes | None:
        return None if self._select_gateways is None else await self._select_gateways(devices)

    @property
    def _moment(self) -> ClockReading:
        return ClockReading(self._monotonic(), self._wall())

    def _publish_changes(self, result: AdvanceResult | JobAdvanceResult, jobs: Sequence[int] = ()) -> None:
        if result.request_count:
            self._has_requests.set()
        for job in {each.job for each in result.changed}:
            self._idle_until.pop(job, None)
        if result.changed or jobs:
            self._notify(jobs, result.changed)

    # Requests

    async def _run_sender(self) -> None:
        while True:
            while await self._try(self._send_batch):  # noqa: ASYNC110 # lets other writers run between batches
                await asyncio.sleep(_YIELD_S)
            await _wait_for(self._has_requests, _IDLE_SLEEP_S)

    async def _send_batch(self) -> bool:
        """Lease and send a batch of outbox requests. Return whether there may be more."""
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
        while True:
            results = [await self._sender.results.get()]
            await asyncio.sleep(_RESULT_WINDOW_S)
            while not self._sender.results.empty() and len(results) < EXECUTIONS_PER_TRANSACTION:
                results.append(self._sender.results.get_nowait())
            await self._try(partial(self._apply_results, results))
            self._sender.mark_processed(results)
            self._has_requests.set()  # the completed requests have freed slots for others

    async def _run_abandoned_check(self) -> None:
        while True:
            await self._try(self._apply_abandoned)
            await asyncio.sleep(self._abandoned_check_interval)

    async def _run_cleanup(self) -> None:
        """Complete takeovers of ended processes, and remove the rows of deleted jobs and abandoned drafts."""
        while True:
            await self._try(self._resume_superseding)
            until = self._monotonic() + _CLEANUP_INTERVAL_MS
            while (remaining := until - self._monotonic()) > 0:
                await self._try(self._sweep_drafts)
                await _wait_for(self._has_cleanup, remaining / 1000)

    async def _resume_superseding(self) -> bool:
        await conflicts.resume_superseding(self._database, self._wall(), self._notify)
        return True

    async def _sweep_drafts(self) -> bool:
        """Remove the rows of deleted jobs and of abandoned drafts, in chunks."""
        while await self._database.write(job_drafts.sweep_drafts, self._wall() - _DRAFT_EXPIRY_MS):  # noqa: ASYNC110 # lets other writers run between chunks
            await asyncio.sleep(_YIELD_S)
        return True

    async def _apply_abandoned(self) -> bool:
        """Apply the result "unanswered" to requests whose process has ended, found by their expired leases.

        After the machine was suspended, leases of this process may have expired, too. Its requests are left
        out, because they are still in flight: the event loop that times them out was suspended as well.
        """
        own_ids = self._sender.open_request_ids
        results = await self._database.read(outbox.list_abandoned_requests, self._monotonic(), len(own_ids))
        abandoned = [each for each in results if each.request_id not in own_ids][: outbox.REQUESTS_PER_BATCH]
        return await self._apply_results(abandoned) if abandoned else False

    async def _apply_results(self, results: list[RequestResult]) -> bool:
        await self._record_alive()
        routes = await self._select_routes([each.device for each in results])
        result = await self._database.write(
            execution_events.apply_results, self._spec_cache, results, self._moment, routes
        )
        self._publish_changes(result)
        if result.changed:
            self._has_work.set()
        return True

    async def _try(self, work: Callable[[], Awaitable[bool]]) -> bool:
        """Await `work` and return its result. If it raises, log the first failure, wait, and return False."""
        try:
            result = await work()
        except (FleetError, DBAPIError) as exc:
            if not self._is_failing:
                _log.warning("jobs cannot continue, retrying: %s", type(exc).__name__)
        except Exception:  # noqa: BLE001 # no error of a job may end the service
            if not self._is_failing:
                _log.exception("jobs cannot continue, retrying: internal error")
        else:
            self._is_failing = False
            return result
        self._is_failing = True
        await asyncio.sleep(_ROUND_S)
        return False


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, and clear it; or wait for at most `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
    event.clear()
