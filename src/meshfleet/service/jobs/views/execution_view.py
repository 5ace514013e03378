"""Executions of a job, for people who look at them."""

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
from meshfleet.protocol.times import format_millis
from meshfleet.rest import (
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
from meshfleet.service.jobs.views import job_view as reading
from meshfleet.service.jobs.views.job_view import decode_job_body, decode_waves, format_optional_time
from meshfleet.service.jobs.wait_reasons import ExecutionSnapshot, JobSnapshot, describe_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sqlalchemy import Connection, Row


_MAX_EVIDENCE: Final = 1000
"""How much is shown of what was seen: the newest."""

_FORMATTERS: Final[Mapping[str, Mapping[str, Callable[[int], str]]]] = {
    "dfu": {"gateway": mac_from_int, "parent": mac_from_int},
    "heartbeat": {"time": format_millis},
}
"""By kind of evidence, how its numbers are spelt."""


class ExecutionListing(Struct, frozen=True, kw_only=True):
    """Which executions are meant."""

    job: int
    states: tuple[ExecutionState, ...] = ()
    gateway: Mac | None = None
    codes: tuple[str, ...] = ()
    devices: tuple[Mac, ...] | None = None
    """None: any."""
    left_out: bool | None = None
    """Whether it was left out from the beginning; None: either."""


class JobContext(Struct, frozen=True):
    """What a job tells of all its executions."""

    job: JobSnapshot
    wave_names: list[str]
    version: str


def list_executions(
    connection: Connection, listing: ExecutionListing, *, after: int, limit: int
) -> list[Execution]:
    """Executions by device, behind that one (rest-140)."""
    told = build_job_context(reading.load_job_row(connection, listing.job))
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
    return [build_execution(row, told) for row in rows]


def load_execution(connection: Connection, job_number: int, device: Mac) -> ExecutionDetail:
    """One of them with all that happened (rest-141)."""
    job = reading.load_job_row(connection, job_number)
    mine = (execution.c.job == job_number) & (execution.c.device == mac_to_int(device))
    row = connection.execute(select(execution).where(mine)).first()
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
    """Some executions of a job; none if there is no such job any more."""
    try:
        told = build_job_context(reading.load_job_row(connection, job_number))
    except NotFound:
        return []
    mine = (execution.c.job == job_number) & execution.c.device.in_(devices)
    return [build_execution(row, told) for row in connection.execute(select(execution).where(mine))]


def list_transfers(
    connection: Connection, jobs: Collection[int], *, after: tuple[int, int], limit: int
) -> list[tuple[int, Execution]]:
    """Executions of these jobs whose image is on its way, each with its job; behind that job and device."""
    columns = execution.c
    query = select(execution).where(
        columns.job.in_(jobs),
        columns.state == str(ExecutionState.TRANSFERRING),
        tuple_(columns.job, columns.device) > after,
    )
    rows = connection.execute(query.order_by(columns.job, columns.device).limit(limit)).all()
    told = {
        number: build_job_context(reading.load_job_row(connection, number))
        for number in {row.job for row in rows}
    }
    return [(row.job, build_execution(row, told[row.job])) for row in rows]


def build_job_snapshot(job: Row[Any]) -> JobSnapshot:
    """As much of a job as its executions wait for."""
    order = decode_job_body(job)
    return JobSnapshot(
        state=JobState(job.state),
        wave=job.wave,
        start_at=job.start_at,
        heartbeats=order.health.heartbeats,
        is_staging=order.stage and job.applied_at is None,
    )


def build_job_context(job: Row[Any]) -> JobContext:
    """What a job, with the version of its firmware, tells of its executions."""
    names = [each.name or str(place) for place, each in enumerate(decode_waves(job), start=1)]
    return JobContext(build_job_snapshot(job), names, job.version)


def build_execution(row: Row[Any], context: JobContext) -> Execution:
    """A row of `execution`."""
    state = ExecutionState(row.state)
    waiter = ExecutionSnapshot(
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
        waiting_for=describe_wait(context.job, waiter),
        reason=row.reason,
        reason_code=row.code,
        method=None if row.method is None else UpdateMethod(row.method),
        wave=None if row.wave == LEFT_OUT_WAVE else context.wave_names[row.wave],
        gateway=None if row.gateway is None else mac_from_int(row.gateway),
        started_at=format_optional_time(row.started_at),
        updated_at=format_millis(row.updated_at),
        from_version=row.from_version,
        to_version=context.version,
    )


def _find_deadline(row: Row[Any]) -> int | None:
    """Return when the first of its clocks runs out; None: they stand still, or there are none."""
    ends = [each for each in (row.expires, row.total_until) if each is not None]
    return min(ends, default=None) if row.suspended_at is None else None


def _build_first_transition(job: Row[Any], row: Row[Any]) -> Transition:
    """Return the first step, which is no row: all executions of a job begin with it."""
    was_left_out = row.wave == LEFT_OUT_WAVE and not row.version
    began = ExecutionState(row.state) if was_left_out else ExecutionState.QUEUED
    return Transition(
        from_=None,
        to=began,
        time=format_millis(job.created_at),
        attempt=1,
        actor=job.created_by,
        cause=(row.reason if was_left_out else None) or "the job was made",
        evidence=None,
    )


class _History(NamedTuple):
    transitions: list[Transition]
    other_evidence: list[Evidence]
    late_evidence: list[Evidence]


def _load_history(connection: Connection, row: Row[Any]) -> _History:
    """All steps with what caused them, what was seen besides, and what came when it was over."""
    steps = connection.execute(
        select(transition)
        .where(transition.c.job == row.job, transition.c.device == row.device)
        .order_by(transition.c.id)
    ).all()
    heard = connection.execute(
        select(evidence)
        .where(evidence.c.job == row.job, evidence.c.device == row.device)
        .order_by(evidence.c.id.desc())
        .limit(_MAX_EVIDENCE)
    ).all()
    known = {each.id: each for each in reversed(heard)}
    moving = {each.evidence for each in steps}
    last = steps[-1] if steps and row.state in TERMINAL_STATES else None
    aside = [each for number, each in known.items() if number not in moving]
    later = [_build_evidence(each) for each in aside if _is_later(each, last)]
    besides = [_build_evidence(each) for each in aside if not _is_later(each, last)]
    proofs = (known.get(each.evidence) for each in steps)
    proved = [
        _build_transition(each, None if proof is None else _build_evidence(proof))
        for each, proof in zip(steps, proofs, strict=True)
    ]
    return _History(proved, besides, later)


def _is_later(proof: Row[Any], last: Row[Any] | None) -> bool:
    """Whether something came when an execution was over; `last` is the step that ended it."""
    if last is None:
        return False
    return bool(proof.id > last.evidence if last.evidence is not None else proof.time >= last.time)


def _build_transition(row: Row[Any], proof: Evidence | None) -> Transition:
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
    return Evidence(
        time=format_millis(row.time),
        kind=row.kind,
        attempt=row.attempt,
        content=_format_content(row.kind, msgspec.json.decode(row.content)),
    )


def _format_content(kind: str, content: Any) -> Any:
    """What was heard, spelt as everywhere: MACs and times are kept as numbers."""
    ways = _FORMATTERS.get(kind)
    if ways is None or not isinstance(content, dict):
        return content
    return {
        name: ways[name](value) if name in ways and value is not None else value
        for name, value in content.items()
    }


# What becomes of one device in all jobs that are not over.


class DeviceUpdateListing(Struct, frozen=True, kw_only=True):
    """Whose updates are meant."""

    device: int


def list_device_updates(
    connection: Connection, listing: DeviceUpdateListing, *, before: int | None, limit: int
) -> list[DeviceUpdate]:
    """Its executions in open jobs, the newest of these first, or in those before one (rest-211).

    There are few open jobs, and in each of them the execution of a device is found by its key.
    """
    opened = select(job.c.id).where(job.c.finished_at.is_(None))
    if before is not None:
        opened = opened.where(job.c.id < before)
    mine = (execution.c.device == listing.device) & execution.c.job.in_(opened)
    rows = connection.execute(select(execution).where(mine).order_by(execution.c.job.desc()).limit(limit))
    found = rows.all()
    jobs = reading.load_job_rows(connection, [each.job for each in found])
    return [
        DeviceUpdate(
            **asdict(build_execution(each, build_job_context(jobs[each.job]))),
            job_id=f"job-{each.job}",
            job_name=decode_job_body(jobs[each.job]).name,
            job_state=JobState(jobs[each.job].state),
        )
        for each in found
    ]
