"""Creates jobs: validates the request, finds target devices, plans waves, and stores the job (rest-115)."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace
from sqlalchemy import select

from meshfleet.db.tables import execution
from meshfleet.errors import Conflict, FleetError
from meshfleet.rest.jobs import ExecutionState, JobState
from meshfleet.service.jobs.job_states import FINISHED_STATES, build_state_conflict
from meshfleet.service.jobs.notifications import ChangeListener, ignore_changes
from meshfleet.service.jobs.planning import conflicts, firmware_lookup, job_drafts, targets
from meshfleet.service.jobs.planning.conflicts import take_over_queued_devices
from meshfleet.service.jobs.planning.dry_run import build_dry_run, load_fleet_estimate
from meshfleet.service.jobs.planning.eligibility import evaluate_targets
from meshfleet.service.jobs.planning.job_drafts import ConflictsChanged, JobPlan, PublishedJob
from meshfleet.service.jobs.planning.targets import DEVICES_PER_PAGE
from meshfleet.service.jobs.planning.validation import validate_job
from meshfleet.service.jobs.views import job_view
from meshfleet.service.jobs.views.job_view import decode_job_body
from meshfleet.service.jobs.waves import WaveAssignment

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.db import Database
    from meshfleet.rest.job_requests import NewJob, Wave
    from meshfleet.rest.jobs import DryRun, Job
    from meshfleet.service.actor import Actor
    from meshfleet.service.clock import Now
    from meshfleet.service.jobs.planning.eligibility import ResolvedTargets
    from meshfleet.service.jobs.planning.validation import ValidatedJob
    from meshfleet.service.requests.idempotency import IdempotencyKey


_SEED_BITS: Final = 63
"""Number of bits of the random seed that orders the devices of a job. It fits a signed 64-bit column."""

_MAX_TRIES: Final = 5
"""Maximum tries to store a job while other jobs are created that reject the job for their devices."""


class JobRequestContext(NamedTuple):
    """User, idempotency key and change notification of a request that creates a job."""

    by: Actor
    """User or API key that creates the job."""
    idempotency_key: IdempotencyKey | None
    """Key with which a repeated request creates only one job; None if the request has no key."""
    notify: ChangeListener = ignore_changes
    """Callback that gets the executions of older jobs whose devices the new job takes over."""


async def create_job(database: Database, body: NewJob, context: JobRequestContext, now: Now) -> Job | DryRun:
    """Create a job. If the request is a dry run, only return what the job would do.

    If the idempotency key was used before, return the job that was created with the key.
    """
    if body.dry_run:
        validated = validate_job(body, now())
        return await _dry_run_job(
            database, validated, context, await targets.resolve_targets(database, body.targets)
        )
    earlier_job = await find_earlier_job(database, context, now)
    if earlier_job is not None:  # before the validation, which may fail now: the deadline may have passed
        return earlier_job
    validated = validate_job(body, now())
    await database.read(firmware_lookup.load_released_firmware, body)  # fail before targets are resolved
    return await create_validated_job(
        database, validated, context, await targets.resolve_targets(database, body.targets), now=now
    )


async def find_earlier_job(database: Database, context: JobRequestContext, now: Now) -> Job | None:
    """Return the job that an earlier request with the same idempotency key created; None if there is none."""
    if context.idempotency_key is None:
        return None
    number = await database.read(job_drafts.find_job_by_key, context.idempotency_key)
    return None if number is None else await database.read(job_view.load_job, number, now=now())


async def create_validated_job(  # noqa: PLR0913 # the last two are keyword-only
    database: Database,
    job: ValidatedJob,
    context: JobRequestContext,
    devices: array[int],
    *,
    now: Now,
    parent: int | None = None,
) -> Job:
    """Create a job for `devices`. Plan the job again if conflicting jobs change while the job is stored.

    `parent` is the number of the job that this job retries; None if this job is not a retry.
    """
    for _ in range(_MAX_TRIES):
        plan = await build_job_plan(database, job, context, devices, parent)
        if not len(plan.targets):
            raise Conflict("none of the target devices exists any more")
        published = await _write_job(database, plan, now)
        if published is not None:
            await take_over_queued_devices(
                database, published.number, published.superseded_jobs, now(), context.notify
            )
            return await database.read(job_view.load_job, published.number, now=now())
    raise Conflict("other jobs keep being created for the same devices; try again")


async def _dry_run_job(
    database: Database, job: ValidatedJob, context: JobRequestContext, devices: array[int]
) -> DryRun:
    """Plan a job, and return what the job would do."""
    plan = await build_job_plan(database, job, context, devices, None)
    return await asyncio.to_thread(build_dry_run, plan, await load_fleet_estimate(database, plan))


async def build_job_plan(
    database: Database, job: ValidatedJob, context: JobRequestContext, devices: array[int], parent: int | None
) -> JobPlan:
    """Build the plan of a job from the current firmware, devices and conflicting jobs."""
    firmware = await database.read(firmware_lookup.load_released_firmware, job.body)
    conflicting_jobs = await database.read(conflicts.find_conflicting_jobs)
    resolved = await evaluate_targets(database, devices, firmware.requirement, conflicting_jobs.rejecting)
    seed = secrets.randbits(_SEED_BITS)
    # In a thread: sorting a hundred thousand devices would block the event loop.
    waves = await asyncio.to_thread(assign_waves, seed, resolved, job.body.waves)
    return JobPlan(
        job=job,
        firmware=firmware,
        targets=resolved,
        waves=waves,
        seed=seed,
        conflicting_jobs=conflicting_jobs,
        by=context.by,
        idempotency_key=context.idempotency_key,
        parent=parent,
    )


def assign_waves(seed: int, resolved: ResolvedTargets, requested: Sequence[Wave]) -> WaveAssignment:
    """Assign the eligible devices to waves; connected devices come first (rest-208)."""
    return WaveAssignment(
        seed,
        resolved.list_eligible_devices(connected=True),
        requested,
        deferred=resolved.list_eligible_devices(connected=False),
    )


async def _write_job(database: Database, plan: JobPlan, now: Now) -> PublishedJob | None:
    """Store a job as a draft and publish the draft. Return None if conflicting jobs have changed."""
    draft = await database.write(job_drafts.insert_draft, now())
    try:
        for start in range(0, len(plan.targets), job_drafts.EXECUTIONS_PER_CHUNK):
            rows = await asyncio.to_thread(job_drafts.build_executions, plan, start)
            await database.write(job_drafts.insert_executions, draft, rows)
        published = await database.write(job_drafts.publish_draft, draft, plan, now())
    except ConflictsChanged:
        await _discard_draft(database, draft.number)
        return None
    except FleetError:
        await _discard_draft(database, draft.number)
        raise
    if not published.is_new:
        await _discard_draft(database, draft.number)
    return published


async def _discard_draft(database: Database, job_number: int) -> None:
    """Delete all rows of a draft that will not be published."""
    while await database.write(job_drafts.delete_draft_rows, job_number):
        pass


# Retry: a new job for devices that a finished job did not update. Finished jobs never change (rest-139).

_RETRIED_STATES: Final = (ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.CANCELED)

_NAME_SUFFIX: Final = " (retry)"
_MAX_NAME_LENGTH: Final = 200
"""Maximum length of a job name in characters."""


async def retry_job(database: Database, job_number: int, context: JobRequestContext, now: Now) -> Job:
    """Create a copy of a finished job for the devices whose update failed, timed out or was canceled.

    Raise `Conflict` if the job has not finished or has no such device.
    """
    earlier_job = await find_earlier_job(database, context, now)
    if earlier_job is not None:
        return earlier_job
    row = await database.read(job_view.load_job_row, job_number)
    if row.state not in FINISHED_STATES:
        raise build_state_conflict(JobState(row.state))
    devices = await targets.read_device_pages(database, _list_failed_page, job_number)
    if not devices:
        raise Conflict("nothing to retry: no update of this job failed, timed out or was canceled")
    body = _build_retry_body(row, now())
    await database.read(firmware_lookup.load_released_firmware, body)
    return await create_validated_job(
        database, validate_job(body, now()), context, devices, now=now, parent=job_number
    )


def _build_retry_body(row: Row[Any], now: int) -> NewJob:
    """Build the body of a retry from the body of the job. Leave out a start time or deadline in the past."""
    body = decode_job_body(row)
    return replace(
        body,
        name=body.name.removesuffix(_NAME_SUFFIX)[: _MAX_NAME_LENGTH - len(_NAME_SUFFIX)] + _NAME_SUFFIX,
        start_at=body.start_at if _is_future(row.start_at, now) else None,
        deadline=body.deadline if _is_future(row.deadline, now) else None,
    )


def _is_future(time: int | None, now: int) -> bool:
    """Return whether a time is after `now`; False if there is no time."""
    return time is not None and time > now


def _list_failed_page(connection: Connection, job_number: int, after: int) -> Sequence[int]:
    """Return a page of devices that follow `after` and whose update failed, timed out or was canceled."""
    columns = execution.c
    query = select(columns.device).where(
        columns.job == job_number,
        columns.device > after,
        columns.state.in_([str(each) for each in _RETRIED_STATES]),
    )
    return connection.scalars(query.order_by(columns.device).limit(DEVICES_PER_PAGE)).all()
