"""Executions of a job, for people who look at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import select, tuple_

from meshfleet.db.tables import evidence, execution, transition
from meshfleet.errors import NotFound
from meshfleet.service.jobs.plan import LEFT_OUT
from meshfleet.service.jobs.shown import jobs as reading
from meshfleet.service.jobs.shown.showing import fallen_of, order_of, time
from meshfleet.service.jobs.update.states import TERMINAL
from meshfleet.service.jobs.waiting import JobNow, Waiter, waiting_for
from meshfleet.wire.ids import Mac, device_id, mac_number, number_mac
from meshfleet.wire.products import Way
from meshfleet.wire.rest import (
    Evidence,
    Execution,
    ExecutionDetail,
    ExecutionState,
    JobState,
    Transition,
)
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sqlalchemy import Connection, Row

_KEPT: Final = 1000
"""How much is shown of what was seen: the newest."""

_SPELLINGS: Final[Mapping[str, Mapping[str, Callable[[int], str]]]] = {
    "dfu": {"gateway": number_mac, "parent": number_mac},
    "heartbeat": {"time": write_millis},
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


class Told(Struct, frozen=True):
    """What a job tells of all its executions."""

    now: JobNow
    waves: list[str]
    version: str


def page(connection: Connection, asked: ExecutionListing, *, after: int, limit: int) -> list[Execution]:
    """Executions by device, behind that one (rest-140)."""
    told = told_by(reading.row(connection, asked.job))
    columns = execution.c
    query = select(execution).where(columns.job == asked.job, columns.device > after)
    if asked.states:
        query = query.where(columns.state.in_([str(state) for state in asked.states]))
    if asked.gateway is not None:
        query = query.where(columns.gateway == mac_number(asked.gateway))
    if asked.codes:
        query = query.where(columns.code.in_(asked.codes))
    if asked.devices is not None:
        query = query.where(columns.device.in_([mac_number(each) for each in asked.devices]))
    if asked.left_out is not None:
        query = query.where(columns.wave == LEFT_OUT if asked.left_out else columns.wave != LEFT_OUT)
    rows = connection.execute(query.order_by(columns.device).limit(limit))
    return [shown(row, told) for row in rows]


def show(connection: Connection, number: int, device: Mac) -> ExecutionDetail:
    """One of them with all that happened (rest-141)."""
    job = reading.row(connection, number)
    mine = (execution.c.job == number) & (execution.c.device == mac_number(device))
    row = connection.execute(select(execution).where(mine)).first()
    if row is None:
        raise NotFound(f"{device_id(device)} is not in this job")
    history = _history(connection, row)
    return ExecutionDetail(
        **asdict(shown(row, told_by(job))),
        transitions=[_beginning(job, row), *history.steps],
        evidence=history.besides,
        later=history.later,
    )


def several(connection: Connection, number: int, devices: Collection[int]) -> list[Execution]:
    """Some executions of a job; none if there is no such job any more."""
    try:
        told = told_by(reading.row(connection, number))
    except NotFound:
        return []
    mine = (execution.c.job == number) & execution.c.device.in_(devices)
    return [shown(row, told) for row in connection.execute(select(execution).where(mine))]


def transfers(
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
    told = {number: told_by(reading.row(connection, number)) for number in {row.job for row in rows}}
    return [(row.job, shown(row, told[row.job])) for row in rows]


def job_now(job: Row[Any]) -> JobNow:
    """As much of a job as its executions wait for."""
    order = order_of(job)
    return JobNow(
        state=JobState(job.state),
        wave=job.wave,
        start_at=job.start_at,
        heartbeats=order.health.heartbeats,
        is_staging=order.stage and job.applied_at is None,
    )


def told_by(job: Row[Any]) -> Told:
    """What a job, with the version of its firmware, tells of its executions."""
    names = [each.name or str(place) for place, each in enumerate(fallen_of(job), start=1)]
    return Told(job_now(job), names, job.version)


def shown(row: Row[Any], told: Told) -> Execution:
    """A row of `execution`."""
    state = ExecutionState(row.state)
    waiter = Waiter(
        state,
        row.wave,
        row.waiting,
        row.due,
        row.beats,
        row.is_read,
        reason=row.reason,
        step=row.step,
        until=_clock_end(row),
    )
    return Execution(
        device_id=device_id(number_mac(row.device)),
        state=state,
        attempt=row.attempt,
        progress=row.progress,
        waiting_for=waiting_for(told.now, waiter),
        reason=row.reason,
        reason_code=row.code,
        method=None if row.method is None else Way(row.method),
        wave=None if row.wave == LEFT_OUT else told.waves[row.wave],
        gateway=None if row.gateway is None else number_mac(row.gateway),
        started_at=time(row.started_at),
        updated_at=write_millis(row.updated_at),
        from_version=row.from_version,
        to_version=told.version,
    )


def _clock_end(row: Row[Any]) -> int | None:
    """Return when the first of its clocks runs out; None: they stand still, or there are none."""
    ends = [each for each in (row.expires, row.total_until) if each is not None]
    return min(ends, default=None) if row.suspended_at is None else None


def _beginning(job: Row[Any], row: Row[Any]) -> Transition:
    """Return the first step, which is no row: all executions of a job begin with it."""
    was_left_out = row.wave == LEFT_OUT and not row.version
    began = ExecutionState(row.state) if was_left_out else ExecutionState.QUEUED
    return Transition(
        from_=None,
        to=began,
        time=write_millis(job.created_at),
        attempt=1,
        actor=job.created_by,
        cause=(row.reason if was_left_out else None) or "the job was made",
        evidence=None,
    )


class _History(NamedTuple):
    steps: list[Transition]
    besides: list[Evidence]
    later: list[Evidence]


def _history(connection: Connection, row: Row[Any]) -> _History:
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
        .limit(_KEPT)
    ).all()
    known = {each.id: each for each in reversed(heard)}
    moving = {each.evidence for each in steps}
    last = steps[-1] if steps and row.state in TERMINAL else None
    aside = [each for number, each in known.items() if number not in moving]
    later = [_evidence(each) for each in aside if _is_later(each, last)]
    besides = [_evidence(each) for each in aside if not _is_later(each, last)]
    proofs = (known.get(each.evidence) for each in steps)
    proved = [
        _transition(each, None if proof is None else _evidence(proof))
        for each, proof in zip(steps, proofs, strict=True)
    ]
    return _History(proved, besides, later)


def _is_later(proof: Row[Any], last: Row[Any] | None) -> bool:
    """Whether something came when an execution was over; `last` is the step that ended it."""
    if last is None:
        return False
    return bool(proof.id > last.evidence if last.evidence is not None else proof.time >= last.time)


def _transition(row: Row[Any], proof: Evidence | None) -> Transition:
    return Transition(
        from_=None if row.before is None else ExecutionState(row.before),
        to=ExecutionState(row.after),
        time=write_millis(row.time),
        attempt=row.attempt,
        actor=row.actor,
        cause=row.cause,
        evidence=proof,
    )


def _evidence(row: Row[Any]) -> Evidence:
    return Evidence(
        time=write_millis(row.time),
        kind=row.kind,
        attempt=row.attempt,
        content=_spelt(row.kind, msgspec.json.decode(row.content)),
    )


def _spelt(kind: str, content: Any) -> Any:
    """What was heard, spelt as everywhere: MACs and times are kept as numbers."""
    ways = _SPELLINGS.get(kind)
    if ways is None or not isinstance(content, dict):
        return content
    return {
        name: ways[name](value) if name in ways and value is not None else value
        for name, value in content.items()
    }
