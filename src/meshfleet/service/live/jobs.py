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
from meshfleet.service.jobs.job_states import FINISHED
from meshfleet.service.jobs.shown import executions as parts
from meshfleet.service.jobs.shown import jobs as reading
from meshfleet.service.live.event import NOWHERE
from meshfleet.wire.ids import DeviceId, Mac, mac_number, mac_of
from meshfleet.wire.rest import DeletedJob, ExecutionState, LiveExecution

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.jobs.changes import Changed
    from meshfleet.service.live.hub import Hub
    from meshfleet.wire.rest import Execution, Job

_log = logging.getLogger(__name__)

_GATHERED: Final = 0.25
"""Seconds for which changes are gathered."""

_JOBS: Final = 100
_EXECUTIONS: Final = 500
"""How many are read and told in one go."""

_REMEMBERED: Final = 20_000
"""Executions of which we know with how many percents they were told."""

_MUCH: Final = "more changes than can be told"

Key = tuple[int, int]
"""The job and the device of an execution."""

_FIRST: Final[Key] = (0, -1)
"""Before all others."""


class _Asked(NamedTuple):
    """What is to be read in one go."""

    jobs: set[int]
    executions: Mapping[int, Sequence[int]]
    """By job: devices."""
    changed: frozenset[int] = frozenset()
    """Those of the jobs that were said to have changed: if one is not there, it was deleted."""
    looks_at_all: bool = False
    """Also at the newest jobs that are not over."""
    after: Key | None = None
    """Also at transfers of all these jobs, behind this one; None: not at transfers."""


class _Found(NamedTuple):
    jobs: list[tuple[int, Job]]
    executions: list[tuple[int, Execution]]
    transfers: list[tuple[int, Execution]]


