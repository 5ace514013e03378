"""Runs jobs: looks at clocks, hears what is reported, lets executions begin, and sends their requests.

All that it knows is in the database. It can be killed at any point, and several can run at once: each takes
what no other has taken, and goes on with what one that has ended left behind.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.errors import FleetError
from meshfleet.rest import JobState
from meshfleet.service.clock import Moment
from meshfleet.service.jobs.execution import downtime, execution_events, job_scheduler, outbox
from meshfleet.service.jobs.execution.queries import EXECUTIONS_PER_TRANSACTION, JobSpecCache
from meshfleet.service.jobs.execution.request_sender import RESPONSE_TIMEOUT_S, JobRequestSender
from meshfleet.service.jobs.notifications import ignore_changes
from meshfleet.service.jobs.planning import conflicts, job_drafts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from meshfleet.db import Database
    from meshfleet.service.clock import Now, SteadyClock
    from meshfleet.service.jobs.execution.execution_events import RequestResult
    from meshfleet.service.jobs.notifications import ChangeListener, ExecutionChange
    from meshfleet.service.requests.gateway_ranking import SelectGateways
    from meshfleet.service.requests.rpc import RpcClient

_log = logging.getLogger(__name__)

_ROUND_S: Final = 0.5
"""Seconds between two looks at jobs and clocks."""

_IDLE_RECHECK_MS: Final = 5000
"""Milliseconds between two looks at a job that waits for something else."""

_YIELD_S: Final = 0.005
"""Seconds between two transactions when there is much to do: others want to write, too."""

_IDLE_SLEEP_S: Final = 2.0
"""Seconds between two looks while there is nothing to do."""

ABANDONED_CHECK_INTERVAL_S: Final = 5.0
"""Seconds between two looks for what others left behind."""

_CLEANUP_INTERVAL_MS: Final = 3_600_000
"""Milliseconds between two looks for what was broken off."""

_DRAFT_EXPIRY_MS: Final = 3_600_000
"""Milliseconds after which nobody makes a job any more that is not there."""

_LEASE_MARGIN_MS: Final = 30_000
"""Milliseconds that an answer has on its way into the database."""

_RESULT_WINDOW_S: Final = 0.03
"""Seconds for which answers are gathered."""


class JobRunner:
    """Runs all jobs of a database, perhaps together with others."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        rpc: RpcClient,
        now: Now,
        *,
        steady: SteadyClock,
        notify: ChangeListener = ignore_changes,
        select_gateways: SelectGateways | None = None,
        abandoned_check_interval: float = ABANDONED_CHECK_INTERVAL_S,
    ) -> None:
        """`tell` hears which jobs and which executions have changed.

        `select` chooses gateways; None: each device is asked through the gateway that it belongs to.
        So many seconds pass between two looks at requests that others have left behind: `pause`.
        """
        self._abandoned_check_interval = abandoned_check_interval
        self._database = database
        self._sender = JobRequestSender(rpc)
        self._wall = now
        self._steady = steady
        self._notify = notify
        self._select_gateways = select_gateways
        self._spec_cache = JobSpecCache()
        self._has_work = asyncio.Event()
        self._has_requests = asyncio.Event()
        self._has_cleanup = asyncio.Event()
        self._is_failing = False
        self._alive_at: int | None = None
        """When this program last noted that jobs are run."""
        self._backlog = 0
        """How much was left to do when the time of a round was over."""
        self._idle_until: dict[int, int] = {}
        """Jobs that have nothing to do, and until when they are not looked at unless something happens."""

    def wake(self) -> None:
        """Somebody made or changed a job."""
        self._idle_until.clear()
        self._has_work.set()
        self._has_cleanup.set()

    async def run(self) -> None:
        """Run until cancelled."""
        if self._database.is_sqlite:  # there is no other program, so these were left behind by one before us
            await self._database.write(outbox.release_leases)
        while not await self._try(self._record_alive):  # noqa: ASYNC110 # the database may be away
            await asyncio.sleep(_ROUND_S)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._run_rounds(), name="jobs.rounds")
                tasks.create_task(self._run_sender(), name="jobs.post")
                tasks.create_task(self._run_result_writer(), name="jobs.replies")
                tasks.create_task(self._run_abandoned_check(), name="jobs.left")
                tasks.create_task(self._run_cleanup(), name="jobs.tidy")
        finally:
            await self._sender.close()

    # Rounds

    async def _run_rounds(self) -> None:
        while True:
            pause = _IDLE_SLEEP_S
            if await self._try(self._run_round):
                pause = _ROUND_S if self._backlog == 0 else _YIELD_S
            await self._sleep(pause)

    async def _run_round(self) -> bool:
        """Do what there is to do, for a while; whether there are jobs at all."""
        await self._record_alive()
        jobs = await self._load_open_jobs()
        # Another program may have stepped a canceled job, and a start may be taken while its job is canceled.
        self._sender.set_canceled_jobs(job for job, state in jobs.items() if state is JobState.CANCELING)
        self._idle_until = {job: until for job, until in self._idle_until.items() if job in jobs}
        until = self._steady() + int(_ROUND_S * 1000)
        left, more = list(jobs), [bool(jobs)]
        while (left or any(more)) and self._steady() < until:
            more = [await self._advance_due(), await self._apply_news()]
            left = [job for job in left if not self._is_idle(job) and await self._try_advance_job(job)]
            await asyncio.sleep(_YIELD_S if left or any(more) else 0)
        self._backlog = len(left) + sum(more) if jobs else 0
        return bool(jobs)

    async def _try_advance_job(self, job: int) -> bool:
        return await self._try(lambda: self._advance_job(job))

    def _is_idle(self, job: int) -> bool:
        return self._steady() < self._idle_until.get(job, 0)

    async def _load_open_jobs(self) -> dict[int, JobState]:
        found: dict[int, JobState] = {}
        while some := await self._database.read(job_scheduler.list_open_jobs, max(found, default=0)):
            found |= some
        return found

    async def _record_alive(self) -> bool:
        """Note that jobs are run now; after an outage clocks go on from where they stood."""
        now = self._steady()
        if self._alive_at is None or now - self._alive_at >= downtime.ALIVE_INTERVAL_MS:
            await self._database.write(downtime.record_alive, now, self._alive_at)
            self._alive_at = now
        return True

    async def _advance_due(self) -> bool:
        await self._record_alive()
        routes = None
        if self._select_gateways is not None:
            devices = await self._database.read(execution_events.list_due_devices, self._steady())
            routes = await self._select_gateways(devices)
        done = await self._database.write(
            execution_events.advance_due_executions, self._spec_cache, self._moment, routes
        )
        self._publish_changes(done.changed, done.request_count)
        return done.has_more

    async def _apply_news(self) -> bool:
        devices = await self._database.read(execution_events.list_devices_with_news)
        if not devices:
            return False
        routes = None if self._select_gateways is None else await self._select_gateways(devices)
        done = await self._database.write(
            execution_events.apply_registry_news, self._spec_cache, devices, self._moment, routes
        )
        self._publish_changes(done.changed, done.request_count)
        return done.has_more

    async def _advance_job(self, job: int) -> bool:
        routes: Mapping[int, int | None] | None = None if self._select_gateways is None else {}
        done = await self._database.write(
            job_scheduler.advance_job, self._spec_cache, job, self._moment, routes
        )
        self._publish_changes(done.changed, done.request_count, jobs=[job] if done.is_changed else [])
        if self._select_gateways is not None and done.unrouted:
            routes = await self._select_gateways(done.unrouted)
            done = await self._database.write(
                job_scheduler.advance_job, self._spec_cache, job, self._moment, routes
            )
            self._publish_changes(done.changed, done.request_count, jobs=[job] if done.is_changed else [])
        if done.is_canceling:
            self._sender.drop_starts(job)
        if done.is_idle:
            self._idle_until[job] = self._steady() + _IDLE_RECHECK_MS
        return done.has_more or bool(done.unrouted)

    @property
    def _moment(self) -> Moment:
        return Moment(self._steady(), self._wall())

    def _publish_changes(
        self, changed: list[ExecutionChange], request_count: int, jobs: list[int] | None = None
    ) -> None:
        if request_count:
            self._has_requests.set()
        for job in {each.job for each in changed}:
            self._idle_until.pop(job, None)
        if changed or jobs:
            self._notify(jobs or [], changed)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._has_work.wait()
        except TimeoutError:
            return
        self._has_work.clear()

    # Letters

    async def _run_sender(self) -> None:
        while True:
            while await self._try(self._send_batch):  # noqa: ASYNC110 # others write meanwhile
                await asyncio.sleep(_YIELD_S)
            try:
                async with asyncio.timeout(_IDLE_SLEEP_S):
                    await self._has_requests.wait()
            except TimeoutError:
                continue
            self._has_requests.clear()

    async def _send_batch(self) -> bool:
        """Send letters, if there is room; whether there may be more."""
        most = min(outbox.REQUESTS_PER_BATCH, self._sender.free_slots)
        if not most:
            return True
        until = self._steady() + int(RESPONSE_TIMEOUT_S * 1000) + _LEASE_MARGIN_MS
        taken = await self._database.write(
            outbox.lease_requests, most, self._sender.in_flight_by_gateway, until=until
        )
        for letter in taken.requests:
            self._sender.send(letter, lambda: self._steady() < until)
        return taken.has_more

    async def _run_result_writer(self) -> None:
        while True:
            replies = [await self._sender.results.get()]
            await asyncio.sleep(_RESULT_WINDOW_S)
            while not self._sender.results.empty() and len(replies) < EXECUTIONS_PER_TRANSACTION:
                replies.append(self._sender.results.get_nowait())
            await self._try(lambda replies=replies: self._apply_results(replies))  # type: ignore[misc] # as they are now
            self._sender.mark_processed(replies)
            self._has_requests.set()  # where these came from there is room for others

    async def _run_abandoned_check(self) -> None:
        while True:
            await self._try(self._apply_abandoned)
            await asyncio.sleep(self._abandoned_check_interval)

    async def _run_cleanup(self) -> None:
        """Finish what was broken off while jobs were made, and remove the rows of those that are gone."""
        while True:
            await self._try(self._resume_superseding)
            until = self._steady() + _CLEANUP_INTERVAL_MS
            while (left := until - self._steady()) > 0:
                await self._try(self._sweep_drafts)
                with suppress(TimeoutError):
                    async with asyncio.timeout(left / 1000):
                        await self._has_cleanup.wait()
                self._has_cleanup.clear()

    async def _resume_superseding(self) -> bool:
        await conflicts.resume_superseding(self._database, self._wall(), self._notify)
        return True

    async def _sweep_drafts(self) -> bool:
        """Remove the rows of deleted jobs and of drafts that were given up, in chunks."""
        while await self._database.write(job_drafts.sweep_drafts, self._wall() - _DRAFT_EXPIRY_MS):  # noqa: ASYNC110 # as above
            await asyncio.sleep(_YIELD_S)
        return True

    async def _apply_abandoned(self) -> bool:
        """Take over requests whose senders have ended.

        A suspension of the machine ends leases, but not our requests: their timeouts stand still meanwhile.
        """
        ours = self._sender.open_request_ids
        found = await self._database.read(outbox.list_abandoned_requests, self._steady(), len(ours))
        left = [each for each in found if each.request_id not in ours][: outbox.REQUESTS_PER_BATCH]
        return await self._apply_results(left) if left else False

    async def _apply_results(self, results: list[RequestResult]) -> bool:
        await self._record_alive()
        routes = (
            None
            if self._select_gateways is None
            else await self._select_gateways([each.device for each in results])
        )
        done = await self._database.write(
            execution_events.apply_results, self._spec_cache, results, self._moment, routes
        )
        self._publish_changes(done.changed, done.request_count)
        if done.changed:
            self._has_work.set()
        return True

    async def _try(self, work: Callable[[], Awaitable[bool]]) -> bool:
        """Do something that needs the database; if that is away, what it was about is done later."""
        try:
            done = await work()
        except (FleetError, DBAPIError) as exc:
            if not self._is_failing:
                _log.warning("jobs cannot go on: %s", type(exc).__name__)
        except Exception:  # noqa: BLE001 # whatever it is, it must not end the service
            if not self._is_failing:
                _log.exception("jobs cannot go on, which is a defect of ours")
        else:
            self._is_failing = False
            return done
        self._is_failing = True
        await asyncio.sleep(_ROUND_S)
        return False
