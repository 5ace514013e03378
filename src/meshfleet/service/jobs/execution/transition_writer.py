"""Writes decisions about executions: new states, transitions, evidence, counts and outbox requests."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from meshfleet.db import bulk
from meshfleet.db.tables import evidence, job_outbox, pace
from meshfleet.db.tables import execution as execution_table
from meshfleet.db.tables import transition as transition_table
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.notifications import ExecutionChange
from meshfleet.service.jobs.store import ENGINE_ACTOR, TallyKey, update_tallies
from meshfleet.service.jobs.updates import states

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection, Table

    from meshfleet.service.clock import ClockReading
    from meshfleet.service.jobs.execution.queries import JobSpec
    from meshfleet.service.jobs.updates.model import Decision, ExecutionRecord, UpdateRequest


# Measured transfer rates of gateways.

_TRANSFERRED_STATES: Final = frozenset(
    {ExecutionState.VERIFYING, ExecutionState.STAGED, ExecutionState.APPLYING, ExecutionState.CONFIRMING}
)
_MAX_RATE: Final = 1_000_000_000
"""Maximum stored transfer rate in bytes per second: far above any radio, and within the column type."""
_AVERAGE_RATE: Final = "UPDATE SET rate = (pace.rate + excluded.rate) / 2"
"""Stores the mean of the old and the new transfer rate, so that old measurements lose weight."""


def update_transfer_rates(
    connection: Connection,
    transitions: Iterable[ExecutionTransition],
    specs: Mapping[int, JobSpec],
    now: int,
) -> None:
    """Store the transfer rates of transfers that `transitions` complete, by gateway and update method."""
    rates: dict[tuple[int, str], int] = {}
    for before, decision, *_ in transitions:
        duration = None if before.moved_at is None else now - before.moved_at
        after = decision.execution.state
        is_transferred = before.state is ExecutionState.TRANSFERRING and after in _TRANSFERRED_STATES
        if is_transferred and duration and before.gateway is not None and _is_uninterrupted(before):
            size = specs[before.job].update.size
            rates[before.gateway, str(before.method)] = min(max(size * 1000 // duration, 1), _MAX_RATE)
    bulk.upsert_rows(
        connection, pace, [(*key, rate) for key, rate in sorted(rates.items())], on_conflict=_AVERAGE_RATE
    )


def _is_uninterrupted(execution: ExecutionRecord) -> bool:
    """Return whether a transfer ran without interruption, so that its duration is a valid measurement."""
    if execution.suspended_at is not None:
        return False
    return (
        execution.resumed_at is None
        or execution.moved_at is None
        or execution.resumed_at < execution.moved_at
    )


# Executions that wait for a free slot of their gateway.

_MAKE_NEXT_DUE: Final = (
    "UPDATE execution SET due = ? WHERE waiting = 'gateway-busy' AND (job, device) IN ("
    "SELECT e.job, e.device FROM execution e JOIN job j ON j.id = e.job AND j.state = 'IN_PROGRESS'"
    " WHERE e.waiting = 'gateway-busy' AND e.gateway = ? ORDER BY e.due LIMIT 8{lock})"
)
"""Makes up to 8 executions due, because the rate limit of a job may keep the first one from starting."""


def _wake_waiting_executions(connection: Connection, gateways: Sequence[int], now: int) -> None:
    """Make executions due now: for each of `gateways`, up to 8 that wait for one of its slots."""
    # On PostgreSQL another process may be starting some of these executions: they are skipped.
    lock = "" if connection.dialect.name == "sqlite" else " FOR UPDATE OF e SKIP LOCKED"
    bulk.execute_many(connection, _MAKE_NEXT_DUE.format(lock=lock), [(now, gateway) for gateway in gateways])


_UPDATE_EXECUTION: Final = "UPDATE SET " + ", ".join(
    f"{column.name} = excluded.{column.name}" for column in execution_table.columns if not column.primary_key
)
_SELECT_JOBS: Final = "SELECT id FROM job WHERE id IN numbers"

_encode = msgspec.json.Encoder().encode


class EvidenceItem(NamedTuple):
    """Evidence for a transition: the report, response or missing response that caused the transition."""

    kind: str
    """Kind of evidence, such as `response` or `heartbeat`."""
    content: Any


class EvidenceRecord(NamedTuple):
    """Evidence with the job, device and attempt to which the evidence belongs."""

    job: int
    device: int
    attempt: int
    item: EvidenceItem


class ExecutionTransition(NamedTuple):
    """Execution before a decision, the decision, and the evidence for the decision."""

    before: ExecutionRecord
    decision: Decision
    evidence: EvidenceItem | None = None
    request_gateway: int | None = None
    """Gateway through which requests of this transition are sent; None for that of the execution."""

    @property
    def changes_state(self) -> bool:
        """Whether the decision changes the state of the execution."""
        return self.decision.execution.state is not self.before.state


def write_transitions(
    connection: Connection, transitions: Sequence[ExecutionTransition], now: ClockReading
) -> list[ExecutionChange]:
    """Write decisions about executions, and return the executions whose state changed.

    The caller must have read and locked the rows of the executions in the same transaction.
    """
    requests = [row for each in transitions for row in _build_request_rows(each)]
    request_ids = {(row[1], row[2]): row[0] for row in requests if row[4] != "parting"}
    rows = [
        _build_execution_row(each, request_ids, now.wall)
        for each in transitions
        if each.decision.execution is not each.before
    ]
    bulk.upsert_rows(connection, execution_table, rows, on_conflict=_UPDATE_EXECUTION)
    _delete_obsolete_requests(connection, transitions)
    _insert_rows(connection, job_outbox, requests)
    changed = [each for each in transitions if each.changes_state]
    for each in changed:
        states.check_execution_transition(each.before.state, each.decision.execution.state)
    _wake_waiting_executions(connection, _find_freed_gateways(transitions), now.monotonic)
    update_tallies(connection, _compute_tally_deltas(changed))
    _insert_history(connection, transitions, now.wall)
    return [
        ExecutionChange(each.before.job, each.before.device, each.decision.execution.gateway)
        for each in changed
    ]


def _insert_rows(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows with one SQL statement, because SQLite's driver waits for the GIL between statements."""
    bulk.upsert_rows(connection, table, rows, on_conflict="NOTHING")


