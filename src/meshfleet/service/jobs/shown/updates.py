"""What becomes of one device in all jobs that are not over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import select

from meshfleet.db.tables import execution, job
from meshfleet.service.jobs.shown import jobs as reading
from meshfleet.service.jobs.shown.executions import shown, told_by
from meshfleet.service.jobs.shown.showing import order_of
from meshfleet.wire.rest import DeviceUpdate, JobState

if TYPE_CHECKING:
    from sqlalchemy import Connection


class UpdateListing(Struct, frozen=True, kw_only=True):
    """Whose updates are meant."""

    device: int


def page(
    connection: Connection, asked: UpdateListing, *, before: int | None, limit: int
) -> list[DeviceUpdate]:
    """Its executions in open jobs, the newest of these first, or in those before one (rest-211).

    There are few open jobs, and in each of them the execution of a device is found by its key.
    """
    opened = select(job.c.id).where(job.c.finished_at.is_(None))
    if before is not None:
        opened = opened.where(job.c.id < before)
    mine = (execution.c.device == asked.device) & execution.c.job.in_(opened)
    rows = connection.execute(select(execution).where(mine).order_by(execution.c.job.desc()).limit(limit))
    found = rows.all()
    jobs = reading.rows(connection, [each.job for each in found])
    return [
        DeviceUpdate(
            **asdict(shown(each, told_by(jobs[each.job]))),
            job_id=f"job-{each.job}",
            job_name=order_of(jobs[each.job]).name,
            job_state=JobState(jobs[each.job].state),
        )
        for each in found
    ]
