"""Writes state changes: transitions of jobs, ends of queued executions, and counts of executions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.tables import tally, transition
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.notifications import ExecutionChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.rest.jobs import JobState
    from meshfleet.service.jobs.compatibility import ExclusionCode
    from meshfleet.service.jobs.updates.reasons import ReasonCode

ENGINE_ACTOR: Final = "meshfleet"
"""Actor that is stored with transitions which the service made by itself."""

_ADD_COUNT: Final = "UPDATE SET count = tally.count + excluded.count"

# BETWEEN and IS TRUE keep PostgreSQL from reading all queued executions of the jobs.
_END_QUEUED: Final = (
    "UPDATE execution SET state = :state, code = :code, reason = :reason, waiting = NULL, expires = NULL,"
    " updated_at = :now, version = version + 1 WHERE job IN ({jobs})"
    " AND device BETWEEN :first AND :last AND device IN numbers AND (state = 'QUEUED') IS TRUE"
    " RETURNING job, device, gateway, wave, attempt, version"
)


class TallyKey(NamedTuple):
    """Key of the table `tally`, which counts the executions of a job by wave and state."""

    job: int
    wave: int
    state: str


class QueueEnding(NamedTuple):
    """How queued executions end."""

    state: ExecutionState
    """Terminal state that the executions enter."""
    reason: str
    """Reason as a sentence for users."""
    code: ReasonCode | ExclusionCode
    """Reason as a code for programs."""
    actor: str = ENGINE_ACTOR
    """User or service that ends the executions, stored with their transitions."""


def insert_job_transition(  # noqa: PLR0913 # the last three are keyword-only
    connection: Connection,
    job: int,
    before: JobState | None,
    after: JobState,
    *,
    actor: str,
    cause: str,
    now: int,
) -> None:
    """Add a transition to the history of a job. `before` is None for the creation of the job."""
    state_before = None if before is None else str(before)
    bulk.insert_row(
        connection, transition, job, None, now, state_before, str(after), 0, 0, actor, cause, None
    )


def update_tallies(connection: Connection, deltas: Counter[TallyKey]) -> None:
    """Add `deltas` to the stored counts of executions by job, wave and state (table `tally`)."""
    rows = [(*key, change) for key, change in sorted(deltas.items()) if change]
    bulk.upsert_rows(connection, tally, rows, on_conflict=_ADD_COUNT)


def end_queued_executions(
    connection: Connection, jobs: Sequence[int], devices: Sequence[int], ending: QueueEnding, now: int
) -> list[ExecutionChange]:
    """End the executions of `devices` that are still queued in `jobs`, and return the ended executions.

    Also write their transitions, and update the counts of executions. `devices` must be sorted and not empty.
    """
    found = bulk.query_in(
        connection,
        _END_QUEUED.format(jobs=", ".join(map(str, jobs))),
        devices,
        state=str(ending.state),
        code=str(ending.code),
        reason=ending.reason,
        now=now,
        first=devices[0],
        last=devices[-1],
    )
    rows = sorted(map(tuple, found))
    deltas: Counter[TallyKey] = Counter()
    for job, _, _, wave, *_ in rows:
        deltas[TallyKey(job, wave, ExecutionState.QUEUED)] -= 1
        deltas[TallyKey(job, wave, ending.state)] += 1
    update_tallies(connection, deltas)
    bulk.insert_columns(
        connection,
        transition,
        ("job", "device", "attempt", "version"),
        [(job, device, attempt, version) for job, device, _, _, attempt, version in rows],
        time=now,
        before=str(ExecutionState.QUEUED),
        after=str(ending.state),
        actor=ending.actor,
        cause=ending.reason,
    )
    return [ExecutionChange(job, device, gateway) for job, device, gateway, *_ in rows]
