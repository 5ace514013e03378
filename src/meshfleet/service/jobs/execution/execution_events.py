"""Applies events to active executions: due timers, results of requests, and device registry changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.execution import queries, transition_writer
from meshfleet.service.jobs.execution.broadcast_batches import (
    add_batch_members,
    build_member_events,
    load_batch_members,
)
from meshfleet.service.jobs.execution.gateway_slots import (
    GatewaySlots,
    HostGatewaySelector,
    reserve_dfu_slots,
)
from meshfleet.service.jobs.execution.queries import EXECUTIONS_PER_TRANSACTION, ExecutionEvent
from meshfleet.service.jobs.execution.registry_changes import load_registry_changes
from meshfleet.service.jobs.execution.transition_writer import (
    EvidenceItem,
    EvidenceRecord,
    ExecutionTransition,
    update_transfer_rates,
)
from meshfleet.service.jobs.updates import model
from meshfleet.service.jobs.updates.decisions import add_stop_cause, end_execution
from meshfleet.service.jobs.updates.model import UpdateStep
from meshfleet.service.jobs.updates.reasons import ReasonCode
from meshfleet.service.jobs.updates.state_machine import advance_execution

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.clock import ClockReading
    from meshfleet.service.jobs.execution.queries import GatewayRoutes, JobSpecCache, LoadedExecution
    from meshfleet.service.jobs.notifications import ExecutionChange
    from meshfleet.service.jobs.updates.model import Decision, ExecutionRecord, UpdateContext

_log = logging.getLogger(__name__)

_SELECT_DUE: Final = (
    f"{queries.SELECT_EXECUTIONS} WHERE {queries.IS_ACTIVE} AND e.due <= ?"
    f" ORDER BY e.due LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
_SELECT_DUE_DEVICES: Final = (
    f"SELECT e.device FROM execution e WHERE {queries.IS_ACTIVE} AND e.due <= ?"  # noqa: S608 # constants only
    f" ORDER BY e.due LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
_SELECT_BY_DEVICE: Final = f"{queries.SELECT_EXECUTIONS} WHERE e.device IN numbers AND {queries.IS_ACTIVE}"
_LOCK_SKIPPING: Final = " FOR UPDATE OF e SKIP LOCKED"
_SELECT_UNSENT: Final = (
    "SELECT id, device, attempt, step FROM job_outbox"  # noqa: S608 # constants only
    f" WHERE taken_until IS NULL AND job = ? AND step IN ('{UpdateStep.START}', '{UpdateStep.ENTER_DFU}')"
    f" LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
"""Selects the start commands of a job that no process has reserved for sending (leased)."""
_LOCK_UNSENT: Final = " FOR UPDATE SKIP LOCKED"
_DELETE_REQUESTS: Final = "DELETE FROM job_outbox WHERE id IN numbers RETURNING id"
_DELETE_UNLEASED: Final = "DELETE FROM job_outbox WHERE id IN numbers AND taken_until IS NULL RETURNING id"


class RequestResult(NamedTuple):
    """Result of a request from the job outbox: a response, or the reason why no response arrived."""

    request_id: str
    job: int
    device: int
    attempt: int
    event: model.ResponseReceived | model.RequestNotSent | model.RequestUnanswered


class AdvanceResult(NamedTuple):
    """Result of a transaction that advanced executions: changed executions and new requests."""

    changed: list[ExecutionChange]
    request_count: int
    """Number of requests that were added to the job outbox."""
    has_more: bool
    """Whether there may be more events to apply in a further transaction."""


def list_due_devices(connection: Connection, now: int) -> list[int]:
    """Return the devices whose executions `advance_due_executions` would advance now."""
    return [row[0] for row in bulk.query_rows(connection, _SELECT_DUE_DEVICES, (now,))]


def advance_due_executions(
    connection: Connection, spec_cache: JobSpecCache, now: ClockReading, routes: GatewayRoutes | None = None
) -> AdvanceResult:
    """Advance the executions whose timers are due. Skip executions that another process has locked."""
    rows = bulk.query_rows(connection, _SELECT_DUE, (now.monotonic,), lock=_LOCK_SKIPPING)
    due = [queries.parse_loaded_execution(row).with_route(routes) for row in rows]
    withdrawn = _withdraw_unsent_requests(connection, (each.execution for each in due))
    events = [ExecutionEvent(each, _build_due_event(each, withdrawn)) for each in due]
    return _apply_events(connection, spec_cache, events, now)


def _withdraw_unsent_requests(connection: Connection, executions: Iterable[ExecutionRecord]) -> set[str]:
    """Delete the pending requests of executions that no process has leased for sending. Return their ids."""
    pending = [execution.pending_request for execution in executions if execution.pending_request is not None]
    return {row[0] for row in bulk.query_in(connection, _DELETE_UNLEASED, pending)} if pending else set()


def _build_due_event(loaded: LoadedExecution, withdrawn: Container[str]) -> model.UpdateEvent:
    """Build the event of an execution that is due. `withdrawn` are ids of requests that were never sent."""
    execution = loaded.execution
    if loaded.snapshot.device is None:
        return model.DeviceRemoved()
    if (
        execution.step is not None
        and execution.pending_request is not None
        and execution.pending_request in withdrawn
    ):
        return model.RequestNotSent(execution.step, "the service could not send the request in time")
    return model.TimerDue()


def list_changed_devices(connection: Connection) -> list[int]:
    """Return a limited number of devices to pass to `apply_registry_changes`.

    These devices have an active execution, and changes in the registry that were not applied to it.
    """
    return sorted(load_registry_changes(connection, None))


def apply_registry_changes(
    connection: Connection,
    spec_cache: JobSpecCache,
    devices: Sequence[int],
    now: ClockReading,
    routes: GatewayRoutes | None = None,
) -> AdvanceResult:
    """Apply changes in the device registry to active executions of `devices`.

    Such changes are heartbeats, devices in DFU mode, removed devices, and gateway connections.
    """
    executions = [each.with_route(routes) for each in _load_active_executions(connection, devices)]
    changes = load_registry_changes(connection, devices)
    events = [
        ExecutionEvent(each, changes[each.execution.device])
        for each in executions
        if each.execution.device in changes
    ]
    slots = GatewaySlots(connection)
    events = reserve_dfu_slots(connection, spec_cache, events, slots)
    return _apply_events(connection, spec_cache, events, now, slots)


def apply_results(
    connection: Connection,
    spec_cache: JobSpecCache,
    results: Sequence[RequestResult],
    now: ClockReading,
    routes: GatewayRoutes | None = None,
) -> AdvanceResult:
    """Apply the results of requests to their executions, each result only once.

    A result that arrives too late changes no execution. It is stored as evidence (rest-143).
    """
    # A request that is missing in the outbox was deleted with an earlier result.
    rows = bulk.query_in(connection, _DELETE_REQUESTS, [each.request_id for each in results])
    deleted = {row[0] for row in rows}
    devices = [each.device for each in results]
    executions = {
        each.execution.pending_request: each.with_route(routes)
        for each in _load_active_executions(connection, devices)
    }
    late: list[RequestResult] = []
    events: list[ExecutionEvent] = []
    for result in results:
        loaded = executions.get(result.request_id)
        if loaded is None or result.request_id not in deleted:
            late.append(result)
        else:
            deleted.remove(result.request_id)  # a late response to the same request may follow in the list
            events.append(ExecutionEvent(loaded, result.event))
            events += build_member_events(connection, loaded, result.event)
    late_evidence = [
        EvidenceRecord(each.job, each.device, each.attempt, item)
        for each in late
        if (item := _build_evidence(each.event)) is not None
    ]
    transition_writer.insert_late_evidence(connection, late_evidence, now.wall)
    return _apply_events(connection, spec_cache, events, now)


def withdraw_unsent_starts(
    connection: Connection,
    spec_cache: JobSpecCache,
    job: int,
    now: ClockReading,
    routes: GatewayRoutes | None = None,
) -> AdvanceResult:
    """Withdraw the start commands of a canceled job that no process has leased for sending.

    Their executions then end as CANCELED.
    """
    rows = bulk.query_rows(connection, _SELECT_UNSENT, (job,), lock=_LOCK_UNSENT)
    results = [
        RequestResult(
            request,
            job,
            device,
            attempt,
            model.RequestNotSent(UpdateStep(step), "the job was canceled before the request was sent"),
        )
        for request, device, attempt, step in rows
    ]
    if not results:
        return AdvanceResult([], 0, has_more=False)
    return apply_results(connection, spec_cache, results, now, routes)._replace(
        has_more=len(rows) >= EXECUTIONS_PER_TRANSACTION
    )


def _load_active_executions(connection: Connection, devices: Sequence[int]) -> list[LoadedExecution]:
    """Load and lock the active executions of devices. A device has at most one active execution."""
    lock = "" if connection.dialect.name == "sqlite" else queries.LOCK_EXECUTIONS
    rows = bulk.query_in(connection, _SELECT_BY_DEVICE + lock, sorted(set(devices)))
    return [queries.parse_loaded_execution(row) for row in rows]


def _apply_events(
    connection: Connection,
    spec_cache: JobSpecCache,
    events: Sequence[ExecutionEvent],
    now: ClockReading,
    slots: GatewaySlots | None = None,
) -> AdvanceResult:
    """Decide and store how events change executions. Apply only the first event of each device."""
    # A second event of a device would act on an outdated record. Nothing is lost: the registry or a timer
    # produces the event again.
    events = list({each.loaded.execution.device: each for each in reversed(events)}.values())
    executions = [each.loaded.execution for each in events]
    specs = spec_cache.load_specs(connection, {execution.job for execution in executions})
    contexts = queries.load_update_contexts(connection, specs, [each.loaded for each in events])
    members = load_batch_members(connection, executions)
    hosts = HostGatewaySelector(connection, spec_cache, GatewaySlots(connection) if slots is None else slots)
    transitions = []
    for execution, (_, event), context in zip(executions, events, contexts, strict=True):
        decision = _advance_or_fail(
            execution, event, add_batch_members(context, execution, members), now.monotonic
        )
        if decision.execution is not execution:
            transition = ExecutionTransition(execution, decision, _build_evidence(event), context.gateway)
            transitions.append(hosts.assign_host(transition))
    changed = transition_writer.write_transitions(connection, transitions, now)
    update_transfer_rates(connection, transitions, specs, now.monotonic)
    request_count = sum(
        (each.decision.request is not None) + (each.decision.abort_request is not None)
        for each in transitions
    )
    return AdvanceResult(changed, request_count, len(events) >= EXECUTIONS_PER_TRANSACTION)


def _advance_or_fail(
    execution: ExecutionRecord, event: model.UpdateEvent, context: UpdateContext, now: int
) -> Decision:
    """Return what the state machine decides for an event of an execution.

    If the state machine raises an exception, end the execution as FAILED.
    """
    try:
        return add_stop_cause(advance_execution(execution, event, context, now), context.spec)
    except Exception:  # noqa: BLE001 # one defect must not block the other executions
        _log.exception("an execution of job-%d failed: internal error", execution.job)
        return end_execution(
            execution, ExecutionState.FAILED, "internal error of the service", now, ReasonCode.DEFECT
        )


def _build_evidence(event: model.UpdateEvent) -> EvidenceItem | None:
    """Return the content of an event to store as evidence; None for timers and removed devices."""
    match event:
        case model.ResponseReceived(step, status, value):
            return EvidenceItem("response", {"step": str(step), "status": status, "value": value})
        case model.HeartbeatReceived(status, at):
            return EvidenceItem("heartbeat", {"status": status, "time": at})
        case model.DfuModeSeen():
            return EvidenceItem("dfu", {"gateway": event.gateway, "parent": event.parent, "rssi": event.rssi})
        case model.RequestNotSent(step, reason) | model.RequestUnanswered(step, reason):
            return EvidenceItem("no-response", {"step": str(step), "reason": reason})
        case model.GatewayDisconnected() | model.GatewayReconnected():
            return EvidenceItem("gateway", {"connected": isinstance(event, model.GatewayReconnected)})
        case _:
            return None
