"""A new job for those that an old one did not update: what is over never changes (rest-139)."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace
from sqlalchemy import select

from meshfleet.db.tables import execution
from meshfleet.errors import Conflict
from meshfleet.service.jobs.job_states import FINISHED, not_now
from meshfleet.service.jobs.making import creating, wanted
from meshfleet.service.jobs.making.checking import check
from meshfleet.service.jobs.making.targets import PAGE
from meshfleet.service.jobs.shown import jobs as reading
from meshfleet.service.jobs.shown.showing import order_of
from meshfleet.wire.rest import ExecutionState, JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.jobs.making.creating import Asked
    from meshfleet.wire.rest import Job, NewJob

_AGAIN: Final = (ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.CANCELED)

_ENDING: Final = " (retry)"
_LONGEST: Final = 200
"""Characters of a name."""


async def retry(database: Database, number: int, asked: Asked, now: Now) -> Job:
    """Make a job like this one for all whose update failed, timed out or was canceled."""
    found = await creating.find_past(database, asked, now)
    if found is not None:
        return found
    row = await database.read(reading.row, number)
    if row.state not in FINISHED:
        raise not_now(JobState(row.state))
    numbers = await _failed(database, number)
    if not numbers:
        raise Conflict("no update of this job failed, timed out or was canceled")
    order = _order(row, now())
    await database.read(wanted.find, order)
    return await creating.make(database, check(order, now()), asked, numbers, now=now, parent=number)


def _order(row: Row[Any], now: int) -> NewJob:
    """The same order, without times that are over."""
    order = order_of(row)
    return replace(
        order,
        name=order.name.removesuffix(_ENDING)[: _LONGEST - len(_ENDING)] + _ENDING,
        start_at=order.start_at if _is_ahead(row.start_at, now) else None,
        deadline=order.deadline if _is_ahead(row.deadline, now) else None,
    )


def _is_ahead(time: int | None, now: int) -> bool:
    return time is not None and time > now


async def _failed(database: Database, number: int) -> array[int]:
    """Those that were not updated, in short reads."""
    found = array("q")
    while True:
        page = await database.read(_page, number, found[-1] if found else -1)
        found.extend(page)
        if len(page) < PAGE:
            return found


def _page(connection: Connection, number: int, after: int) -> Sequence[int]:
    columns = execution.c
    query = select(columns.device).where(
        columns.job == number, columns.device > after, columns.state.in_([str(each) for each in _AGAIN])
    )
    return connection.scalars(query.order_by(columns.device).limit(PAGE)).all()
