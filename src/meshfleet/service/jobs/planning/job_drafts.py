"""The targets of a job are written down before anybody can see it.

A draft gives the number. Executions follow in chunks, so that other writers are not held up, and belong to
nothing until the job itself is there: its row comes in one last transaction. A draft that is never finished
is swept away; so are the rows of a deleted job, which becomes a draft that was given up.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import fields, replace
from sqlalchemy import delete, insert, select, update

from meshfleet.db import bulk
from meshfleet.db.tables import execution, job, job_draft, tally, transition
from meshfleet.errors import Conflict, KeyReused, NotFound
from meshfleet.rest import ExecutionState, JobState, NewJob
from meshfleet.service.audit import log as audit
from meshfleet.service.jobs.compatibility import ExclusionCode, select_method
from meshfleet.service.jobs.job_states import build_start_columns, compute_outcome
from meshfleet.service.jobs.planning import conflicts, firmware_lookup
from meshfleet.service.jobs.rollout import LEFT_OUT_WAVE
from meshfleet.service.jobs.waves import PlannedWave

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.actor import Actor
    from meshfleet.service.jobs.planning.conflicts import ConflictingJobs
    from meshfleet.service.jobs.planning.eligibility import JobTarget, ResolvedTargets
    from meshfleet.service.jobs.planning.firmware_lookup import ReleasedFirmware
    from meshfleet.service.jobs.planning.validation import ValidatedJob
    from meshfleet.service.jobs.waves import WaveAssignment
    from meshfleet.service.requests.idempotency import IdempotencyKey

EXECUTIONS_PER_CHUNK: Final = 2000
"""Executions that are written at once; others wait meanwhile."""

_MAX_LISTED_DEVICES: Final = 100
"""Ids of devices that an order is shown with."""

_ROWS_PER_SWEEP: Final = 2000
"""Rows that are removed at once."""

ABANDONED_AT: Final = 0
"""`job_draft.created_at` of a draft that was broken off, and of a job that was deleted."""

_PUBLISH_LOCK: Final = 0x6D66_6A6F
"""On PostgreSQL: jobs come to be seen one after the other, and each knows those before it."""

_VARIABLE_COLUMNS: Final = (
    "device",
    "gateway",
    "from_version",
    "state",
    "wave",
    "due",
    "method",
    "code",
    "reason",
)
"""Columns in which the executions of a new job differ."""

_INITIAL_VALUES: Final = {"attempt": 1, "progress": 0, "tries": 0, "beats": 0, "is_read": False, "version": 0}
_DELETE_ROWS: Final = tuple(
    f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE job = ? ORDER BY {order} LIMIT ?)"  # noqa: S608 # our own names
    for table, key, order in (
        ("transition", "id", "device, id"),
        ("evidence", "id", "device, id"),
        ("job_outbox", "id", "device"),
        ("execution", "job, device", "device"),
        ("tally", "job, wave, state", "wave"),
    )
)
"""Remove rows of a job that is not there any more, or never was: at most so many each."""


ExecutionValues = tuple[Any, ...]


class ConflictsChanged(Exception):
    """A job has come meanwhile that lets no newer one have its devices."""


class JobPlan(NamedTuple):
    """All that a job will be made of."""

    job: ValidatedJob
    firmware: ReleasedFirmware
    targets: ResolvedTargets
    waves: WaveAssignment
    seed: int
    conflicting_jobs: ConflictingJobs
    by: Actor
    idempotency_key: IdempotencyKey | None
    parent: int | None


class JobDraft(NamedTuple):
    """A job that nobody sees."""

    number: int
    created_at: int


class PublishedJob(NamedTuple):
    """A job that everybody sees."""

    number: int
    is_new: bool
    """False: the same order came before with this key, and the draft is of no use."""
    superseded_jobs: tuple[int, ...] = ()
    """Jobs that give their devices up to it."""


def insert_draft(connection: Connection, now: int) -> JobDraft:
    """Get a number for a job."""
    return JobDraft(bulk.insert_row(connection, job_draft, now), now)


def build_executions(plan: JobPlan, start: int) -> list[ExecutionValues]:
    """The executions of some targets, from a place on: what differs from one to the other."""
    method = str(select_method(plan.firmware.requirement))
    return [
        _build_execution(each, plan.waves, method)
        for each in plan.targets.iterate(start, start + EXECUTIONS_PER_CHUNK)
    ]


def insert_executions(connection: Connection, draft: JobDraft, rows: Sequence[ExecutionValues]) -> None:
    """Write some executions, as `rows_of` gives them."""
    bulk.insert_columns(
        connection,
        execution,
        _VARIABLE_COLUMNS,
        rows,
        job=draft.number,
        updated_at=draft.created_at,
        **_INITIAL_VALUES,
    )


def publish_draft(connection: Connection, draft: JobDraft, plan: JobPlan, now: int) -> PublishedJob:
    """Let a job be seen, with all its executions; or find the one that came with the same key."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_PUBLISH_LOCK})")
    if (
        plan.idempotency_key is not None
        and (before := find_job_by_key(connection, plan.idempotency_key)) is not None
    ):
        return PublishedJob(before, is_new=False)
    firmware_lookup.lock_released_firmware(connection, plan.firmware.id)
    _check_parent(connection, plan.parent)
    found = conflicts.find_conflicting_jobs(connection)
    if found.rejecting != plan.conflicting_jobs.rejecting:
        raise ConflictsChanged
    finished = (job_draft.c.id == draft.number) & (job_draft.c.created_at == draft.created_at)
    if not connection.execute(delete(job_draft).where(finished)).rowcount:
        raise Conflict("it took so long to write the job down that it was given up")
    _insert_job(connection, draft.number, plan, now)
    return PublishedJob(draft.number, is_new=True, superseded_jobs=found.superseded)


