"""Jobs and executions as live events, in the words of the REST interface.

Whoever changes them says so here, and they are read a moment later, once, however often they changed. What
changes without another state, such as the percents of a transfer, nobody says: while somebody listens, jobs
that are not over are looked at every second, and what is not as it was told is told.
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
from meshfleet.rest import DeletedJob, ExecutionState, LiveExecution
from meshfleet.service.jobs.job_states import FINISHED_STATES
from meshfleet.service.jobs.views import execution_view as parts
from meshfleet.service.jobs.views import job_view as reading
from meshfleet.service.live.event import NO_GATEWAY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.rest import Execution, Job
    from meshfleet.service.clock import Now
    from meshfleet.service.jobs.notifications import ExecutionChange
    from meshfleet.service.live.hub import EventHub

_log = logging.getLogger(__name__)

_GATHER_SECONDS: Final = 0.25
"""Seconds for which changes are gathered."""

_MAX_JOBS: Final = 100
_MAX_EXECUTIONS: Final = 500
"""How many are read and told in one go."""

_MAX_PERCENTS: Final = 20_000
"""Executions of which we know with how many percents they were told."""

_OVERFLOW_TEXT: Final = "more changes than can be told"

ExecutionKey = tuple[int, int]
"""The job and the device of an execution."""

_FIRST_KEY: Final[ExecutionKey] = (0, -1)
"""Before all others."""


class _JobQuery(NamedTuple):
    """What is to be read in one go."""

    jobs: set[int]
    executions: Mapping[int, Sequence[int]]
    """By job: devices."""
    changed: frozenset[int] = frozenset()
    """Those of the jobs that were said to have changed: if one is not there, it was deleted."""
    all_open: bool = False
    """Also at the newest jobs that are not over."""
    transfers_after: ExecutionKey | None = None
    """Also at transfers of all these jobs, behind this one; None: not at transfers."""


class _JobQueryResult(NamedTuple):
    jobs: list[tuple[int, Job]]
    executions: list[tuple[int, Execution]]
    transfers: list[tuple[int, Execution]]


class JobEvents:
    """Tells jobs and executions. Lives in one event loop, as the hub does."""

    def __init__(self, hub: EventHub, database: Database, now: Now, *, poll_interval: float) -> None:
        """`look` is how many seconds pass between two looks at what nobody says."""
        self._poll_interval = poll_interval
        self._hub = hub
        self._database = database
        self._now = now
        self._job_interest = hub.interest["job"]
        self._execution_interest = hub.interest["execution"]
        self._jobs: set[int] = set()
        self._executions: set[ExecutionKey] = set()
        self._has_overflowed = False
        """Whether more executions changed than are told in one go."""
        self._published_jobs: dict[int, Job] = {}
        """Jobs that are not over, as they were told last, but for their `eta`, which changes all the time."""
        self._percents: dict[ExecutionKey, int] = {}
        self._finished: set[int] = set()
        """Jobs that somebody named, and that will not change any more."""
        self._deleted: list[int] = []
        """The last jobs that were told to be deleted."""
        self._last_polled = 0
        """The last job that had its turn, if there are too many for one look."""
        self._transfers_after = _FIRST_KEY
        """The same of transfers."""
        self._next_poll_at = 0.0
        self._wakeup = asyncio.Event()

    def mark_changed(self, jobs: Iterable[int], executions: Sequence[ExecutionChange]) -> None:
        """These jobs are not as they were, and these executions are in another state."""
        if not self._has_interest:
            return
        for job in (*jobs, *(each.job for each in executions)):
            if self._job_interest.includes_job(job):
                self._jobs.add(job)
        for job, device, gateway in executions:
            if self._is_wanted(job, device, NO_GATEWAY if gateway is None else gateway):
                self._executions.add((job, device))
        self._enforce_limits()
        if self._jobs or self._executions:
            self._wakeup.set()

    async def run(self) -> None:
        """Tell what changes, until cancelled."""
        while True:
            await self._wait()
            if not self._has_interest:
                self._clear()
                continue
            try:
                await self._load_and_publish()
            except (FleetError, DBAPIError) as exc:
                _log.warning("jobs cannot be told: %s", type(exc).__name__)
                for about in ("job", "execution"):
                    self._hub.publish_loss(about, "the database does not answer")
                await asyncio.sleep(self._poll_interval)

    @property
    def _has_interest(self) -> bool:
        return bool(self._job_interest or self._execution_interest)

    def _is_wanted(self, job: int, device: int, gateway: int) -> bool:
        return job in self._execution_interest.jobs or self._execution_interest.includes(device, gateway)

    def _enforce_limits(self) -> None:
        if len(self._executions) > _MAX_EXECUTIONS:
            self._executions.clear()
            self._has_overflowed = True
        if len(self._jobs) > _MAX_JOBS:
            self._jobs.clear()
            self._hub.publish_loss("job", _OVERFLOW_TEXT)

    def _clear(self) -> None:
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

    async def _wait(self) -> None:
        """Wait for news, and a moment for more of them; or for the next look."""
        left = max(self._next_poll_at - asyncio.get_running_loop().time(), _GATHER_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(left if self._has_interest else self._poll_interval):
                await self._wakeup.wait()
            await asyncio.sleep(_GATHER_SECONDS)

    async def _load_and_publish(self) -> None:
        asked = self._next_query()
        found = await self._database.read(_load_jobs, asked, now=self._now())
        for job, execution in found.executions:
            self._publish_execution(job, execution)
        self._publish_transfers(found.transfers)
        for number, shown in found.jobs:
            self._publish_job(number, shown)
        for number in sorted(asked.changed.difference(number for number, _ in found.jobs)):
            self._publish_deleted(number)
        if asked.transfers_after is not None:
            is_more = len(found.transfers) == _MAX_EXECUTIONS
            self._transfers_after = _build_key(*found.transfers[-1]) if is_more else _FIRST_KEY

    def _next_query(self) -> _JobQuery:
        """What is to be read now."""
        devices: dict[int, list[int]] = {}
        for job, device in self._executions:
            devices.setdefault(job, []).append(device)
        asked = _JobQuery(self._jobs, devices, changed=frozenset(self._jobs))
        if self._has_overflowed:
            self._hub.publish_loss("execution", _OVERFLOW_TEXT)
        self._jobs, self._executions, self._has_overflowed = set(), set(), False
        self._wakeup.clear()
        now = asyncio.get_running_loop().time()
        if now < self._next_poll_at:
            return asked
        self._next_poll_at = now + self._poll_interval
        return asked._replace(
            jobs=asked.jobs | self._select_jobs_to_poll(),
            all_open=self._polls_all_jobs,
            transfers_after=self._transfers_after,
        )

    @property
    def _polls_all_jobs(self) -> bool:
        wanted = self._execution_interest
        return (
            self._job_interest.includes_all or wanted.includes_all or bool(wanted.devices or wanted.gateways)
        )

    def _select_jobs_to_poll(self) -> set[int]:
        """Jobs that are looked at this time: those that were named, or told when they were not over."""
        named = self._job_interest.jobs.keys() | self._execution_interest.jobs.keys()
        self._finished &= named
        self._published_jobs = {
            job: told for job, told in self._published_jobs.items() if self._job_interest.includes_job(job)
        }
        candidates = sorted((named - self._finished) | self._published_jobs.keys())
        start = bisect_right(candidates, self._last_polled)
        chosen = (candidates[start:] + candidates[:start])[:_MAX_JOBS]
        self._last_polled = chosen[-1] if chosen else 0
        return set(chosen)

    def _publish_execution(self, job: int, execution: Execution) -> None:
        key = _build_key(job, execution)
        if execution.state is ExecutionState.TRANSFERRING:
            self._percents[key] = execution.progress
        else:
            self._percents.pop(key, None)
        gateway = NO_GATEWAY if execution.gateway is None else mac_to_int(Mac(execution.gateway))
        if self._is_wanted(job, key[1], gateway):
            told = LiveExecution(job_id=f"job-{job}", **asdict(execution))
            self._hub.publish("execution", told, device=key[1], gateway=gateway, job=job)

    def _publish_transfers(self, transfers: Iterable[tuple[int, Execution]]) -> None:
        for job, execution in transfers:
            if self._percents.get(_build_key(job, execution)) != execution.progress:
                self._publish_execution(job, execution)
        if len(self._percents) > _MAX_PERCENTS:
            self._percents.clear()

    def _publish_job(self, number: int, job: Job) -> None:
        as_told = replace(job, eta=None)
        if self._job_interest.includes_job(number) and self._published_jobs.get(number) != as_told:
            self._hub.publish("job", job, gateway=NO_GATEWAY, job=number)
        if job.state in FINISHED_STATES:
            self._published_jobs.pop(number, None)
            self._finished.add(number)
        else:
            self._published_jobs[number] = as_told

    def _publish_deleted(self, number: int) -> None:
        """Tell that a job is gone, once: whoever deletes one says so, and the audit log does again."""
        if number in self._deleted:
            return
        self._deleted = [*self._deleted[1 - _MAX_JOBS :], number]
        if self._job_interest.includes_job(number):
            self._hub.publish("job", DeletedJob(id=f"job-{number}"), gateway=NO_GATEWAY, job=number)
        self._published_jobs.pop(number, None)
        self._finished.add(number)


def _build_key(job: int, execution: Execution) -> ExecutionKey:
    return job, mac_to_int(to_mac(DeviceId(execution.device_id)))


def _load_jobs(connection: Connection, asked: _JobQuery, *, now: int) -> _JobQueryResult:
    """Jobs, and executions as they are at the same time."""
    found = reading.load_jobs(connection, asked.jobs, now=now)
    if asked.all_open:
        found |= reading.list_newest_open_jobs(connection, _MAX_JOBS, now=now)
    executions = [
        (job, each)
        for job, devices in asked.executions.items()
        for each in parts.load_executions(connection, job, devices)
    ]
    transfers: list[tuple[int, Execution]] = []
    if asked.transfers_after is not None:
        under_way = [number for number, job in found.items() if job.state not in FINISHED_STATES]
        transfers = parts.list_transfers(
            connection, under_way, after=asked.transfers_after, limit=_MAX_EXECUTIONS
        )
    return _JobQueryResult(sorted(found.items()), executions, transfers)
