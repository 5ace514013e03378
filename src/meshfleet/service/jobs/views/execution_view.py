"""Loads executions in the form that the REST API returns, with their history and evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import select, tuple_

from meshfleet.db.tables import evidence, execution, job, transition
from meshfleet.errors import NotFound
from meshfleet.protocol.ids import Mac, mac_from_int, mac_to_int, to_device_id
from meshfleet.protocol.products import UpdateMethod
from meshfleet.protocol.times import format_millis, format_optional_millis
from meshfleet.rest.jobs import (
    DeviceUpdate,
    Evidence,
    Execution,
    ExecutionDetail,
    ExecutionState,
    JobState,
    Transition,
)
from meshfleet.service.jobs.rollout import LEFT_OUT_WAVE
from meshfleet.service.jobs.updates.states import TERMINAL_STATES
from meshfleet.service.jobs.views import job_view
from meshfleet.service.jobs.views.job_view import decode_job_body, decode_waves
from meshfleet.service.jobs.wait_reasons import ExecutionSnapshot, JobSnapshot, describe_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sqlalchemy import Connection, Row


_MAX_EVIDENCE: Final = 1000
"""Maximum number of evidence items per execution that are returned; older items are left out."""

_FORMATTERS: Final[Mapping[str, Mapping[str, Callable[[int], str]]]] = {
    "dfu": {"gateway": mac_from_int, "parent": mac_from_int},
    "heartbeat": {"time": format_millis},
}
"""Formatters of MACs and times that are stored as integers, by kind of evidence and field name."""


class ExecutionListing(Struct, frozen=True, kw_only=True):
    """Filter of the list of executions of one job. An empty tuple or None matches any value."""

    job: int
    states: tuple[ExecutionState, ...] = ()
    gateway: Mac | None = None
    codes: tuple[str, ...] = ()
    devices: tuple[Mac, ...] | None = None
    """Devices whose executions are listed; None means all devices."""
    left_out: bool | None = None
    """Whether to list devices that were excluded when the job was created; None lists all devices."""


class JobExecution(NamedTuple):
    """Execution with the number of its job."""

    job: int
    execution: Execution


class JobContext(Struct, frozen=True):
    """Data of a job that is needed to build any of its executions."""

    job: JobSnapshot
    wave_names: list[str]
    version: str


def list_executions(
    connection: Connection, listing: ExecutionListing, *, after: int, limit: int
) -> list[Execution]:
    """List executions sorted by device, starting after the device `after` (rest-140)."""
    context = build_job_context(job_view.load_job_row(connection, listing.job))
    columns = execution.c
    query = select(execution).where(columns.job == listing.job, columns.device > after)
    if listing.states:
        query = query.where(columns.state.in_([str(state) for state in listing.states]))
    if listing.gateway is not None:
        query = query.where(columns.gateway == mac_to_int(listing.gateway))
    if listing.codes:
        query = query.where(columns.code.in_(listing.codes))
    if listing.devices is not None:
        query = query.where(columns.device.in_([mac_to_int(each) for each in listing.devices]))
    if listing.left_out is not None:
        query = query.where(
            columns.wave == LEFT_OUT_WAVE if listing.left_out else columns.wave != LEFT_OUT_WAVE
        )
    rows = connection.execute(query.order_by(columns.device).limit(limit))
    return [build_execution(row, context) for row in rows]


def load_execution(connection: Connection, job_number: int, device: Mac) -> ExecutionDetail:
    """Load an execution with its history (rest-141). Raise `NotFound` if the device is not in the job."""
    job = job_view.load_job_row(connection, job_number)
    is_requested = (execution.c.job == job_number) & (execution.c.device == mac_to_int(device))
    row = connection.execute(select(execution).where(is_requested)).first()
    if row is None:
        raise NotFound(f"{to_device_id(device)} is not in this job")
    history = _load_history(connection, row)
    return ExecutionDetail(
        **asdict(build_execution(row, build_job_context(job))),
        transitions=[_build_first_transition(job, row), *history.transitions],
        evidence=history.other_evidence,
        later=history.late_evidence,
    )


def load_executions(connection: Connection, job_number: int, devices: Collection[int]) -> list[Execution]:
    """Load the executions of devices in a job. Return an empty list if the job does not exist."""
    try:
        context = build_job_context(job_view.load_job_row(connection, job_number))
    except NotFound:
        return []
    query = select(execution).where(execution.c.job == job_number, execution.c.device.in_(devices))
    return [build_execution(row, context) for row in connection.execute(query)]


def list_transfers(
    connection: Connection, jobs: Collection[int], *, after: tuple[int, int], limit: int
) -> list[JobExecution]:
    """List the TRANSFERRING executions of jobs, sorted by job number and device.

    The list starts with the execution that follows `after`, a pair of job number and device.
    """
    columns = execution.c
    query = select(execution).where(
        columns.job.in_(jobs),
        columns.state == str(ExecutionState.TRANSFERRING),
        tuple_(columns.job, columns.device) > after,
    )
    rows = connection.execute(query.order_by(columns.job, columns.device).limit(limit)).all()
    contexts = {
        number: build_job_context(job_view.load_job_row(connection, number))
        for number in {row.job for row in rows}
    }
    return [JobExecution(row.job, build_execution(row, contexts[row.job])) for row in rows]


def build_job_snapshot(job: Row[Any]) -> JobSnapshot:
    """Build the data of a job that determines what its executions wait for."""
    body = decode_job_body(job)
    return JobSnapshot(
        state=JobState(job.state),
        wave=job.wave,
        start_at=job.start_at,
        heartbeats=body.health.heartbeats,
        is_staging=body.stage and job.applied_at is None,
    )


def build_job_context(job: Row[Any]) -> JobContext:
    """Build the data that all executions of a job need. `job` is a row from `job_view.load_job_row`."""
    names = [each.name or str(number) for number, each in enumerate(decode_waves(job), start=1)]
    return JobContext(build_job_snapshot(job), names, job.version)


def build_execution(row: Row[Any], context: JobContext) -> Execution:
    """Build an execution from a row of the table `execution`."""
    state = ExecutionState(row.state)
    snapshot = ExecutionSnapshot(
        state,
        row.wave,
        row.waiting,
        row.due,
        row.beats,
        row.is_read,
        reason=row.reason,
        step=row.step,
        until=_find_deadline(row),
    )
    return Execution(
        device_id=to_device_id(mac_from_int(row.device)),
        state=state,
        attempt=row.attempt,
        progress=row.progress,
        waiting_for=describe_wait(context.job, snapshot),
        reason=row.reason,
        reason_code=row.code,
        method=None if row.method is None else UpdateMethod(row.method),
        wave=None if row.wave == LEFT_OUT_WAVE else context.wave_names[row.wave],
        gateway=None if row.gateway is None else mac_from_int(row.gateway),
        started_at=format_optional_millis(row.started_at),
        updated_at=format_millis(row.updated_at),
        from_version=row.from_version,
        to_version=context.version,
    )


def _find_deadline(row: Row[Any]) -> int | None:
    """Return the next deadline of an execution as monotonic time in milliseconds.

    Return None if there is no deadline, or if the timers are suspended.
    """
    deadlines = [each for each in (row.expires, row.total_until) if each is not None]
    return min(deadlines, default=None) if row.suspended_at is None else None


def _build_first_transition(job: Row[Any], row: Row[Any]) -> Transition:
    """Build the first transition of an execution, which is not stored: the creation of its job."""
    was_excluded = row.wave == LEFT_OUT_WAVE and not row.version
    first_state = ExecutionState(row.state) if was_excluded else ExecutionState.QUEUED
    return Transition(
        from_=None,
        to=first_state,
        time=format_millis(job.created_at),
        attempt=1,
        actor=job.created_by,
        cause=(row.reason if was_excluded else None) or "the job was created",
        evidence=None,
    )


class _History(NamedTuple):
    """Transitions of an execution with their evidence, and evidence without a transition."""

    transitions: list[Transition]
    other_evidence: list[Evidence]
    """Evidence without a transition that arrived before the end of the execution."""
    late_evidence: list[Evidence]
    """Evidence that arrived after the end of the execution."""


def _load_history(connection: Connection, row: Row[Any]) -> _History:
    """Load the transitions of an execution with their evidence, and the evidence without a transition.

    Evidence that arrived after the end of the execution is returned separately.
    """
    transitions = connection.execute(
        select(transition)
        .where(transition.c.job == row.job, transition.c.device == row.device)
        .order_by(transition.c.id)
    ).all()
    items = connection.execute(
        select(evidence)
        .where(evidence.c.job == row.job, evidence.c.device == row.device)
        .order_by(evidence.c.id.desc())
        .limit(_MAX_EVIDENCE)
    ).all()
    items_by_id = {each.id: each for each in reversed(items)}
    causes = {each.evidence for each in transitions}
    last = transitions[-1] if transitions and row.state in TERMINAL_STATES else None
    others = [each for number, each in items_by_id.items() if number not in causes]
    late = [_build_evidence(each) for each in others if _is_late(each, last)]
    in_time = [_build_evidence(each) for each in others if not _is_late(each, last)]
    proofs = (items_by_id.get(each.evidence) for each in transitions)
    proved = [
        _build_transition(each, None if proof is None else _build_evidence(proof))
        for each, proof in zip(transitions, proofs, strict=True)
    ]
    return _History(proved, in_time, late)


def _is_late(item: Row[Any], last: Row[Any] | None) -> bool:
    """Return whether evidence arrived after the execution ended.

    `last` is the transition that ended the execution; None if the execution has not ended.
    """
    if last is None:
        return False
    return bool(item.id > last.evidence if last.evidence is not None else item.time >= last.time)


def _build_transition(row: Row[Any], proof: Evidence | None) -> Transition:
    """Build a transition from its row and its evidence."""
    return Transition(
        from_=None if row.before is None else ExecutionState(row.before),
        to=ExecutionState(row.after),
        time=format_millis(row.time),
        attempt=row.attempt,
        actor=row.actor,
        cause=row.cause,
        evidence=proof,
    )


def _build_evidence(row: Row[Any]) -> Evidence:
    """Build evidence from its row."""
    return Evidence(
        time=format_millis(row.time),
        kind=row.kind,
        attempt=row.attempt,
        content=_format_content(row.kind, msgspec.json.decode(row.content)),
    )


def _format_content(kind: str, content: Any) -> Any:
    """Format the MACs and times in the content of evidence, which are stored as integers."""
    formatters = _FORMATTERS.get(kind)
    if formatters is None or not isinstance(content, dict):
        return content
    return {
        name: formatters[name](value) if name in formatters and value is not None else value
        for name, value in content.items()
    }


# Executions of one device in all open jobs.


class DeviceUpdateListing(Struct, frozen=True, kw_only=True):
    """Filter of the list of updates of one device in open jobs."""

    device: int


def list_device_updates(
    connection: Connection, listing: DeviceUpdateListing, *, before: int | None, limit: int
) -> list[DeviceUpdate]:
    """List the executions of a device in open jobs, the newest job first (rest-211).

    If `before` is not None, list only jobs with a lower number. The query is fast: there are few open jobs,
    and an execution is found by its primary key.
    """
    open_jobs = select(job.c.id).where(job.c.finished_at.is_(None))
    if before is not None:
        open_jobs = open_jobs.where(job.c.id < before)
    query = select(execution).where(execution.c.device == listing.device, execution.c.job.in_(open_jobs))
    rows = connection.execute(query.order_by(execution.c.job.desc()).limit(limit)).all()
    jobs = job_view.load_job_rows(connection, [each.job for each in rows])
    return [
        DeviceUpdate(
            **asdict(build_execution(each, build_job_context(jobs[each.job]))),
            job_id=f"job-{each.job}",
            job_name=decode_job_body(jobs[each.job]).name,
            job_state=JobState(jobs[each.job].state),
        )
        for each in rows
    ]