def insert_late_evidence(connection: Connection, records: Sequence[EvidenceRecord], wall_time: int) -> None:
    """Store evidence that arrived too late to cause a transition. Drop evidence of deleted jobs."""
    if records:
        found = bulk.query_in(connection, _SELECT_JOBS, sorted({each.job for each in records}))
        jobs = {row[0] for row in found}
        _insert_evidence(connection, [each for each in records if each.job in jobs], wall_time)


def _insert_evidence(
    connection: Connection, records: Sequence[EvidenceRecord], wall_time: int
) -> Sequence[int]:
    """Insert evidence, and return the ids of the new rows."""
    ids = bulk.reserve_ids(connection, evidence, len(records))
    rows = [
        (
            number,
            each.job,
            each.device,
            each.attempt,
            wall_time,
            each.item.kind,
            _encode(each.item.content).decode(),
        )
        for number, each in zip(ids, records, strict=True)
    ]
    _insert_rows(connection, evidence, rows)
    return ids


def _delete_obsolete_requests(connection: Connection, transitions: Iterable[ExecutionTransition]) -> None:
    """Delete the outbox requests of executions that changed for another reason, so that none is sent."""
    obsolete = [
        each.before.pending_request
        for each in transitions
        if each.evidence is None and each.before.pending_request is not None
    ]
    bulk.execute_many(connection, "DELETE FROM job_outbox WHERE id = ?", [(each,) for each in obsolete])


