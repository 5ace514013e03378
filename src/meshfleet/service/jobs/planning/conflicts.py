"""Open jobs that say what becomes of a device when a newer job wants it, too (rest-129)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition, execution, job, tally
from meshfleet.rest import ExecutionState
from meshfleet.service.actor import SERVICE
from meshfleet.service.jobs.notifications import ExecutionChange
from meshfleet.service.jobs.updates.states import TERMINAL_STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection

    from meshfleet.db import Database
    from meshfleet.service.jobs.notifications import ChangeListener


_TERMINAL: Final = ", ".join(f"'{state}'" for state in sorted(TERMINAL_STATES))

_ACTIVE_DEVICES: Final = f"SELECT device FROM execution WHERE device IN numbers AND {active_condition()}"  # noqa: S608 # our own words


class ConflictingJobs(NamedTuple):
    """Open jobs that do not just let newer ones queue behind them."""

    rejecting: tuple[int, ...] = ()
    """Jobs that let no newer job have their devices."""
    superseded: tuple[int, ...] = ()
    """Jobs that give devices up to a newer one."""


def find_conflicting_jobs(connection: Connection) -> ConflictingJobs:
    """All that are open now."""
    return ConflictingJobs(_list_open_jobs(connection, "reject"), _list_open_jobs(connection, "supersede"))


def find_unfinished_devices(
    connection: Connection, jobs: Sequence[int], devices: Sequence[int]
) -> dict[int, int]:
    """Which of these devices, which are sorted, are not done with in which of these jobs."""
    if not jobs:
        return {}
    rows = bulk.query_in(
        connection,
        "SELECT device, min(job) FROM execution"  # noqa: S608 # numbers, and our own words
        f" WHERE job IN ({', '.join(map(str, jobs))}) "
        f" AND device BETWEEN {devices[0]} AND {devices[-1]} AND device IN numbers"
        f" AND state NOT IN ({_TERMINAL})"
        " GROUP BY device",
        devices,
    )
    return {row[0]: row[1] for row in rows}


def list_jobs_with_queue(connection: Connection) -> tuple[int, ...]:
    """Open jobs in which devices wait that they do not give up."""
    queued = select(tally.c.job).where(tally.c.state == str(ExecutionState.QUEUED), tally.c.count > 0)
    query = select(job.c.id).where(
        job.c.finished_at.is_(None), job.c.id.in_(queued), ~_has_policy("supersede")
    )
    return tuple(connection.scalars(query))


def find_busy_devices(connection: Connection, jobs: Sequence[int], devices: Sequence[int]) -> set[int]:
    """Which of these devices, which are sorted, are under way in any job, or wait in these."""
    return {
        *find_unfinished_devices(connection, jobs, devices),
        *(row[0] for row in bulk.query_in(connection, _ACTIVE_DEVICES, devices)),
    }


def _list_open_jobs(connection: Connection, policy: str) -> tuple[int, ...]:
    """Open jobs with a policy."""
    query = select(job.c.id).where(job.c.finished_at.is_(None), _has_policy(policy)).order_by(job.c.id)
    return tuple(connection.scalars(query))


def _has_policy(policy: str) -> ColumnElement[bool]:
    """Whether a job has a policy.

    Its words are looked for as they stand in an order: within a text of it, quotes are written in another
    way. PostgreSQL's own functions for JSON give up at texts that nobody can forbid.
    """
    return job.c.body.contains(f'"onNewerJob":"{policy}"')


# A newer job takes over devices from jobs that say so: what they have not begun is over (rest-129).

_DEVICES_PER_CHUNK: Final = 500
"""Devices at once."""


async def supersede_older_jobs(
    database: Database, job_number: int, older: Sequence[int], now: int, notify: ChangeListener
) -> None:
    """Let a job have the devices that older ones have not begun with."""
    after: int | None = -1
    while older and after is not None:
        after, changed = await database.write(_supersede_chunk, job_number, older, after, now)
        if changed:
            notify([], changed)


async def resume_superseding(database: Database, now: int, notify: ChangeListener) -> None:
    """Finish what a service before this one has left undone."""
    for number, older in await database.read(_list_superseded_jobs):
        await supersede_older_jobs(database, number, older, now, notify)


def _list_superseded_jobs(connection: Connection) -> list[tuple[int, list[int]]]:
    """Open jobs, and those before each of them that give up their devices."""
    giving = find_conflicting_jobs(connection).superseded
    if not giving:
        return []
    query = select(job.c.id).where(job.c.finished_at.is_(None)).order_by(job.c.created_at, job.c.id)
    seen: list[int] = []
    found = []
    for number in connection.scalars(query):
        if seen:
            found.append((number, seen.copy()))
        if number in giving:
            seen.append(number)
    return found


def _supersede_chunk(
    connection: Connection, job_number: int, older: Sequence[int], after: int, now: int
) -> tuple[int | None, list[ExecutionChange]]:
    """Look at some devices of a job; the last of them, or None: there are no more; and what was taken."""
    columns = execution.c
    mine = select(columns.device).where(columns.job == job_number, columns.device > after, columns.wave >= 0)
    devices = connection.scalars(mine.order_by(columns.device).limit(_DEVICES_PER_CHUNK)).all()
    changed = _supersede_devices(connection, job_number, older, devices, now) if devices else []
    return (devices[-1] if len(devices) == _DEVICES_PER_CHUNK else None), changed


def _supersede_devices(
    connection: Connection, job_number: int, older: Sequence[int], devices: Sequence[int], now: int
) -> list[ExecutionChange]:
    reason = f"job-{job_number} took it over"
    here = f"device BETWEEN {devices[0]} AND {devices[-1]} AND device IN numbers"
    theirs = f"job IN ({', '.join(map(str, older))}) AND {here}"
    # Whether it is true, or PostgreSQL would look at all that is queued and not at these devices.
    queued = "(state = 'QUEUED') IS TRUE"
    moved: Sequence[Sequence[Any]] = bulk.execute_in(
        connection,
        f"UPDATE execution SET state = 'SUPERSEDED', code = 'NEWER_JOB', reason = '{reason}', waiting = NULL,"  # noqa: S608 # numbers, and our own words
        f" expires = NULL, version = version + 1, updated_at = {now} WHERE {theirs} AND {queued}"
        " RETURNING job, device, gateway, wave",
        devices,
    ).fetchall()
    if not moved:
        return []
    bulk.execute_in(
        connection,
        "INSERT INTO transition (job, device, time, before, after, attempt, version, actor, cause)"  # noqa: S608 # as above
        f" SELECT job, device, {now}, 'QUEUED', state, attempt, version, '{SERVICE.display_name}', reason"
        f" FROM execution WHERE {theirs} AND state = 'SUPERSEDED' AND updated_at = {now}"
        f" AND reason = '{reason}' ORDER BY job, device",
        devices,
    )
    _update_tallies(connection, Counter((row[0], row[-1]) for row in moved))
    return [ExecutionChange(*row[:-1]) for row in moved]


def _update_tallies(connection: Connection, moved: Counter[tuple[int, int]]) -> None:
    """Correct the counts of the jobs that gave devices up, by wave."""
    changes: list[tuple[Any, ...]] = []
    for (number, wave), count in sorted(moved.items()):
        changes.append((number, wave, str(ExecutionState.QUEUED), -count))
        changes.append((number, wave, str(ExecutionState.SUPERSEDED), count))
    bulk.insert_rows(
        connection, tally, changes, on_conflict="UPDATE SET count = tally.count + excluded.count"
    )
