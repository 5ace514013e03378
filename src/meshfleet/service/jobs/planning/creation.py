"""Making a job: check, find the targets, part them, and write them down (rest-115)."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace
from sqlalchemy import select

from meshfleet.db.tables import execution
from meshfleet.errors import Conflict, FleetError
from meshfleet.rest import ExecutionState, JobState
from meshfleet.service.jobs.job_states import FINISHED_STATES, build_state_conflict
from meshfleet.service.jobs.notifications import ChangeListener, ignore_changes
from meshfleet.service.jobs.planning import conflicts, firmware_lookup, job_drafts, targets
from meshfleet.service.jobs.planning.conflicts import supersede_older_jobs
from meshfleet.service.jobs.planning.dry_run import build_dry_run, load_fleet_estimate
from meshfleet.service.jobs.planning.eligibility import evaluate_targets
from meshfleet.service.jobs.planning.job_drafts import ConflictsChanged, JobPlan, PublishedJob
from meshfleet.service.jobs.planning.targets import DEVICES_PER_PAGE
from meshfleet.service.jobs.planning.validation import validate_job
from meshfleet.service.jobs.views import job_view as reading
from meshfleet.service.jobs.views.job_view import decode_job_body
from meshfleet.service.jobs.waves import WaveAssignment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.db import Database
    from meshfleet.rest import DryRun, Job, NewJob, Wave
    from meshfleet.service.actor import Actor
    from meshfleet.service.clock import Now
    from meshfleet.service.jobs.planning.eligibility import ResolvedTargets
    from meshfleet.service.jobs.planning.validation import ValidatedJob
    from meshfleet.service.requests.idempotency import IdempotencyKey


_SEED_BITS: Final = 63
"""What a column can hold."""

_MAX_TRIES: Final = 5
"""For a job whose devices others keep claiming while it is written down."""


class JobRequestContext(NamedTuple):
    """Who wants a job, and how often; and who is to hear what becomes of others."""

    by: Actor
    idempotency_key: IdempotencyKey | None
    """With the same key it is one job, however often it is asked for."""
    notify: ChangeListener = ignore_changes


async def create_job(database: Database, body: NewJob, context: JobRequestContext, now: Now) -> Job | DryRun:
    """Make a job, or tell what it would do."""
    if body.dry_run:
        checked = validate_job(body, now())
        return await _run_dry(
            database, checked, context, await targets.resolve_targets(database, body.targets)
        )
    found = await find_earlier_job(database, context, now)
    if found is not None:  # whatever is over by now: the same key gets the same answer
        return found
    checked = validate_job(body, now())
    await database.read(firmware_lookup.load_released_firmware, body)  # before its targets are looked for
    return await create_validated_job(
        database, checked, context, await targets.resolve_targets(database, body.targets), now=now
    )


async def find_earlier_job(database: Database, context: JobRequestContext, now: Now) -> Job | None:
    """The job that came with the same key before."""
    number = (
        None
        if context.idempotency_key is None
        else await database.read(job_drafts.find_job_by_key, context.idempotency_key)
    )
    return None if number is None else await database.read(reading.load_job, number, now=now())


async def create_validated_job(  # noqa: PLR0913 # by name
    database: Database,
    job: ValidatedJob,
    context: JobRequestContext,
    numbers: array[int],
    *,
    now: Now,
    parent: int | None = None,
) -> Job:
    """Make a job for these devices."""
    for _ in range(_MAX_TRIES):
        frozen = await build_job_plan(database, job, context, numbers, parent)
        if not len(frozen.targets):
            raise Conflict("none of these devices is there any more")
        published = await _write_job(database, frozen, now)
        if published is not None:
            await supersede_older_jobs(
                database, published.number, published.superseded_jobs, now(), context.notify
            )
            return await database.read(reading.load_job, published.number, now=now())
    raise Conflict("other jobs keep coming for the same devices")


async def _run_dry(
    database: Database, job: ValidatedJob, context: JobRequestContext, numbers: array[int]
) -> DryRun:
    frozen = await build_job_plan(database, job, context, numbers, None)
    return await asyncio.to_thread(build_dry_run, frozen, await load_fleet_estimate(database, frozen))


async def build_job_plan(
    database: Database, job: ValidatedJob, context: JobRequestContext, numbers: array[int], parent: int | None
) -> JobPlan:
    """All that a job will be made of, as it is now."""
    firmware = await database.read(firmware_lookup.load_released_firmware, job.body)
    others = await database.read(conflicts.find_conflicting_jobs)
    sifted = await evaluate_targets(database, numbers, firmware.requirement, others.rejecting)
    seed = secrets.randbits(_SEED_BITS)
    # In a thread: a hundred thousand devices take a while to be put in order.
    waves = await asyncio.to_thread(assign_waves, seed, sifted, job.body.waves)
    return JobPlan(
        job=job,
        firmware=firmware,
        targets=sifted,
        waves=waves,
        seed=seed,
        conflicting_jobs=others,
        by=context.by,
        idempotency_key=context.idempotency_key,
        parent=parent,
    )


def assign_waves(seed: int, resolved: ResolvedTargets, requested: Sequence[Wave]) -> WaveAssignment:
    """The waves of those that are updated: who is connected goes first (rest-208)."""
    return WaveAssignment(
        seed,
        resolved.list_eligible(connected=True),
        requested,
        deferred=resolved.list_eligible(connected=False),
    )


async def _write_job(database: Database, plan: JobPlan, now: Now) -> PublishedJob | None:
    """Write it all down, and let it be seen; None: others came in between."""
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
    while await database.write(job_drafts.delete_draft_rows, job_number):
        pass


# A new job for those that an old one did not update: what is over never changes (rest-139).

_RETRIED_STATES: Final = (ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.CANCELED)

_NAME_SUFFIX: Final = " (retry)"
_MAX_NAME_LENGTH: Final = 200
"""Characters of a name."""


async def retry_job(database: Database, job_number: int, context: JobRequestContext, now: Now) -> Job:
    """Make a job like this one for all whose update failed, timed out or was canceled."""
    found = await find_earlier_job(database, context, now)
    if found is not None:
        return found
    row = await database.read(reading.load_job_row, job_number)
    if row.state not in FINISHED_STATES:
        raise build_state_conflict(JobState(row.state))
    numbers = await _list_failed_devices(database, job_number)
    if not numbers:
        raise Conflict("no update of this job failed, timed out or was canceled")
    order = _build_retry_body(row, now())
    await database.read(firmware_lookup.load_released_firmware, order)
    return await create_validated_job(
        database, validate_job(order, now()), context, numbers, now=now, parent=job_number
    )


def _build_retry_body(row: Row[Any], now: int) -> NewJob:
    """The same order, without times that are over."""
    order = decode_job_body(row)
    return replace(
        order,
        name=order.name.removesuffix(_NAME_SUFFIX)[: _MAX_NAME_LENGTH - len(_NAME_SUFFIX)] + _NAME_SUFFIX,
        start_at=order.start_at if _is_ahead(row.start_at, now) else None,
        deadline=order.deadline if _is_ahead(row.deadline, now) else None,
    )


def _is_ahead(time: int | None, now: int) -> bool:
    return time is not None and time > now


async def _list_failed_devices(database: Database, job_number: int) -> array[int]:
    """Those that were not updated, in short reads."""
    found = array("q")
    while True:
        page = await database.read(_list_failed_page, job_number, found[-1] if found else -1)
        found.extend(page)
        if len(page) < DEVICES_PER_PAGE:
            return found


def _list_failed_page(connection: Connection, job_number: int, after: int) -> Sequence[int]:
    columns = execution.c
    query = select(columns.device).where(
        columns.job == job_number,
        columns.device > after,
        columns.state.in_([str(each) for each in _RETRIED_STATES]),
    )
    return connection.scalars(query.order_by(columns.device).limit(DEVICES_PER_PAGE)).all()