def _build_execution_row(
    transition: ExecutionTransition, request_ids: dict[tuple[int, int], str], wall_time: int
) -> tuple[Any, ...]:
    """Build the row of the table `execution` after a decision.

    `request_ids` are the ids of the requests to send, by job and device.
    """
    execution = transition.decision.execution
    if transition.decision.request is not None:
        execution = replace(execution, pending_request=request_ids[execution.job, execution.device])
    if transition.changes_state:
        started_at = (
            wall_time
            if execution.started_at is None and execution.state in states.ACTIVE_STATES
            else execution.started_at
        )
        execution = replace(
            execution, started_at=started_at, updated_at=wall_time, version=execution.version + 1
        )
    return astuple(execution)


def _build_request_rows(transition: ExecutionTransition) -> list[tuple[Any, ...]]:
    """Build the rows of the job outbox for the requests that a decision sends."""
    requests = (transition.decision.request, transition.decision.abort_request)
    return [_build_request_row(transition, request) for request in requests if request is not None]


def _build_request_row(transition: ExecutionTransition, request: UpdateRequest) -> tuple[Any, ...]:
    """Build the row of the job outbox for a request."""
    execution = transition.decision.execution
    gateway = transition.before.gateway if execution.gateway is None else execution.gateway
    if not request.targets_gateway and transition.request_gateway is not None:
        gateway = transition.request_gateway
    return (
        secrets.token_hex(12),
        execution.job,
        execution.device,
        transition.before.attempt if request is transition.decision.abort_request else execution.attempt,
        str(request.step),
        gateway,
        gateway if request.targets_gateway else execution.device,
        str(request.operation),
        request.identifier,
        None if request.value is None else _encode(request.value).decode(),
        None,
    )


def _compute_tally_deltas(transitions: Iterable[ExecutionTransition]) -> Counter[TallyKey]:
    """Return how the counts of executions by job, wave and state change."""
    deltas: Counter[TallyKey] = Counter()
    for each in transitions:
        before, after = each.before, each.decision.execution
        deltas[TallyKey(before.job, before.wave, before.state)] -= 1
        deltas[TallyKey(after.job, after.wave, after.state)] += 1
    return deltas


def _insert_history(
    connection: Connection, transitions: Sequence[ExecutionTransition], wall_time: int
) -> None:
    """Insert the reports and responses that caused decisions (evidence), and a row for each new state."""
    records = {
        id(each): EvidenceRecord(each.before.job, each.before.device, each.before.attempt, each.evidence)
        for each in transitions
        if each.evidence is not None and each.decision.is_evidence
    }
    evidence_ids = dict(
        zip(records, _insert_evidence(connection, [*records.values()], wall_time), strict=True)
    )
    changed = [each for each in transitions if each.changes_state]
    rows = zip(bulk.reserve_ids(connection, transition_table, len(changed)), changed, strict=True)
    _insert_rows(
        connection,
        transition_table,
        [_build_transition_row(number, each, evidence_ids.get(id(each)), wall_time) for number, each in rows],
    )


def _build_transition_row(
    number: int, transition: ExecutionTransition, evidence_id: int | None, wall_time: int
) -> tuple[Any, ...]:
    before, after = transition.before, transition.decision.execution
    return (
        number,
        before.job,
        before.device,
        wall_time,
        str(before.state),
        str(after.state),
        before.attempt,
        before.version + 1,
        ENGINE_ACTOR,
        transition.decision.cause,
        evidence_id,
    )


def _find_freed_gateways(transitions: Iterable[ExecutionTransition]) -> list[int]:
    """Return the gateways on which `transitions` may free a slot."""
    return sorted(
        {
            each.before.gateway
            for each in transitions
            if each.before.gateway is not None
            and _occupies_gateway(each.before)
            and not _keeps_gateway_slot(each)
        }
    )


def _occupies_gateway(execution: ExecutionRecord) -> bool:
    """Return whether an execution occupies a slot of its gateway."""
    return states.occupies_gateway(execution.state, execution.method)


def _keeps_gateway_slot(transition: ExecutionTransition) -> bool:
    """Return whether an execution still occupies a slot of the same gateway after a transition."""
    after = transition.decision.execution
    return _occupies_gateway(after) and after.gateway == transition.before.gateway
