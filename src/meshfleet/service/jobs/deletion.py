"""Deletes jobs that are over or were never started (rest-214).

One short transaction removes the row of the job, so that from then on it is nowhere to be seen, and leaves a
record of it in the audit log. Its executions, with their transitions and evidence, may be a million rows. So
the number of the job goes to the drafts that were given up, whose rows `making.freezing.sweep` removes in
chunks, also after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select

from meshfleet.db.tables import firmware, job, job_draft, tally
from meshfleet.errors import NotFound
from meshfleet.service.audit import log as audit
from meshfleet.service.jobs.job_states import check_deletable
from meshfleet.service.jobs.making.freezing import GIVEN_UP
from meshfleet.service.jobs.shown import jobs as reading
from meshfleet.service.jobs.shown.showing import order_of
from meshfleet.wire.rest import JobState
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from meshfleet.service.accounts.model import Actor


def delete_job(connection: Connection, number: int, *, by: Actor, now: int) -> None:
    """Remove a job from sight. Raise `Conflict` if it may still do something."""
    held = select(job).where(job.c.id == number).with_for_update()
    row = connection.execute(held).first()
    if row is None:
        raise NotFound("there is no such job")
    check_deletable(JobState(row.state))
    kept = _describe(connection, row)
    connection.execute(delete(job).where(job.c.id == number))
    connection.execute(delete(tally).where(tally.c.job == number))
    connection.execute(insert(job_draft).values(id=number, created_at=GIVEN_UP))
    audit.record(connection, by, "job.delete", f"job-{number}", now=now, **kept)


def _describe(connection: Connection, row: Row[Any]) -> dict[str, Any]:
    """Return what the audit log keeps of a job."""
    version = select(firmware.c.version).where(firmware.c.id == row.firmware)
    counts = reading.counts_of(connection, row.id).by_state()
    return {
        "name": order_of(row).name,
        "firmware": row.firmware,
        "version": connection.execute(version).scalar_one(),
        "state": row.state,
        "outcome": row.outcome,
        "counts": {str(state): count for state, count in counts.items() if count},
        "createdBy": row.created_by,
        "createdAt": write_millis(row.created_at),
    }
