"""Publishes jobs and executions as live events, in their REST representation.

Code that changes a job marks the job as changed here. The job is loaded and published once, a quarter of a
second later, however often it changed. Changes without a new state, such as the percentage of a transfer, are
not marked. To find these, unfinished jobs are polled while there are subscribers, and published if they
differ from the last published version.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import asdict, replace
from sqlalchemy.exc import DBAPIError

from meshfleet.errors import FleetError
from meshfleet.protocol.ids import DeviceId, Mac, mac_to_int, to_mac
from meshfleet.rest.jobs import Execution, ExecutionState, Job
from meshfleet.rest.live import DeletedJob, LiveExecution
from meshfleet.service.jobs.job_states import FINISHED_STATES
from meshfleet.service.jobs.views import execution_view, job_view
from meshfleet.service.jobs.views.execution_view import JobExecution
from meshfleet.service.live.event import NO_GATEWAY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.jobs.notifications import ExecutionChange
    from meshfleet.service.live.hub import EventHub

_log = logging.getLogger(__name__)

_GATHER_SECONDS: Final = 0.25
"""Seconds for which changes of jobs are collected before they are published."""

_MAX_JOBS: Final = 100
"""Maximum number of jobs that are loaded and published together."""
_MAX_EXECUTIONS: Final = 500
"""Maximum number of executions that are loaded and published together."""

_MAX_PERCENTS: Final = 20_000
"""Maximum number of firmware transfers whose last published percentage is kept."""

_OVERFLOW_TEXT: Final = "too many changes at once"

ExecutionKey = tuple[int, int]
"""Row id of the job, and device, of an execution."""

_FIRST_KEY: Final[ExecutionKey] = (0, -1)
"""Key that sorts before the keys of all executions."""


class _JobQuery(NamedTuple):
    """Jobs and executions to load in one transaction."""

    jobs: set[int]
    executions: Mapping[int, Sequence[int]]
    """Devices of the executions to load, by job."""
    changed: frozenset[int] = frozenset()
    """Jobs that were marked as changed. A marked job that does not exist was deleted."""
    includes_open: bool = False
    """Whether to load the newest open jobs of the fleet in addition to `jobs`."""
    transfers_after: ExecutionKey | None = None
    """List running transfers of the loaded jobs with keys after this one; None lists no transfers."""


class _JobQueryResult(NamedTuple):
    """Loaded jobs with their row ids, changed executions, and running firmware transfers."""

    jobs: list[tuple[int, Job]]
    executions: list[JobExecution]
    transfers: list[JobExecution]


class JobEvents:
    """Publishes changes of jobs and executions as live events. Runs in the event loop of the hub."""

    def __init__(self, hub: EventHub, database: Database, now: Now, *, poll_interval: float) -> None:
        """Create a publisher that polls unfinished jobs every `poll_interval` seconds."""
        self._poll_interval = poll_interval
        self._hub = hub
        self._database = database
        self._now = now
        self._job_interest = hub.interest["job"]
        self._execution_interest = hub.interest["execution"]
        self._jobs: set[int] = set()
        self._executions: set[ExecutionKey] = set()
        self._has_overflowed = False
        """Whether too many executions changed, so that a `resync` is published instead of their events."""
        self._published_jobs: dict[int, Job] = {}
        """Unfinished jobs as last published, without the field `eta`, which changes all the time."""
        self._percents: dict[ExecutionKey, int] = {}
        """Last published percentage of each running firmware transfer."""
        self._finished: set[int] = set()
        """Jobs named in filters that are finished or deleted, so that they need no polling."""
        self._deleted: list[int] = []
        """Jobs that were last published as deleted, the newest last."""
        self._last_polled = 0
        """Job after which the next poll continues, if there are too many jobs for one poll."""
        self._transfers_after = _FIRST_KEY
        """Key of the transfer after which the next poll continues, if there are too many for one poll."""
        self._next_poll_at = 0.0
        self._wakeup = asyncio.Event()

    def mark_changed(self, jobs: Iterable[int], executions: Sequence[ExecutionChange]) -> None:
        """Mark jobs and executions as changed. They are published if a filter may match their events."""
        if not self._has_interest:
            return
        for job in (*jobs, *(each.job for each in executions)):
            if self._job_interest.includes_job(job):
                self._jobs.add(job)
        for job, device, gateway in executions:
            if self._has_execution_interest(job, device, NO_GATEWAY if gateway is None else gateway):
                self._executions.add((job, device))
        self._enforce_limits()
        if self._jobs or self._executions:
            self._wakeup.set()

    async def run(self) -> None:
        """Load and publish marked and polled jobs until canceled."""
        while True:
            await self._wait_for_changes()
            if not self._has_interest:
                self._clear()
                continue
            try:
                await self._load_and_publish()
            except (FleetError, DBAPIError) as exc:
                _log.warning("jobs could not be loaded for live events: %s; retrying", type(exc).__name__)
                for about in ("job", "execution"):
                    self._hub.publish_loss(about, "the database is unavailable")
                await asyncio.sleep(self._poll_interval)

    @property
    def _has_interest(self) -> bool:
        """Whether there is a filter for events of jobs or executions."""
        return bool(self._job_interest or self._execution_interest)

    def _has_execution_interest(self, job: int, device: int, gateway: int) -> bool:
        """Return whether a filter may match the events of an execution."""
        return job in self._execution_interest.jobs or self._execution_interest.includes(device, gateway)

    def _enforce_limits(self) -> None:
        """Publish a `resync` instead of events if too many jobs or executions are marked as changed."""
        if len(self._executions) > _MAX_EXECUTIONS:
            self._executions.clear()
            self._has_overflowed = True
        if len(self._jobs) > _MAX_JOBS:
            self._jobs.clear()
            self._hub.publish_loss("job", _OVERFLOW_TEXT)

    def _clear(self) -> None:
        """Forget all marked and published jobs and executions, because there are no subscribers."""
        for each in (
            self._jobs,
            self._executions,
            self._published_jobs,
            self._percents,
            self._finished,
            self._deleted,
        ):
            each.clear()
        self._has_overflowed = False
        self._wakeup.clear()

    async def _wait_for_changes(self) -> None:
        """Wait for a change of a job and briefly for more changes, or until the next poll is due."""
        seconds_left = max(self._next_poll_at - asyncio.get_running_loop().time(), _GATHER_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_left if self._has_interest else self._poll_interval):
                await self._wakeup.wait()
            await asyncio.sleep(_GATHER_SECONDS)

    async def _load_and_publish(self) -> None:
        """Load the marked jobs and executions and those to poll, and publish the ones that changed."""
        query = self._build_next_query()
        result = await self._database.read(_load_jobs, query, now=self._now())
        for job, execution in result.executions:
            self._publish_execution(job, execution)
        self._publish_transfers(result.transfers)
        for number, view in result.jobs:
            self._publish_job(number, view)
        for number in sorted(query.changed.difference(number for number, _ in result.jobs)):
            self._publish_deleted(number)
        if query.transfers_after is not None:
            has_more = len(result.transfers) == _MAX_EXECUTIONS
            self._transfers_after = _build_execution_key(*result.transfers[-1]) if has_more else _FIRST_KEY

    def _build_next_query(self) -> _JobQuery:
        """Build the query for all jobs marked as changed and, if a poll is due, for the jobs to poll."""
        devices: dict[int, list[int]] = {}
        for job, device in self._executions:
            devices.setdefault(job, []).append(device)
        query = _JobQuery(self._jobs, devices, changed=frozenset(self._jobs))
        if self._has_overflowed:
            self._hub.publish_loss("execution", _OVERFLOW_TEXT)
        self._jobs, self._executions, self._has_overflowed = set(), set(), False
        self._wakeup.clear()
        now = asyncio.get_running_loop().time()
        if now < self._next_poll_at:
            return query
        self._next_poll_at = now + self._poll_interval
        return query._replace(
            jobs=query.jobs | self._select_jobs_to_poll(),
            includes_open=self._must_poll_all_jobs,
            transfers_after=self._transfers_after,
        )

    @property
    def _must_poll_all_jobs(self) -> bool:
        """Whether all open jobs must be polled, not only the jobs that filters name."""
        interest = self._execution_interest
        return (
            self._job_interest.includes_all
            or interest.includes_all
            or bool(interest.devices or interest.gateways)
        )

    def _select_jobs_to_poll(self) -> set[int]:
        """Select at most 100 jobs to poll: jobs named in filters, and published unfinished jobs.

        If there are more than 100, they take turns.
        """
        named = self._job_interest.jobs.keys() | self._execution_interest.jobs.keys()
        self._finished &= named
        self._published_jobs = {
            job: published
            for job, published in self._published_jobs.items()
            if self._job_interest.includes_job(job)
        }
        candidates = sorted((named - self._finished) | self._published_jobs.keys())
        start = bisect_right(candidates, self._last_polled)
        selected = (candidates[start:] + candidates[:start])[:_MAX_JOBS]
        self._last_polled = selected[-1] if selected else 0
        return set(selected)

    def _publish_execution(self, job: int, execution: Execution) -> None:
        """Publish an execution if a filter may match it. Remember the percentage of its transfer."""
        key = _build_execution_key(job, execution)
        if execution.state is ExecutionState.TRANSFERRING:
            self._percents[key] = execution.progress
        else:
            self._percents.pop(key, None)
        gateway = NO_GATEWAY if execution.gateway is None else mac_to_int(Mac(execution.gateway))
        if self._has_execution_interest(job, key[1], gateway):
            live_execution = LiveExecution(job_id=f"job-{job}", **asdict(execution))
            self._hub.publish("execution", live_execution, device=key[1], gateway=gateway, job=job)

    def _publish_transfers(self, transfers: Iterable[JobExecution]) -> None:
        """Publish the executions whose transfer percentage differs from the last published one."""
        for job, execution in transfers:
            if self._percents.get(_build_execution_key(job, execution)) != execution.progress:
                self._publish_execution(job, execution)
        if len(self._percents) > _MAX_PERCENTS:
            self._percents.clear()

    def _publish_job(self, number: int, job: Job) -> None:
        """Publish a job if it differs from the last published version and a filter may match it."""
        version = replace(job, eta=None)
        if self._job_interest.includes_job(number) and self._published_jobs.get(number) != version:
            self._hub.publish("job", job, gateway=NO_GATEWAY, job=number)
        if job.state in FINISHED_STATES:
            self._published_jobs.pop(number, None)
            self._finished.add(number)
        else:
            self._published_jobs[number] = version

    def _publish_deleted(self, number: int) -> None:
        """Publish that a job was deleted, but only once: the deleting code and the audit log both mark it."""
        if number in self._deleted:
            return
        self._deleted = [*self._deleted[1 - _MAX_JOBS :], number]
        if self._job_interest.includes_job(number):
            self._hub.publish("job", DeletedJob(id=f"job-{number}"), gateway=NO_GATEWAY, job=number)
        self._published_jobs.pop(number, None)
        self._finished.add(number)


def _build_execution_key(job: int, execution: Execution) -> ExecutionKey:
    return job, mac_to_int(to_mac(DeviceId(execution.device_id)))


def _load_jobs(connection: Connection, query: _JobQuery, *, now: int) -> _JobQueryResult:
    """Load the jobs, executions and running firmware transfers that a query names."""
    jobs = job_view.load_jobs(connection, query.jobs, now=now)
    if query.includes_open:
        jobs |= job_view.list_newest_open_jobs(connection, _MAX_JOBS, now=now)
    executions = [
        JobExecution(job, each)
        for job, devices in query.executions.items()
        for each in execution_view.load_executions(connection, job, devices)
    ]
    transfers: list[JobExecution] = []
    if query.transfers_after is not None:
        unfinished = [number for number, job in jobs.items() if job.state not in FINISHED_STATES]
        transfers = execution_view.list_transfers(
            connection, unfinished, after=query.transfers_after, limit=_MAX_EXECUTIONS
        )
    return _JobQueryResult(sorted(jobs.items()), executions, transfers)
