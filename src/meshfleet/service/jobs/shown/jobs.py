"""Jobs in the database, for people who look at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import firmware, is_active, job
from meshfleet.errors import NotFound
from meshfleet.service.jobs.plan import Counts
from meshfleet.service.jobs.shown.showing import Standing, show_job
from meshfleet.wire.rest import ExecutionState, JobState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.wire.rest import Job

_ROWS: Final = select(job, firmware.c.model, firmware.c.version).join(
    firmware, firmware.c.id == job.c.firmware
)
_TALLIES: Final = "SELECT job, wave, state, count FROM tally WHERE job IN numbers"
# By when they are due, which all are, and with signs before the job: SQLite would look at all of the job.
_MOVED: Final = (
    f"SELECT +job, sum(progress) FROM execution WHERE {is_active()} AND due >= 0"  # noqa: S608 # our own words
    " AND +job IN numbers GROUP BY +job"
)
# Few rows of each job: its own steps have no device.
_RESUMED: Final = (
    "SELECT job, max(time) FROM transition WHERE job IN numbers AND device IS NULL"
    " AND before = 'PAUSED' AND after = 'IN_PROGRESS' GROUP BY job"
)


class JobListing(Struct, frozen=True, kw_only=True):
    """Which jobs are meant."""

    states: tuple[JobState, ...] = ()
    firmware: str | None = None


def page(connection: Connection, asked: JobListing, *, before: int | None, limit: int, now: int) -> list[Job]:
    """The newest jobs, or those before one (rest-136)."""
    query = _ROWS.order_by(job.c.id.desc()).limit(limit)
    if asked.states:
        query = query.where(job.c.state.in_([str(state) for state in asked.states]))
    if asked.firmware is not None:
        query = query.where(job.c.firmware == asked.firmware)
    if before is not None:
        query = query.where(job.c.id < before)
    return _shown(connection, connection.execute(query).all(), now)


def show(connection: Connection, number: int, *, now: int) -> Job:
    """One of them."""
    return _shown(connection, [row(connection, number)], now)[0]


def several(connection: Connection, numbers: Collection[int], *, now: int) -> dict[int, Job]:
    """Some of them by their numbers; those that there are not are left out."""
    found = rows(connection, numbers)
    return dict(zip(found, _shown(connection, list(found.values()), now), strict=True))


def newest_open(connection: Connection, limit: int, *, now: int) -> dict[int, Job]:
    """The newest ones that are not over, by their numbers."""
    query = _ROWS.where(job.c.finished_at.is_(None)).order_by(job.c.id.desc()).limit(limit)
    found = connection.execute(query).all()
    return dict(zip([each.id for each in found], _shown(connection, found, now), strict=True))


def rows(connection: Connection, numbers: Collection[int]) -> dict[int, Row[Any]]:
    """The rows of some jobs by their numbers, as `row` gives them; those that there are not are left out."""
    found = connection.execute(_ROWS.where(job.c.id.in_(numbers))) if numbers else ()
    return {each.id: each for each in found}


def row(connection: Connection, number: int) -> Row[Any]:
    """The row of a job, with the model and version of its firmware."""
    found = connection.execute(_ROWS.where(job.c.id == number)).first()
    if found is None:
        raise NotFound("there is no such job")
    return found


def counts_of(connection: Connection, number: int) -> Counts:
    """How many executions of a job are in which state, by wave."""
    return _counts(connection, [number])[number]


def _shown(connection: Connection, rows: Sequence[Row[Any]], now: int) -> list[Job]:
    numbers = [each.id for each in rows]
    counts = _counts(connection, numbers)
    moved = {each[0]: int(each[1]) for each in bulk.pick(connection, _MOVED, numbers)}
    resumed = _resumed(connection, rows)
    return [
        show_job(each, Standing(counts[each.id], moved.get(each.id, 0), resumed.get(each.id)), now)
        for each in rows
    ]


def _resumed(connection: Connection, rows: Sequence[Row[Any]]) -> dict[int, int]:
    """When jobs that are in progress were resumed, if they were."""
    numbers = [each.id for each in rows if each.state == JobState.IN_PROGRESS]
    return {each[0]: each[1] for each in bulk.pick(connection, _RESUMED, numbers)} if numbers else {}


def _counts(connection: Connection, numbers: Sequence[int]) -> dict[int, Counts]:
    found = {number: Counts() for number in numbers}
    for number, wave, state, count in bulk.pick(connection, _TALLIES, numbers):
        found[number][wave, ExecutionState(state)] = count
    return found