def _check_parent(connection: Connection, job_number: int | None) -> None:
    """Raise `NotFound` if the job to be retried was deleted meanwhile: some of its devices may be missing."""
    if job_number is None:
        return
    query = select(job.c.id).where(job.c.id == job_number).with_for_update(read=True)
    if connection.execute(query).first() is None:
        raise NotFound("there is no such job")


def find_job_by_key(connection: Connection, key: IdempotencyKey) -> int | None:
    """The job that came with a key before; `KeyReused` if that was another (rest-25, rest-26)."""
    row = connection.execute(select(job.c.id, job.c.digest).where(job.c.key == key.name)).first()
    if row is None:
        return None
    if row.digest != key.digest:
        raise KeyReused("this Idempotency-Key came before with another request")
    return int(row.id)


def delete_draft_rows(connection: Connection, job_number: int) -> bool:
    """Remove some rows of a draft or a deleted job. Return False if nothing is left, or it became a job.

    A draft cannot be published any more after this.
    """
    given_up = update(job_draft).where(job_draft.c.id == job_number).values(created_at=ABANDONED_AT)
    if not connection.execute(given_up).rowcount:
        return False  # its maker may not have heard that it was published
    room = _ROWS_PER_SWEEP
    for statement in _DELETE_ROWS:
        if room:
            room -= bulk.execute_one(connection, statement, (job_number, room))
    if room:
        connection.execute(delete(job_draft).where(job_draft.c.id == job_number))
    return not room


def sweep_drafts(connection: Connection, before: int) -> bool:
    """Remove some rows of deleted jobs, and of drafts begun before a time. Return False if nothing is left.

    To be called until then, each time in a transaction of its own.
    """
    query = select(job_draft.c.id).where(job_draft.c.created_at < before).order_by(job_draft.c.id).limit(1)
    number: int | None = connection.execute(query).scalar()
    if number is None:
        return False
    delete_draft_rows(connection, number)
    return True