class Jobs:
    """Tells jobs and executions. Lives in one event loop, as the hub does."""

    def __init__(self, hub: Hub, database: Database, now: Now, *, look: float) -> None:
        """`look` is how many seconds pass between two looks at what nobody says."""
        self._look = look
        self._hub = hub
        self._database = database
        self._now = now
        self._of_job = hub.interest["job"]
        self._of_execution = hub.interest["execution"]
        self._jobs: set[int] = set()
        self._executions: set[Key] = set()
        self._is_lost = False
        """Whether more executions changed than are told in one go."""
        self._told: dict[int, Job] = {}
        """Jobs that are not over, as they were told last, but for their `eta`, which changes all the time."""
        self._percents: dict[Key, int] = {}
        self._over: set[int] = set()
        """Jobs that somebody named, and that will not change any more."""
        self._deleted: list[int] = []
        """The last jobs that were told to be deleted."""
        self._place = 0
        """The last job that had its turn, if there are too many for one look."""
        self._after = _FIRST
        """The same of transfers."""
        self._look_at = 0.0
        self._news = asyncio.Event()

    def changed(self, jobs: Iterable[int], executions: Sequence[Changed]) -> None:
        """These jobs are not as they were, and these executions are in another state."""
        if not self._is_heard:
            return
        for job in (*jobs, *(each.job for each in executions)):
            if self._of_job.includes_job(job):
                self._jobs.add(job)
        for job, device, gateway in executions:
            if self._wants(job, device, NOWHERE if gateway is None else gateway):
                self._executions.add((job, device))
        self._bound()
        if self._jobs or self._executions:
            self._news.set()

    async def run(self) -> None:
        """Tell what changes, until cancelled."""
        while True:
            await self._wait()
            if not self._is_heard:
                self._forget()
                continue
            try:
                await self._go()
            except (FleetError, DBAPIError) as exc:
                _log.warning("jobs cannot be told: %s", type(exc).__name__)
                for about in ("job", "execution"):
                    self._hub.publish_loss(about, "the database does not answer")
                await asyncio.sleep(self._look)

    @property
    def _is_heard(self) -> bool:
        return bool(self._of_job or self._of_execution)

    def _wants(self, job: int, device: int, gateway: int) -> bool:
        return job in self._of_execution.jobs or self._of_execution.includes(device, gateway)

    def _bound(self) -> None:
        if len(self._executions) > _EXECUTIONS:
            self._executions.clear()
            self._is_lost = True
        if len(self._jobs) > _JOBS:
            self._jobs.clear()
            self._hub.publish_loss("job", _MUCH)

    def _forget(self) -> None:
        for each in (self._jobs, self._executions, self._told, self._percents, self._over, self._deleted):
            each.clear()
        self._is_lost = False
        self._news.clear()

    async def _wait(self) -> None:
        """Wait for news, and a moment for more of them; or for the next look."""
        left = max(self._look_at - asyncio.get_running_loop().time(), _GATHERED)
        with suppress(TimeoutError):
            async with asyncio.timeout(left if self._is_heard else self._look):
                await self._news.wait()
            await asyncio.sleep(_GATHERED)

    async def _go(self) -> None:
        asked = self._next()
        found = await self._database.read(_read, asked, now=self._now())
        for job, execution in found.executions:
            self._tell_execution(job, execution)
        self._tell_transfers(found.transfers)
        for number, shown in found.jobs:
            self._tell_job(number, shown)
        for number in sorted(asked.changed.difference(number for number, _ in found.jobs)):
            self._tell_deleted(number)
        if asked.after is not None:
            is_more = len(found.transfers) == _EXECUTIONS
            self._after = _key(*found.transfers[-1]) if is_more else _FIRST

    def _next(self) -> _Asked:
        """What is to be read now."""
        devices: dict[int, list[int]] = {}
        for job, device in self._executions:
            devices.setdefault(job, []).append(device)
        asked = _Asked(self._jobs, devices, changed=frozenset(self._jobs))
        if self._is_lost:
            self._hub.publish_loss("execution", _MUCH)
        self._jobs, self._executions, self._is_lost = set(), set(), False
        self._news.clear()
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return asked
        self._look_at = now + self._look
        return asked._replace(
            jobs=asked.jobs | self._turn(), looks_at_all=self._looks_at_all, after=self._after
        )

    @property
    def _looks_at_all(self) -> bool:
        wanted = self._of_execution
        return self._of_job.is_all or wanted.is_all or bool(wanted.devices or wanted.gateways)

    def _turn(self) -> set[int]:
        """Jobs that are looked at this time: those that were named, or told when they were not over."""
        named = self._of_job.jobs.keys() | self._of_execution.jobs.keys()
        self._over &= named
        self._told = {job: told for job, told in self._told.items() if self._of_job.includes_job(job)}
        candidates = sorted((named - self._over) | self._told.keys())
        start = bisect_right(candidates, self._place)
        chosen = (candidates[start:] + candidates[:start])[:_JOBS]
        self._place = chosen[-1] if chosen else 0
        return set(chosen)

    def _tell_execution(self, job: int, execution: Execution) -> None:
        key = _key(job, execution)
        if execution.state is ExecutionState.TRANSFERRING:
            self._percents[key] = execution.progress
        else:
            self._percents.pop(key, None)
        gateway = NOWHERE if execution.gateway is None else mac_number(Mac(execution.gateway))
        if self._wants(job, key[1], gateway):
            told = LiveExecution(job_id=f"job-{job}", **asdict(execution))
            self._hub.publish("execution", told, device=key[1], gateway=gateway, job=job)

    def _tell_transfers(self, transfers: Iterable[tuple[int, Execution]]) -> None:
        for job, execution in transfers:
            if self._percents.get(_key(job, execution)) != execution.progress:
                self._tell_execution(job, execution)
        if len(self._percents) > _REMEMBERED:
            self._percents.clear()

    def _tell_job(self, number: int, job: Job) -> None:
        as_told = replace(job, eta=None)
        if self._of_job.includes_job(number) and self._told.get(number) != as_told:
            self._hub.publish("job", job, gateway=NOWHERE, job=number)
        if job.state in FINISHED:
            self._told.pop(number, None)
            self._over.add(number)
        else:
            self._told[number] = as_told

    def _tell_deleted(self, number: int) -> None:
        """Tell that a job is gone, once: whoever deletes one says so, and the audit log does again."""
        if number in self._deleted:
            return
        self._deleted = [*self._deleted[1 - _JOBS :], number]
        if self._of_job.includes_job(number):
            self._hub.publish("job", DeletedJob(id=f"job-{number}"), gateway=NOWHERE, job=number)
        self._told.pop(number, None)
        self._over.add(number)


def _key(job: int, execution: Execution) -> Key:
    return job, mac_number(mac_of(DeviceId(execution.device_id)))


def _read(connection: Connection, asked: _Asked, *, now: int) -> _Found:
    """Jobs, and executions as they are at the same time."""
    found = reading.several(connection, asked.jobs, now=now)
    if asked.looks_at_all:
        found |= reading.newest_open(connection, _JOBS, now=now)
    executions = [
        (job, each)
        for job, devices in asked.executions.items()
        for each in parts.several(connection, job, devices)
    ]
    transfers: list[tuple[int, Execution]] = []
    if asked.after is not None:
        under_way = [number for number, job in found.items() if job.state not in FINISHED]
        transfers = parts.transfers(connection, under_way, after=asked.after, limit=_EXECUTIONS)
    return _Found(sorted(found.items()), executions, transfers)
