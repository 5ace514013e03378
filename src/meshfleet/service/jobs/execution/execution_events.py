"""Lets executions advance with what has happened: answers, reports, clocks."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition
from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import ExecutionState
from meshfleet.service.jobs.execution import queries, transition_writer
from meshfleet.service.jobs.execution.gateway_slots import GatewaySlots, try_dispatch_lock
from meshfleet.service.jobs.execution.transition_writer import (
    EvidenceItem,
    ExecutionTransition,
    update_transfer_rates,
)
from meshfleet.service.jobs.updates.decisions import add_stop_cause, end_execution, is_past_abort
from meshfleet.service.jobs.updates.model import (
    START_STEPS,
    DeviceRemoved,
    DfuModeSeen,
    GatewayDisconnected,
    GatewayReconnected,
    HeartbeatReceived,
    RequestNotSent,
    RequestUnanswered,
    ResponseReceived,
    TimerDue,
    UpdateStep,
)
from meshfleet.service.jobs.updates.reasons import ReasonCode
from meshfleet.service.jobs.updates.state_machine import advance_execution
from meshfleet.service.jobs.updates.states import CANCELABLE_STATES

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.clock import Moment
    from meshfleet.service.jobs.execution.queries import GatewayRoutes, JobSpecCache, LoadedExecution
    from meshfleet.service.jobs.notifications import ExecutionChange
    from meshfleet.service.jobs.updates.model import Decision, ExecutionRecord, UpdateContext, UpdateEvent

    _Batches = dict[tuple[int, str, str], "_BatchMembers"]

_log = logging.getLogger(__name__)

EXECUTIONS_PER_TRANSACTION: Final = 100
"""Executions that advance in one transaction."""

_SELECT: Final = (
    f"SELECT {queries.EXECUTION_COLUMNS},{queries.DEVICE_COLUMNS} FROM execution e{queries.DEVICE_JOINS}"  # noqa: S608 # our own names
)

_IS_ACTIVE: Final = active_condition("e.state")
_SELECT_DUE: Final = (
    f"{_SELECT} WHERE {_IS_ACTIVE} AND e.due <= ? ORDER BY e.due LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
_SELECT_DUE_DEVICES: Final = (
    f"SELECT e.device FROM execution e WHERE {_IS_ACTIVE} AND e.due <= ?"  # noqa: S608 # our own names
    f" ORDER BY e.due LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
_SELECT_BY_DEVICE: Final = f"{_SELECT} WHERE e.device IN numbers AND {_IS_ACTIVE}"
_SELECT_BATCH: Final = f"{_SELECT} WHERE e.job = ? AND e.batch = ? AND {_IS_ACTIVE}"
_SELECT_BATCH_MEMBERS: Final = (
    f"SELECT e.state, e.device, e.step FROM execution e WHERE e.job = ? AND e.batch = ? AND {_IS_ACTIVE}"  # noqa: S608 # our own names
)
_SELECT_HEARTBEATS: Final = (
    "SELECT e.job, e.device, s.status, s.status_at FROM execution e"  # noqa: S608 # our own names
    " JOIN device_state s ON s.device = e.device"
    f" WHERE {_IS_ACTIVE} AND {{among}} AND e.state = 'CONFIRMING' AND s.status IS NOT NULL"
    f" AND s.status_at > coalesce(e.beat_at, -1) LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
_SELECT_IN_DFU: Final = (
    "SELECT e.job, e.device, coalesce(s.radio_gateway, d.gateway), s.parent, s.rssi FROM execution e"  # noqa: S608 # our own names
    " JOIN device_state s ON s.device = e.device JOIN device d ON d.id = e.device"
    f" WHERE {_IS_ACTIVE} AND {{among}} AND e.state = 'DISPATCHED' AND e.method = 'nordic-dfu'"
    f" AND e.step IN ('mode', 'look') AND e.ask IS NULL AND s.boot_mode = 'dfu'"
    f" ORDER BY e.due LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
_IS_REACHABLE: Final = (
    # What a gateway does for a device is asked of that gateway. All else is asked of one that hears the
    # device: the gateway that it belongs to, or the one through which the update began.
    "(coalesce(h.connected, false) OR (coalesce(g.connected, false)"
    " AND (e.method = 'download' OR e.state = 'CONFIRMING')))"
)
_SELECT_ABSENT: Final = (
    "SELECT e.job, e.device, CASE WHEN d.id IS NULL THEN 'gone'"  # noqa: S608 # our own names
    " WHEN e.waiting = 'gateway-offline' THEN 'back'"
    f" ELSE 'away' END FROM execution e{queries.DEVICE_JOINS} LEFT JOIN device h ON h.id = e.gateway"
    f" WHERE {_IS_ACTIVE} AND {{among}} AND (d.id IS NULL"
    f" OR (e.waiting = 'gateway-offline' AND {_IS_REACHABLE})"
    " OR (e.state <> 'STAGED' AND coalesce(e.step, '') <> 'check'"  # a check ends by its own short clock
    " AND coalesce(e.waiting, '') NOT IN ('canceling', 'gateway-offline')"
    f" AND coalesce(e.outage_left, 1) > 0 AND NOT {_IS_REACHABLE})) LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
"""Devices that are gone, and those whose gateway has gone or come back: in one pass over all that run."""
_ALL_ACTIVE: Final = "e.due >= 0"
"""All active executions, by when they are due: SQLite would look at all executions there ever were."""
_BY_DEVICE: Final = "e.device IN numbers"
_ABSENCE_EVENTS: Final[Mapping[str, UpdateEvent]] = {
    "gone": DeviceRemoved(),
    "away": GatewayDisconnected(),
    "back": GatewayReconnected(),
}
_SHARED_STEPS: Final = {
    UpdateStep.START: frozenset({ExecutionState.DISPATCHED}),
    UpdateStep.STATE: frozenset({ExecutionState.DISPATCHED, ExecutionState.TRANSFERRING}),
    UpdateStep.APPLY: frozenset({ExecutionState.STAGED}),
    UpdateStep.ABORT: CANCELABLE_STATES,
}
"""What one of a broadcast asks for all, and whom the answer concerns."""
_LOCK_SKIPPING: Final = " FOR UPDATE OF e SKIP LOCKED"
_SELECT_UNSENT: Final = (
    "SELECT id, device, attempt, step FROM job_outbox"  # noqa: S608 # our own names
    f" WHERE taken_until IS NULL AND job = ? AND step IN ('{UpdateStep.START}', '{UpdateStep.ENTER_DFU}')"
    f" LIMIT {EXECUTIONS_PER_TRANSACTION}"
)
"""The commands that begin updates of a job and were not taken to be sent."""
_LOCK_UNSENT: Final = " FOR UPDATE SKIP LOCKED"
_DELETE_REQUESTS: Final = "DELETE FROM job_outbox WHERE id IN numbers RETURNING id"
_DELETE_UNLEASED: Final = "DELETE FROM job_outbox WHERE id IN numbers AND taken_until IS NULL RETURNING id"
_LOCK_WAITING: Final = " FOR UPDATE OF e"


class RequestResult(NamedTuple):
    """What came of a request of the outbox."""

    request_id: str
    job: int
    device: int
    attempt: int
    event: ResponseReceived | RequestNotSent | RequestUnanswered


class _BatchMembers(NamedTuple):
    """The members of a broadcast that are in one state."""

    ready: frozenset[int]
    """The devices but for those that are still asked for their version: these are not updated yet."""
    is_complete: bool
    """Whether that is all of them."""


_NO_MEMBERS: Final = _BatchMembers(frozenset(), is_complete=True)


class AdvanceResult(NamedTuple):
    """What a round has done."""

    changed: list[ExecutionChange]
    request_count: int
    """How many requests are to be sent."""
    has_more: bool
    """Whether there may be more to do at once."""


def list_due_devices(connection: Connection, now: int) -> list[int]:
    """Return the devices at which `look` would look."""
    return [row[0] for row in bulk.query_rows(connection, _SELECT_DUE_DEVICES, (now,))]


def advance_due_executions(
    connection: Connection, spec_cache: JobSpecCache, now: Moment, routes: GatewayRoutes | None = None
) -> AdvanceResult:
    """Look at those whose time has come."""
    rows = bulk.query_rows(connection, _SELECT_DUE, (now.steady,), lock=_LOCK_SKIPPING)
    found = [queries.parse_loaded_execution(row).with_route(routes) for row in rows]
    untaken = _withdraw_unsent(connection, [each.execution for each in found])
    return _apply_events(
        connection, spec_cache, [(each, _build_due_event(each, untaken)) for each in found], now
    )


def _withdraw_unsent(connection: Connection, executions: Sequence[ExecutionRecord]) -> set[str]:
    """Take requests off the outbox that were due to be answered, and were not even taken to be sent."""
    asks = [x.ask for x in executions if x.ask is not None]
    return {row[0] for row in bulk.query_in(connection, _DELETE_UNLEASED, asks)} if asks else set()


def _build_due_event(loaded: LoadedExecution, withdrawn: Container[str]) -> UpdateEvent:
    x = loaded.execution
    if loaded.snapshot.device is None:
        return DeviceRemoved()
    if x.step is not None and x.ask is not None and x.ask in withdrawn:
        return RequestNotSent(x.step, "the service did not get to send it")
    return TimerDue()


def list_devices_with_news(connection: Connection) -> list[int]:
    """Return the devices of which the registry knows something that `hear` would take over."""
    return sorted({device for _, device in _load_registry_news(connection, None)})


def apply_registry_news(
    connection: Connection,
    spec_cache: JobSpecCache,
    devices: Sequence[int],
    now: Moment,
    routes: GatewayRoutes | None = None,
) -> AdvanceResult:
    """Take over what the registry knows of these by now: heartbeats, DFU mode, removals, gateways."""
    found = [each.with_route(routes) for each in _load_active_executions(connection, devices)]
    news = _load_registry_news(connection, devices)
    happened = [
        (each, event)
        for each in found
        if (event := news.get((each.execution.job, each.execution.device))) is not None
    ]
    slots = GatewaySlots(connection)
    return _apply_events(
        connection, spec_cache, _reserve_dfu_slots(connection, spec_cache, happened, slots), now, slots
    )


def _reserve_dfu_slots(
    connection: Connection,
    spec_cache: JobSpecCache,
    events: Sequence[tuple[LoadedExecution, UpdateEvent]],
    slots: GatewaySlots,
) -> list[tuple[LoadedExecution, UpdateEvent]]:
    """Tell devices in DFU mode whether the gateway that hears them has room, if it is not theirs yet."""
    elsewhere = {
        each.execution.device: event.gateway
        for each, event in events
        if isinstance(event, DfuModeSeen) and event.gateway not in (None, each.execution.gateway)
    }
    if not elsewhere:
        return list(events)
    decides = try_dispatch_lock(connection)
    if decides:  # what is read without the lock may be out of date when `_HostChoice` gets it later
        slots.load(elsewhere.values())
    told: list[tuple[LoadedExecution, UpdateEvent]] = []
    for each, event in events:
        x, gateway = each.execution, elsewhere.get(each.execution.device)
        if gateway is None or not isinstance(event, DfuModeSeen):
            told.append((each, event))
            continue
        limit = spec_cache.load_body(connection, x.job).concurrency.per_gateway
        has_room = decides and slots.is_free(gateway, x.method, limit)
        if has_room:
            slots.reserve(gateway, x.method)
        told.append((each, event._replace(has_free_slot=has_room)))
    return told


def _load_registry_news(
    connection: Connection, devices: Sequence[int] | None
) -> dict[tuple[int, int], UpdateEvent]:
    """Return what is new of some devices, or of the first that are found."""

    def find(text: str) -> Sequence[Sequence[Any]]:
        if devices is None:
            return bulk.query_rows(connection, text.format(among=_ALL_ACTIVE), ())
        return bulk.query_in(connection, text.format(among=_BY_DEVICE), devices)

    absences = [(job, device, _ABSENCE_EVENTS[word]) for job, device, word in find(_SELECT_ABSENT)]
    news: dict[tuple[int, int], UpdateEvent] = {(job, device): event for job, device, event in absences}
    for job, device, status, at in find(_SELECT_HEARTBEATS):
        news[job, device] = HeartbeatReceived(status, at)
    for job, device, gateway, parent, rssi in find(_SELECT_IN_DFU):
        news[job, device] = DfuModeSeen(gateway, parent, rssi)
    # Of a device that is gone, nothing else matters.
    news.update({(job, device): event for job, device, event in absences if isinstance(event, DeviceRemoved)})
    return news


def apply_results(
    connection: Connection,
    spec_cache: JobSpecCache,
    results: Sequence[RequestResult],
    now: Moment,
    routes: GatewayRoutes | None = None,
) -> AdvanceResult:
    """Take over what came of requests. What comes too late is kept, and moves nothing (rest-143)."""
    taken = _delete_requests(connection, [each.request_id for each in results])
    devices = [each.device for each in results]
    found = {
        each.execution.ask: each.with_route(routes) for each in _load_active_executions(connection, devices)
    }
    late: list[RequestResult] = []
    happened: list[tuple[LoadedExecution, UpdateEvent]] = []
    for each in results:
        known = found.get(each.request_id)
        if known is None or each.request_id not in taken:
            late.append(each)
        else:
            taken.remove(each.request_id)  # the answer may have come right after it was given up
            happened.append((known, each.event))
            happened += _share_with_batch(connection, known, each.event)
    transition_writer.insert_evidence(
        connection,
        [
            (
                each.job,
                each.device,
                each.attempt,
                _build_evidence(each.event) or _build_no_response_evidence(each),
            )
            for each in late
        ],
        now.wall,
    )
    return _apply_events(connection, spec_cache, happened, now)


def withdraw_unsent_starts(
    connection: Connection,
    spec_cache: JobSpecCache,
    job: int,
    now: Moment,
    routes: GatewayRoutes | None = None,
) -> AdvanceResult:
    """Take back the commands of a canceled job that would begin updates and were not sent yet."""
    rows = bulk.query_rows(connection, _SELECT_UNSENT, (job,), lock=_LOCK_UNSENT)
    replies = [
        RequestResult(
            request,
            job,
            device,
            attempt,
            RequestNotSent(UpdateStep(step), "the job was canceled before it was sent"),
        )
        for request, device, attempt, step in rows
    ]
    if not replies:
        return AdvanceResult([], 0, has_more=False)
    return apply_results(connection, spec_cache, replies, now, routes)._replace(
        has_more=len(rows) >= EXECUTIONS_PER_TRANSACTION
    )


def _delete_requests(connection: Connection, requests: Sequence[str]) -> set[str]:
    """Take requests off the outbox; those that were there."""
    return {row[0] for row in bulk.query_in(connection, _DELETE_REQUESTS, requests)}


def _share_with_batch(
    connection: Connection, loaded: LoadedExecution, event: UpdateEvent
) -> list[tuple[LoadedExecution, UpdateEvent]]:
    """Return what others of the same broadcast learn: from an answer, or from a start that never left."""
    x = loaded.execution
    if (
        x.method is not UpdateMethod.BROADCAST
        or x.batch is None
        or not isinstance(event, ResponseReceived | RequestNotSent)
    ):
        return []
    wanted = _SHARED_STEPS.get(event.step, frozenset())
    if x.state not in wanted or not _concerns_all(event):
        return []
    others = (
        queries.parse_loaded_execution(row)
        for row in bulk.query_rows(connection, _SELECT_BATCH, (x.job, x.batch), lock=_LOCK_WAITING)
    )
    shared = event._replace(is_shared=True) if isinstance(event, ResponseReceived) else event
    return [
        (each, shared)
        for each in others
        if each.execution.device != x.device
        and each.execution.state in wanted
        and _is_news_to(each.execution, event)
    ]


def _concerns_all(event: ResponseReceived | RequestNotSent) -> bool:
    if isinstance(event, RequestNotSent):
        return event.step is UpdateStep.START
    return event.step is not UpdateStep.ABORT or event.status == Status.OK


def _is_news_to(x: ExecutionRecord, event: ResponseReceived | RequestNotSent) -> bool:
    """Whether what is told of a whole broadcast is news to one who takes part."""
    if x.ask is not None:
        return False
    if isinstance(event, RequestNotSent):
        return x.step is UpdateStep.START and not x.tries
    if event.step is UpdateStep.ABORT:
        return not is_past_abort(x)
    return event.step is UpdateStep.APPLY or x.step not in (
        UpdateStep.DEVICE_STATE,
        UpdateStep.RECHECK_VERSION,
    )


def _load_active_executions(connection: Connection, devices: Sequence[int]) -> list[LoadedExecution]:
    """The active executions of devices: each has one at most."""
    text = _SELECT_BY_DEVICE if connection.dialect.name == "sqlite" else _SELECT_BY_DEVICE + _LOCK_WAITING
    return [
        queries.parse_loaded_execution(row) for row in bulk.query_in(connection, text, sorted(set(devices)))
    ]


def _apply_events(
    connection: Connection,
    spec_cache: JobSpecCache,
    events: Sequence[tuple[LoadedExecution, UpdateEvent]],
    now: Moment,
    slots: GatewaySlots | None = None,
) -> AdvanceResult:
    # One event for each: what is left comes again.
    events = list({each.execution.device: (each, event) for each, event in reversed(events)}.values())
    said = spec_cache.load_specs(connection, {each.execution.job for each, _ in events})
    scenes = queries.load_contexts(connection, said, [each for each, _ in events])
    batches = _load_batches(connection, [each.execution for each, _ in events])
    hosts = _HostSelector(connection, spec_cache, GatewaySlots(connection) if slots is None else slots)
    made = []
    for (known, event), scene in zip(events, scenes, strict=True):
        x = known.execution
        whole = _with_batch(scene, x, batches)
        move = _decide(x, event, whole, now.steady)
        if move.execution is not x:
            made.append(hosts.apply(ExecutionTransition(x, move, _build_evidence(event), scene.gateway)))
    changed = transition_writer.write_transitions(connection, made, now)
    update_transfer_rates(connection, made, said, now.steady)
    asks = sum(
        (each.decision.request is not None) + (each.decision.abort_request is not None) for each in made
    )
    return AdvanceResult(changed, asks, len(events) >= EXECUTIONS_PER_TRANSACTION)


class _HostSelector:
    """The choice of the gateway through which an update begins again: another one only if that has room."""

    def __init__(self, connection: Connection, spec_cache: JobSpecCache, slots: GatewaySlots) -> None:
        self._connection = connection
        self._orders = spec_cache
        self._slots = slots

    def apply(self, transition: ExecutionTransition) -> ExecutionTransition:
        """Return a move with the gateway that hosts it from now on.

        The command that begins an update makes its gateway the host: it is sent through a gateway with room,
        or stays with the one before.
        """
        ask, x = transition.decision.request, transition.decision.execution
        is_first = ask is not None and ask.step in START_STEPS and not ask.targets_gateway
        if (
            not is_first
            or transition.request_gateway in (None, x.gateway)
            or x.state is not ExecutionState.DISPATCHED
        ):
            return transition
        if not self._reserve_slot(transition.request_gateway, x):
            return transition._replace(request_gateway=x.gateway)
        return transition._replace(
            decision=transition.decision._replace(execution=replace(x, gateway=transition.request_gateway))
        )

    def _reserve_slot(self, gateway: int, x: ExecutionRecord) -> bool:
        if not try_dispatch_lock(self._connection):
            return False
        limit = self._orders.load_body(self._connection, x.job).concurrency.per_gateway
        if not self._slots.is_free(gateway, x.method, limit):
            return False
        self._slots.reserve(gateway, x.method)
        return True


def _decide(x: ExecutionRecord, event: UpdateEvent, context: UpdateContext, now: int) -> Decision:
    """What becomes of an execution. One that we cannot handle ends: it must not keep all others waiting."""
    try:
        return add_stop_cause(advance_execution(x, event, context, now), context.spec)
    except Exception:  # noqa: BLE001 # whatever it is
        _log.exception("an execution of job-%d ends through a defect of ours", x.job)
        return end_execution(
            x, ExecutionState.FAILED, "something went wrong in the service", now, ReasonCode.DEFECT
        )


def _load_batches(connection: Connection, executions: Iterable[ExecutionRecord]) -> _Batches:
    """Return who still takes part in broadcasts, by job, broadcast and state."""
    batches: _Batches = {}
    for job, batch in {(x.job, x.batch) for x in executions if x.batch is not None}:
        steps: defaultdict[str, dict[int, str | None]] = defaultdict(dict)
        for state, device, step in bulk.query_rows(connection, _SELECT_BATCH_MEMBERS, (job, batch)):
            steps[state][device] = step
        for state, alike in steps.items():
            ready = frozenset(device for device, step in alike.items() if step != UpdateStep.RECHECK_VERSION)
            batches[job, batch, state] = _BatchMembers(ready, is_complete=len(ready) == len(alike))
    return batches


def _with_batch(context: UpdateContext, x: ExecutionRecord, batches: _Batches) -> UpdateContext:
    """Add those who are as far as this one to its scene."""
    if x.batch is None:
        return context
    alike = batches.get((x.job, x.batch, x.state), _NO_MEMBERS)
    return replace(
        context, batch=tuple(sorted(alike.ready | {x.device})), is_batch_complete=alike.is_complete
    )


def _build_evidence(event: UpdateEvent) -> EvidenceItem | None:
    """What is kept of an event."""
    match event:
        case ResponseReceived(step, status, value):
            return EvidenceItem("response", {"step": str(step), "status": status, "value": value})
        case HeartbeatReceived(status, at):
            return EvidenceItem("heartbeat", {"status": status, "time": at})
        case DfuModeSeen():
            return EvidenceItem("dfu", {"gateway": event.gateway, "parent": event.parent, "rssi": event.rssi})
        case RequestNotSent(step, reason) | RequestUnanswered(step, reason):
            return EvidenceItem("no-response", {"step": str(step), "reason": reason})
        case GatewayDisconnected() | GatewayReconnected():
            return EvidenceItem("gateway", {"connected": isinstance(event, GatewayReconnected)})
        case _:
            return None


def _build_no_response_evidence(result: RequestResult) -> EvidenceItem:
    return EvidenceItem("no-response", {"step": str(result.event.step)})