def encode_job_body(body: NewJob) -> str:
    """An order as JSON, with all that holds unless set: that may be something else some day.

    Whom it was for is in its executions, so a long list of devices is not written down again.
    """
    ids = body.targets.device_ids
    if ids is not UNSET and len(ids) > _MAX_LISTED_DEVICES:
        body = replace(body, targets=replace(body.targets, device_ids=ids[:_MAX_LISTED_DEVICES]))
    return msgspec.json.encode(
        {each.encode_name: getattr(body, each.name) for each in fields(NewJob)}
    ).decode()


def _build_execution(target: JobTarget, waves: WaveAssignment, method: str) -> ExecutionValues:
    device, gateway, from_version, misfit = target
    if misfit is None:
        wave, turn = waves.find_position(device)
        return device, gateway, from_version, str(ExecutionState.QUEUED), wave, turn, method, None, None
    state = _find_initial_state(misfit.code)
    if state is ExecutionState.QUEUED:
        return device, gateway, from_version, str(state), LEFT_OUT_WAVE, 0, method, str(misfit.code), None
    return device, gateway, from_version, str(state), LEFT_OUT_WAVE, 0, None, str(misfit.code), misfit.reason


def _find_initial_state(code: ExclusionCode) -> ExecutionState:
    """Return the state of a device that is in no wave. One that reports the target version is asked first."""
    if code is ExclusionCode.ALREADY_THERE:
        return ExecutionState.QUEUED
    return ExecutionState.REJECTED if code is ExclusionCode.EARLIER_JOB else ExecutionState.SKIPPED


def _insert_job(connection: Connection, job_number: int, plan: JobPlan, now: int) -> None:
    """The row of a job, and all that goes with it."""
    checked, order, key = plan.job, plan.job.body, plan.idempotency_key
    counts, fallen = _count_executions(plan), plan.waves.planned
    progress = _build_state_columns(plan, counts, now)
    connection.execute(
        insert(job).values(
            id=job_number,
            firmware=plan.firmware.id,
            body=encode_job_body(order),
            start_at=checked.start_at,
            deadline=checked.deadline,
            seed=plan.seed,
            # A device that misreports its version goes to the last wave, so there is always one.
            waves=msgspec.json.encode([each._asdict() for each in fallen or [PlannedWave(None, 0)]]).decode(),
            wave=0,
            paced_until=0,
            armed="{}",
            created_by=plan.by.display_name,
            created_at=now,
            parent=plan.parent,
            key=None if key is None else key.name,
            digest=None if key is None else key.digest,
            **progress,
        )
    )
    rows = [(job_number, wave, str(state), count) for (wave, state), count in counts.items()]
    bulk.insert_rows(connection, tally, rows)
    connection.execute(
        insert(transition).values(
            job=job_number,
            time=now,
            after=progress["state"],
            attempt=0,
            version=0,
            actor=plan.by.display_name,
            cause="the job was made",
        )
    )
    detail = {"name": order.name, "firmware": order.firmware_id, "devices": len(plan.targets)}
    audit.record_change(connection, plan.by, "job.create", f"job-{job_number}", now=now, **detail)


def _count_executions(plan: JobPlan) -> Counter[tuple[int, ExecutionState]]:
    """How many executions are in which wave and state."""
    counts: Counter[tuple[int, ExecutionState]] = Counter()
    for wave, fallen in enumerate(plan.waves.planned):
        counts[wave, ExecutionState.QUEUED] = fallen.size
    for misfit, count in plan.targets.count_exclusions().items():
        counts[LEFT_OUT_WAVE, _find_initial_state(misfit.code)] += count
    return counts


def _build_state_columns(
    plan: JobPlan, counts: Counter[tuple[int, ExecutionState]], now: int
) -> dict[str, Any]:
    """Return where a new job is: over at once, if there is no device to update or to ask."""
    if ExecutionState.QUEUED not in {state for _, state in counts}:
        how = compute_outcome({state: count for (_, state), count in counts.items()})
        return {"state": str(JobState.COMPLETED), "outcome": str(how), "finished_at": now}
    order = plan.job.body
    if not order.auto_apply:
        return {"state": str(JobState.CREATED)}
    return build_start_columns(start_at=plan.job.start_at, now=now)
