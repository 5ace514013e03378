"""A newer job takes over devices from jobs that say so: what they have not begun is over (rest-129).

It happens in chunks right after the newer job is there, so that no device is ever in neither. What a crash
leaves undone is done at the next start: whom a job takes over is written in the tables.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import execution, job, tally
from meshfleet.service.accounts.model import SERVICE
from meshfleet.service.jobs.changes import Changed
from meshfleet.service.jobs.making import rivals
from meshfleet.wire.rest import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.jobs.changes import Tell

_CHUNK: Final = 500
"""Devices at once."""


async def take_over(database: Database, number: int, older: Sequence[int], now: int, tell: Tell) -> None:
    """Let a job have the devices that older ones have not begun with."""
    after: int | None = -1
    while older and after is not None:
        after, changed = await database.write(_take_some, number, older, after, now)
        if changed:
            tell([], changed)


async def take_over_all(database: Database, now: int, tell: Tell) -> None:
    """Finish what a service before this one has left undone."""
    for number, older in await database.read(_rivalries):
        await take_over(database, number, older, now, tell)


def _rivalries(connection: Connection) -> list[tuple[int, list[int]]]:
    """Open jobs, and those before each of them that give up their devices."""
    giving = rivals.find(connection).superseded
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


def _take_some(
    connection: Connection, number: int, older: Sequence[int], after: int, now: int
) -> tuple[int | None, list[Changed]]:
    """Look at some devices of a job; the last of them, or None: there are no more; and what was taken."""
    columns = execution.c
    mine = select(columns.device).where(columns.job == number, columns.device > after, columns.wave >= 0)
    devices = connection.scalars(mine.order_by(columns.device).limit(_CHUNK)).all()
    changed = _supersede(connection, number, older, devices, now) if devices else []
    return (devices[-1] if len(devices) == _CHUNK else None), changed


def _supersede(
    connection: Connection, number: int, older: Sequence[int], devices: Sequence[int], now: int
) -> list[Changed]:
    reason = f"job-{number} took it over"
    here = f"device BETWEEN {devices[0]} AND {devices[-1]} AND device IN numbers"
    theirs = f"job IN ({', '.join(map(str, older))}) AND {here}"
    # Whether it is true, or PostgreSQL would look at all that is queued and not at these devices.
    queued = "(state = 'QUEUED') IS TRUE"
    moved: Sequence[Sequence[Any]] = bulk.run(
        connection,
        f"UPDATE execution SET state = 'SUPERSEDED', code = 'NEWER_JOB', reason = '{reason}', waiting = NULL,"  # noqa: S608 # numbers, and our own words
        f" expires = NULL, version = version + 1, updated_at = {now} WHERE {theirs} AND {queued}"
        " RETURNING job, device, gateway, wave",
        devices,
    ).fetchall()
    if not moved:
        return []
    bulk.run(
        connection,
        "INSERT INTO transition (job, device, time, before, after, attempt, version, actor, cause)"  # noqa: S608 # as above
        f" SELECT job, device, {now}, 'QUEUED', state, attempt, version, '{SERVICE.title}', reason"
        f" FROM execution WHERE {theirs} AND state = 'SUPERSEDED' AND updated_at = {now}"
        f" AND reason = '{reason}' ORDER BY job, device",
        devices,
    )
    _count(connection, Counter((row[0], row[-1]) for row in moved))
    return [Changed(*row[:-1]) for row in moved]


def _count(connection: Connection, moved: Counter[tuple[int, int]]) -> None:
    """Correct the counts of the jobs that gave devices up, by wave."""
    changes: list[tuple[Any, ...]] = []
    for (number, wave), count in sorted(moved.items()):
        changes.append((number, wave, str(ExecutionState.QUEUED), -count))
        changes.append((number, wave, str(ExecutionState.SUPERSEDED), count))
    bulk.insert(connection, tally, changes, otherwise="UPDATE SET count = tally.count + excluded.count")
