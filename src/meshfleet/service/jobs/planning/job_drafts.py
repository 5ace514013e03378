"""Job drafts: the executions of a job are stored before the job becomes visible.

A draft reserves the job number. Executions are inserted in chunks, so that other writers do not wait long.
The last transaction inserts the row of the job, which publishes the draft. Drafts that are never published
are deleted later. A deleted job becomes such a draft, so that its rows are deleted in chunks, too.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import fields, replace
from sqlalchemy import delete, insert, select, update

from meshfleet.db import bulk
from meshfleet.db.tables import execution, job, job_draft
from meshfleet.errors import Conflict, KeyReused, NotFound
from meshfleet.rest.job_requests import NewJob
from meshfleet.rest.jobs import ExecutionState, JobState
from meshfleet.service.audit import log as audit
from meshfleet.service.jobs.compatibility import ExclusionCode, select_method
from meshfleet.service.jobs.job_states import build_start_columns, compute_outcome
from meshfleet.service.jobs.planning import conflicts, firmware_lookup
from meshfleet.service.jobs.rollout import LEFT_OUT_WAVE
from meshfleet.service.jobs.store import TallyKey, insert_job_transition, update_tallies
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
"""Maximum number of executions inserted in one transaction, for which other writers wait."""

_MAX_LISTED_DEVICES: Final = 100
"""Maximum number of device ids that are stored in the body of a job."""

_ROWS_PER_SWEEP: Final = 2000
"""Maximum number of rows of a draft or deleted job that are deleted in one transaction."""

ABANDONED_AT: Final = 0
"""Value of `job_draft.created_at` that marks the rows of an abandoned draft or deleted job for deletion."""

_PUBLISH_LOCK: Final = 0x6D66_6A6F
"""Key of the PostgreSQL advisory lock that makes processes publish job drafts one after another."""

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
"""Columns in which the executions of a new job differ from each other."""

_INITIAL_VALUES: Final = {"attempt": 1, "progress": 0, "tries": 0, "beats": 0, "is_read": False, "version": 0}
_DELETE_ROWS: Final = tuple(
    f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE job = ? ORDER BY {order} LIMIT ?)"  # noqa: S608 # constants only
    for table, key, order in (
        ("transition", "id", "device, id"),
        ("evidence", "id", "device, id"),
        ("job_outbox", "id", "device"),
        ("execution", "job, device", "device"),
        ("tally", "job, wave, state", "wave"),
    )
)
"""SQL statements that delete a limited number of rows of a draft or deleted job."""


ExecutionValues = tuple[Any, ...]
"""Values of `_VARIABLE_COLUMNS` for one execution."""


class ConflictsChanged(Exception):
    """The jobs that reject newer jobs for their devices have changed since the new job was planned."""


class JobPlan(NamedTuple):
    """All data that is stored when a job is created."""

    job: ValidatedJob
    firmware: ReleasedFirmware
    targets: ResolvedTargets
    waves: WaveAssignment
    seed: int
    """Random seed that determines the order of the devices."""
    conflicting_jobs: ConflictingJobs
    by: Actor
    """User or API key that creates the job."""
    idempotency_key: IdempotencyKey | None
    parent: int | None
    """Number of the job that this job retries; None if this job is not a retry."""


class JobDraft(NamedTuple):
    """Reserved number of a job that is not published yet."""

    number: int
    created_at: int


class PublishedJob(NamedTuple):
    """Result of publishing a draft: the new job, or an earlier job with the same idempotency key."""

    number: int
    is_new: bool
    """False if an earlier request with the same idempotency key created the job, so the draft is unused."""
    superseded_jobs: tuple[int, ...] = ()
    """Older jobs whose queued devices the new job takes over."""


def insert_draft(connection: Connection, now: int) -> JobDraft:
    """Reserve the number of a new job, as a draft."""
    return JobDraft(bulk.insert_row(connection, job_draft, now), now)


def build_executions(plan: JobPlan, start: int) -> list[ExecutionValues]:
    """Build the next chunk of executions, from the target with index `start` on."""
    method = str(select_method(plan.firmware.requirement))
    return [
        _build_execution(each, plan.waves, method)
        for each in plan.targets.iterate_targets(start, start + EXECUTIONS_PER_CHUNK)
    ]


def insert_executions(connection: Connection, draft: JobDraft, rows: Sequence[ExecutionValues]) -> None:
    """Insert a chunk of executions, given as rows from `build_executions`."""
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
    """Publish a draft as a job, or return the earlier job with the same idempotency key.

    Raise `ConflictsChanged` if the jobs that reject newer jobs have changed since the job was planned, and
    `Conflict` if the draft was deleted because it was too old.
    """
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_PUBLISH_LOCK})")
    if (
        plan.idempotency_key is not None
        and (earlier_job := find_job_by_key(connection, plan.idempotency_key)) is not None
    ):
        return PublishedJob(earlier_job, is_new=False)
    firmware_lookup.lock_released_firmware(connection, plan.firmware.id)
    _check_parent(connection, plan.parent)
    conflicting_jobs = conflicts.find_conflicting_jobs(connection)
    if conflicting_jobs.rejecting != plan.conflicting_jobs.rejecting:
        raise ConflictsChanged
    is_draft = (job_draft.c.id == draft.number) & (job_draft.c.created_at == draft.created_at)
    if not connection.execute(delete(job_draft).where(is_draft)).rowcount:
        raise Conflict("creating the job took too long; try again")
    _insert_job(connection, draft.number, plan, now)
    return PublishedJob(draft.number, is_new=True, superseded_jobs=conflicting_jobs.superseded)


def _check_parent(connection: Connection, job_number: int | None) -> None:
    """Raise `NotFound` if the job that is retried was deleted, as its list of devices may be incomplete."""
    if job_number is None:
        return
    query = select(job.c.id).where(job.c.id == job_number).with_for_update(read=True)
    if connection.execute(query).first() is None:
        raise NotFound("job not found")


def find_job_by_key(connection: Connection, key: IdempotencyKey) -> int | None:
    """Return the number of the job that was created with an idempotency key; None if none (rest-25).

    Raise `KeyReused` if the key was used for a different request (rest-26).
    """
    row = connection.execute(select(job.c.id, job.c.digest).where(job.c.key == key.name)).first()
    if row is None:
        return None
    if row.digest != key.digest:
        raise KeyReused("this Idempotency-Key was already used for a different request")
    return int(row.id)


def delete_draft_rows(connection: Connection, job_number: int) -> bool:
    """Delete a limited number of rows of a draft or deleted job. The draft can no longer be published.

    Return False if no rows are left, or if the draft was already published.
    """
    abandon = update(job_draft).where(job_draft.c.id == job_number).values(created_at=ABANDONED_AT)
    if not connection.execute(abandon).rowcount:
        return False  # it was published, although its creator may not have received that result
    remaining = _ROWS_PER_SWEEP
    for statement in _DELETE_ROWS:
        if remaining:
            remaining -= bulk.execute_one(connection, statement, (job_number, remaining))
    if remaining:
        connection.execute(delete(job_draft).where(job_draft.c.id == job_number))
    return not remaining


def delete_abandoned_rows(connection: Connection, before: int) -> bool:
    """Delete a limited number of rows of a deleted job, or of a draft created before the time `before`.

    Call this repeatedly, each time in a new transaction, until it returns False: no rows are left.
    """
    query = select(job_draft.c.id).where(job_draft.c.created_at < before).order_by(job_draft.c.id).limit(1)
    number: int | None = connection.execute(query).scalar()
    if number is None:
        return False
    delete_draft_rows(connection, number)
    return True


def encode_job_body(body: NewJob) -> str:
    """Encode the body of a job as JSON. Include default values, because they may change in a later version.

    A long list of device ids is cut off, because the executions store all devices.
    """
    ids = body.targets.device_ids
    if ids is not UNSET and len(ids) > _MAX_LISTED_DEVICES:
        body = replace(body, targets=replace(body.targets, device_ids=ids[:_MAX_LISTED_DEVICES]))
    return msgspec.json.encode(
        {each.encode_name: getattr(body, each.name) for each in fields(NewJob)}
    ).decode()


def _build_execution(target: JobTarget, waves: WaveAssignment, method: str) -> ExecutionValues:
    """Build the values of the execution of a target: queued in its wave, or excluded."""
    device, gateway, from_version, exclusion = target
    if exclusion is None:
        wave, rank = waves.find_position(device)
        return device, gateway, from_version, str(ExecutionState.QUEUED), wave, rank, method, None, None
    state = _find_initial_state(exclusion.code)
    if state is ExecutionState.QUEUED:
        return device, gateway, from_version, str(state), LEFT_OUT_WAVE, 0, method, str(exclusion.code), None
    code, reason = str(exclusion.code), exclusion.reason
    return device, gateway, from_version, str(state), LEFT_OUT_WAVE, 0, None, code, reason


def _find_initial_state(code: ExclusionCode) -> ExecutionState:
    """Return the initial execution state of an excluded device.

    A device that reports the target version is queued, because its version is read before it is skipped.
    """
    if code is ExclusionCode.ALREADY_THERE:
        return ExecutionState.QUEUED
    return ExecutionState.REJECTED if code is ExclusionCode.EARLIER_JOB else ExecutionState.SKIPPED


def _insert_job(connection: Connection, job_number: int, plan: JobPlan, now: int) -> None:
    """Insert the row of a job, its counts by wave and state, its first transition and an audit row."""
    body, key = plan.job.body, plan.idempotency_key
    counts, planned = _count_executions(plan), plan.waves.planned
    state_columns = _build_state_columns(plan, counts, now)
    connection.execute(
        insert(job).values(
            id=job_number,
            firmware=plan.firmware.id,
            body=encode_job_body(body),
            start_at=plan.job.start_at,
            deadline=plan.job.deadline,
            seed=plan.seed,
            # A device that misreports its version joins the last wave, so there must be one.
            waves=msgspec.json.encode(
                [each._asdict() for each in planned or [PlannedWave(None, 0)]]
            ).decode(),
            wave=0,
            paced_until=0,
            armed="{}",
            created_by=plan.by.display_name,
            created_at=now,
            parent=plan.parent,
            key=None if key is None else key.name,
            digest=None if key is None else key.digest,
            **state_columns,
        )
    )
    tallies = {TallyKey(job_number, wave, state): count for (wave, state), count in counts.items()}
    update_tallies(connection, Counter(tallies))
    insert_job_transition(
        connection,
        job_number,
        None,
        state_columns["state"],
        actor=plan.by.display_name,
        cause="the job was created",
        now=now,
    )
    details = {"name": body.name, "firmware": body.firmware_id, "devices": len(plan.targets)}
    audit.record_change(connection, plan.by, "job.create", f"job-{job_number}", now=now, **details)


def _count_executions(plan: JobPlan) -> Counter[tuple[int, ExecutionState]]:
    """Count the executions of a new job by wave and state."""
    counts: Counter[tuple[int, ExecutionState]] = Counter()
    for wave, planned in enumerate(plan.waves.planned):
        counts[wave, ExecutionState.QUEUED] = planned.size
    for exclusion, count in plan.targets.count_exclusions().items():
        counts[LEFT_OUT_WAVE, _find_initial_state(exclusion.code)] += count
    return counts


def _build_state_columns(
    plan: JobPlan, counts: Counter[tuple[int, ExecutionState]], now: int
) -> dict[str, Any]:
    """Return the state columns of a new job. A job without a queued execution is completed at once."""
    if ExecutionState.QUEUED not in {state for _, state in counts}:
        outcome = compute_outcome({state: count for (_, state), count in counts.items()})
        return {"state": str(JobState.COMPLETED), "outcome": str(outcome), "finished_at": now}
    if not plan.job.body.auto_apply:
        return {"state": str(JobState.CREATED)}
    return build_start_columns(plan.job.start_at, now)
