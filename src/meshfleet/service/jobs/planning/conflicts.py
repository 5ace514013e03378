"""Conflicts between jobs: a newer job targets a device with which an older job has not finished (rest-129).

Depending on the `onNewerJob` of the older job, the newer job is rejected for the device, takes over the
device if its update is still queued (supersede), or waits until the older job has finished with the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition, execution, job, tally
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.actor import SERVICE
from meshfleet.service.jobs.store import QueueEnding, end_queued_executions
from meshfleet.service.jobs.updates.reasons import ReasonCode
from meshfleet.service.jobs.updates.states import TERMINAL_STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection

    from meshfleet.db import Database
    from meshfleet.service.jobs.notifications import ChangeListener, ExecutionChange


_TERMINAL: Final = ", ".join(f"'{state}'" for state in sorted(TERMINAL_STATES))

_ACTIVE_DEVICES: Final = f"SELECT device FROM execution WHERE device IN numbers AND {active_condition()}"  # noqa: S608 # constants only


class ConflictingJobs(NamedTuple):
    """Open jobs whose `onNewerJob` is reject or supersede."""

    rejecting: tuple[int, ...] = ()
    """Numbers of open jobs that reject newer jobs for their devices."""
    superseded: tuple[int, ...] = ()
    """Numbers of open jobs whose queued devices a newer job takes over."""


def find_conflicting_jobs(connection: Connection) -> ConflictingJobs:
    """Load the numbers of all open jobs that reject newer jobs or hand over devices to newer jobs."""
    return ConflictingJobs(_list_open_jobs(connection, "reject"), _list_open_jobs(connection, "supersede"))


def find_unfinished_devices(
    connection: Connection, jobs: Sequence[int], devices: Sequence[int]
) -> dict[int, int]:
    """Return, by device, the number of the job in `jobs` that has not finished with the device.

    If there are several such jobs, the lowest number is returned. Devices with which all `jobs` have finished
    are left out. `devices` must be sorted.
    """
    if not jobs:
        return {}
    rows = bulk.query_in(
        connection,
        "SELECT device, min(job) FROM execution"  # noqa: S608 # numbers and constants only
        f" WHERE job IN ({', '.join(map(str, jobs))}) "
        f" AND device BETWEEN {devices[0]} AND {devices[-1]} AND device IN numbers"
        f" AND state NOT IN ({_TERMINAL})"
        " GROUP BY device",
        devices,
    )
    return {row[0]: row[1] for row in rows}


def list_jobs_with_queue(connection: Connection) -> tuple[int, ...]:
    """Return the numbers of open jobs with queued devices that a newer job cannot take over."""
    queued = select(tally.c.job).where(tally.c.state == str(ExecutionState.QUEUED), tally.c.count > 0)
    query = select(job.c.id).where(
        job.c.finished_at.is_(None), job.c.id.in_(queued), ~_build_policy_condition("supersede")
    )
    return tuple(connection.scalars(query))


def find_busy_devices(connection: Connection, jobs: Sequence[int], devices: Sequence[int]) -> set[int]:
    """Return the devices that any job is updating, or with which one of `jobs` has not finished.

    `devices` must be sorted.
    """
    return {
        *find_unfinished_devices(connection, jobs, devices),
        *(row[0] for row in bulk.query_in(connection, _ACTIVE_DEVICES, devices)),
    }


def _list_open_jobs(connection: Connection, policy: str) -> tuple[int, ...]:
    """Return the numbers of open jobs whose `onNewerJob` is `policy`."""
    query = (
        select(job.c.id)
        .where(job.c.finished_at.is_(None), _build_policy_condition(policy))
        .order_by(job.c.id)
    )
    return tuple(connection.scalars(query))


def _build_policy_condition(policy: str) -> ColumnElement[bool]:
    """Return the SQL condition that the `onNewerJob` of a job is `policy`.

    The condition searches the JSON body as a string, because the JSON functions of PostgreSQL fail on some
    valid strings. It cannot match within a value, because quotes are escaped there.
    """
    return job.c.body.contains(f'"onNewerJob":"{policy}"')


# A newer job takes over the queued devices of older jobs with the policy `supersede` (rest-129).

_DEVICES_PER_CHUNK: Final = 500
"""Maximum number of devices that a newer job takes over in one transaction."""


class _TakeoverChunk(NamedTuple):
    """Result of taking over a chunk of devices."""

    last_device: int | None
    """Last device of the chunk; None if this is the last chunk."""
    changed: list[ExecutionChange]


async def take_over_queued_devices(
    database: Database, job_number: int, older: Sequence[int], now: int, notify: ChangeListener
) -> None:
    """Let the newer job `job_number` take over its devices that are still queued in the `older` jobs.

    The executions of these devices in the older jobs end as SUPERSEDED. Each transaction takes over up to 500
    devices. `notify` is called with the ended executions.
    """
    after: int | None = -1
    while older and after is not None:
        chunk = await database.write(_take_over_chunk, job_number, older, after, now)
        after = chunk.last_device
        if chunk.changed:
            notify([], chunk.changed)


async def finish_takeovers(database: Database, now: int, notify: ChangeListener) -> None:
    """Finish the takeovers of queued devices by newer jobs that an earlier process did not finish."""
    for number, older in await database.read(_list_takeovers):
        await take_over_queued_devices(database, number, older, now, notify)


def _list_takeovers(connection: Connection) -> list[tuple[int, list[int]]]:
    """Return each open job that takes over queued devices, with the older jobs that hand them over."""
    superseded = find_conflicting_jobs(connection).superseded
    if not superseded:
        return []
    query = select(job.c.id).where(job.c.finished_at.is_(None)).order_by(job.c.created_at, job.c.id)
    older: list[int] = []
    takeovers = []
    for number in connection.scalars(query):
        if older:
            takeovers.append((number, older.copy()))
        if number in superseded:
            older.append(number)
    return takeovers


def _take_over_chunk(
    connection: Connection, job_number: int, older: Sequence[int], after: int, now: int
) -> _TakeoverChunk:
    """Let the newer job `job_number` take over up to 500 queued devices that follow the device `after`."""
    columns = execution.c
    query = select(columns.device).where(columns.job == job_number, columns.device > after, columns.wave >= 0)
    devices = connection.scalars(query.order_by(columns.device).limit(_DEVICES_PER_CHUNK)).all()
    if not devices:
        return _TakeoverChunk(None, [])
    ending = QueueEnding(
        ExecutionState.SUPERSEDED,
        f"job-{job_number} took over the device",
        ReasonCode.NEWER_JOB,
        actor=SERVICE.display_name,
    )
    changed = end_queued_executions(connection, older, devices, ending, now)
    return _TakeoverChunk(devices[-1] if len(devices) == _DEVICES_PER_CHUNK else None, changed)
