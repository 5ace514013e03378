"""Jobs end early when their firmware is withdrawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import insert, select, update

from meshfleet.db.tables import job, transition
from meshfleet.service.audit import log as audit
from meshfleet.wire.rest import JobState, StopCause

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.service.accounts.model import Actor

_STOPPABLE: Final = (
    JobState.CREATED,
    JobState.PENDING_APPROVAL,
    JobState.SCHEDULED,
    JobState.IN_PROGRESS,
    JobState.PAUSED,
)


def stop_jobs_of(connection: Connection, firmware_id: str, *, by: Actor, now: int) -> None:
    """Begin to cancel all jobs with this firmware that are not over, in the transaction that withdraws it."""
    mine = (job.c.firmware == firmware_id) & job.c.finished_at.is_(None) & job.c.state.in_(_STOPPABLE)
    found = connection.execute(select(job.c.id, job.c.state).where(mine).order_by(job.c.id).with_for_update())
    jobs = found.all()
    if not jobs:
        return
    connection.execute(
        update(job)
        .where(job.c.id.in_([number for number, _ in jobs]))
        .values(state=JobState.CANCELING, stop_cause=StopCause.RELEASE_WITHDRAWN, pause_reason=None)
    )
    connection.execute(
        insert(transition),
        [
            {
                "job": number,
                "device": None,
                "time": now,
                "before": before,
                "after": JobState.CANCELING,
                "attempt": 0,
                "version": 0,
                "actor": by.title,
                "cause": "its firmware was withdrawn",
            }
            for number, before in jobs
        ],
    )
    targets = [f"job-{number}" for number, _ in jobs]
    audit.record_all(connection, by, "job.cancel", targets, now=now, cause=StopCause.RELEASE_WITHDRAWN)
