"""Dispatch: starts queued executions within all limits, and stores why the remaining executions wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition
from meshfleet.protocol.ids import Version
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.compatibility import ExclusionCode, find_exclusion, parse_running_version
from meshfleet.service.jobs.execution import queries, transition_writer
from meshfleet.service.jobs.execution.gateway_slots import GatewaySlots
from meshfleet.service.jobs.execution.transition_writer import ExecutionTransition
from meshfleet.service.jobs.rollout import LEFT_OUT_WAVE
from meshfleet.service.jobs.updates import timeouts
from meshfleet.service.jobs.updates.decisions import end_execution, remove_execution
from meshfleet.service.jobs.updates.drivers import MAX_BROADCAST_DEVICES
from meshfleet.service.jobs.updates.model import Decision, UpdateStep
from meshfleet.service.jobs.updates.reasons import UNCERTAIN_CODES, ReasonCode
from meshfleet.service.jobs.updates.start import dispatch_execution
from meshfleet.service.jobs.updates.version_check import skip_unreachable_device
from meshfleet.service.jobs.wait_reasons import WAIT_TEXTS, WaitReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.clock import ClockReading
    from meshfleet.service.jobs.compatibility import DeviceFacts, Exclusion, FirmwareRequirement
    from meshfleet.service.jobs.execution.queries import GatewayRoutes, JobSpec, LoadedExecution
    from meshfleet.service.jobs.notifications import ExecutionChange
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext

CANDIDATES_PER_TRANSACTION: Final = 100
"""Maximum number of queued executions checked in one transaction."""

_RECHECK_MS: Final = 30_000
"""Minimum delay before a waiting execution is checked again, in milliseconds."""

_OFFLINE: Final = (WaitReason.DEVICE_OFFLINE, WaitReason.GATEWAY_OFFLINE)

_RECHECKS_PER_SECOND: Final = 200
"""Maximum number of waiting executions of one job that are checked again per second."""

_SELECT: Final = (
    f"SELECT {queries.EXECUTION_COLUMNS},{queries.DEVICE_COLUMNS}, a.job"  # noqa: S608 # constants only
    f" FROM execution e{queries.DEVICE_JOINS}"
)
_JOIN_ACTIVE: Final = f" LEFT JOIN execution a ON a.device = e.device AND {active_condition('a.state')}"
_SELECT_QUEUED: Final = (
    f"{_SELECT}{_JOIN_ACTIVE} WHERE e.job = ? AND e.state = 'QUEUED' AND e.wave = ? AND e.due <= ?"
    " ORDER BY e.due LIMIT ?"
)
_SELECT_BEHIND_GATEWAY: Final = (
    f"SELECT {queries.EXECUTION_COLUMNS},{queries.DEVICE_COLUMNS}, a.job FROM device d CROSS JOIN execution e"  # noqa: S608 # constants only
    f"{queries.STATE_JOINS}{_JOIN_ACTIVE} WHERE d.gateway = ? AND e.job = ? AND e.device = d.id"
    " AND e.state = 'QUEUED' AND e.wave BETWEEN 0 AND ? AND (e.due <= ? OR e.waiting = 'gateway-busy')"
    " ORDER BY e.wave, e.due LIMIT ?"
)
"""Selects the queued executions of a job whose devices are behind one gateway.

CROSS JOIN makes SQLite start with the devices of the gateway instead of scanning the whole queue.
"""
_LOCK: Final = " FOR UPDATE OF e SKIP LOCKED"
_SELECT_NEWER_JOBS: Final = (
    # CROSS JOIN makes SQLite start with the few open jobs.
    "SELECT e.device, min(e.job) FROM job j CROSS JOIN execution e WHERE j.finished_at IS NULL"
    " AND (j.created_at, j.id) > (SELECT created_at, id FROM job WHERE id = {job})"
    " AND e.job = j.id AND e.device IN numbers AND e.wave >= 0 GROUP BY e.device"
)


class DispatchParameters(NamedTuple):
    """Parameters and limits of a job whose queued executions may start."""

    spec: JobSpec
    per_gateway: int | None
    wave: int
    """Index of the last wave that has started, from 0."""
    slots: int
    """Number of executions that may start now."""
    broadcast_slots: int
    """Number of executions that a broadcast may start now.

    A broadcast may exceed the rate limit of the job. Later starts wait longer then.
    """
    queue_length: int
    """Number of queued executions of the job. The longer the queue, the less often each one is checked."""
    is_supersedable: bool
    """Whether a newer job takes over the devices that are still queued in this job."""


class DispatchResult(NamedTuple):
    """Result of one dispatch transaction: started and changed executions, and what is left to do."""

    started: int
    changed: list[ExecutionChange]
    request_count: int
    has_more: bool
    """Whether more queued executions may have to be checked."""
    unrouted: list[int]
    """Devices that could start, but for which no gateway was selected yet."""


class _Candidate(NamedTuple):
    """Queued execution that may start now."""

    loaded: LoadedExecution
    active_job: int | None
    """Number of the job that is updating the device now; None if no job is."""


def dispatch_executions(
    connection: Connection,
    parameters: DispatchParameters,
    waves: Sequence[int],
    now: ClockReading,
    routes: GatewayRoutes | None = None,
) -> DispatchResult:
    """Start as many executions as the limits allow, and store what the remaining executions wait for.

    `routes` maps devices to the gateways selected for them; only devices in `routes` are started. Selecting
    a gateway is slow, because it reads the sample store. So call this function first with empty routes: it
    returns the devices that could start as `unrouted`. Select gateways for these devices and call it again.
    If `routes` is None, all devices can start, each through its own gateway.
    """
    candidates = [
        each._replace(loaded=each.loaded.with_route(routes))
        for each in _load_candidates(connection, parameters, waves, now.monotonic)
    ]
    specs = {parameters.spec.update.job: parameters.spec}
    contexts = queries.load_update_contexts(connection, specs, [each.loaded for each in candidates])
    dispatcher = _Dispatcher(connection, parameters, candidates, now.monotonic, routes)
    for candidate, context in zip(candidates, contexts, strict=True):
        if dispatcher.started + len(dispatcher.unrouted) >= parameters.slots:
            break
        dispatcher.decide_candidate(candidate, context)
    changed = transition_writer.write_transitions(connection, dispatcher.transitions, now)
    request_count = sum(each.decision.request is not None for each in dispatcher.transitions)
    has_more = len(candidates) >= CANDIDATES_PER_TRANSACTION
    return DispatchResult(dispatcher.started, changed, request_count, has_more, dispatcher.unrouted)


def _load_candidates(
    connection: Connection, parameters: DispatchParameters, waves: Sequence[int], now: int
) -> list[_Candidate]:
    """Load and lock the queued executions of waves that are due, at most 100."""
    candidates: list[_Candidate] = []
    for wave in waves:
        values = (parameters.spec.update.job, wave, now, CANDIDATES_PER_TRANSACTION - len(candidates))
        rows = bulk.query_rows(connection, _SELECT_QUEUED, values, lock=_LOCK)
        candidates += [_Candidate(queries.parse_loaded_execution(row), row[-1]) for row in rows]
        if len(candidates) >= CANDIDATES_PER_TRANSACTION:
            break
    return candidates


class _Dispatcher:
    """Decides about queued executions one after another.

    Each start occupies a slot of a gateway, so a decision depends on those before it.
    """

    def __init__(
        self,
        connection: Connection,
        parameters: DispatchParameters,
        candidates: Sequence[_Candidate],
        now: int,
        routes: GatewayRoutes | None,
    ) -> None:
        self._routes = routes
        self.unrouted: list[int] = []
        self._connection = connection
        self._parameters = parameters
        self._requirement = parameters.spec.requirement
        self._now = now
        self._slots = GatewaySlots(connection)
        self._slots.load_counts(each.loaded.snapshot.gateway for each in candidates)
        self._newer_jobs = _find_newer_jobs(connection, parameters, [each.loaded for each in candidates])
        self._broadcast_devices: set[int] = set()
        """Devices whose execution this transaction has started as part of a broadcast."""
        self.transitions: list[ExecutionTransition] = []
        self.started = 0

    def decide_candidate(self, candidate: _Candidate, context: UpdateContext) -> None:
        """Decide whether a queued execution starts (alone or in a broadcast), ends or waits.

        The decision is added to `transitions`, and written later by the caller. An execution for which a
        gateway must first be selected is added to `unrouted` instead.
        """
        execution, snapshot = candidate.loaded
        if execution.device in self._broadcast_devices:
            return
        if snapshot.device is None:
            self._add_transition(execution, remove_execution(execution, self._now))
            return
        if (newer_job := self._newer_jobs.get(execution.device)) is not None:
            reason = f"job-{newer_job} took over the device"
            self._add_transition(
                execution,
                end_execution(execution, ExecutionState.SUPERSEDED, reason, self._now, ReasonCode.NEWER_JOB),
            )
            return
        exclusion = find_exclusion(
            _correct_device_facts(candidate.loaded, self._requirement), self._requirement
        )
        is_on_target = exclusion is not None and exclusion.code is ExclusionCode.ALREADY_THERE
        # A device that reported the target version at job creation is checked, whatever it reports now.
        reports_target = execution.attempt == 1 and (
            is_on_target or (exclusion is None and execution.wave == LEFT_OUT_WAVE)
        )
        may_run_target = is_on_target or _may_run_target(execution)
        if exclusion is not None and not is_on_target:
            self._skip_execution(candidate.loaded, exclusion)
        elif self._needs_route(candidate):
            self.unrouted.append(execution.device)
        elif (obstacle := self._find_obstacle(candidate)) is not None:
            self._wait_or_skip_execution(candidate.loaded, obstacle, reports_target=reports_target)
        elif execution.method is UpdateMethod.BROADCAST and not may_run_target and not reports_target:
            self._start_broadcast(candidate, context)
        else:
            execution = _record_previous_version(candidate.loaded, self._requirement)
            decision = dispatch_execution(
                execution, context, self._now, may_run_target=may_run_target, reports_target=reports_target
            )
            self._add_start(execution, decision, context)

    def _add_transition(self, execution: ExecutionRecord, decision: Decision) -> None:
        """Add a decision about an execution to the decisions to write."""
        self.transitions.append(ExecutionTransition(execution, decision))

    def _wait_or_skip_execution(
        self, loaded: LoadedExecution, obstacle: WaitReason, *, reports_target: bool
    ) -> None:
        """Let an execution wait until an obstacle is gone.

        Skip the device instead if it reports the target version and has been offline for too long.
        """
        execution, snapshot = loaded
        if not reports_target or obstacle not in _OFFLINE:
            self._postpone_execution(execution, obstacle, snapshot.gateway)
        elif execution.moved_at is None:
            self._postpone_execution(replace(execution, moved_at=self._now), obstacle, snapshot.gateway)
        elif self._now < execution.moved_at + timeouts.OFFLINE_CHECK_TIMEOUT:
            self._postpone_execution(execution, obstacle, snapshot.gateway)
        else:
            reason = WAIT_TEXTS[obstacle]
            self._add_transition(
                execution, skip_unreachable_device(execution, self._requirement.version, reason, self._now)
            )

    def _skip_execution(self, loaded: LoadedExecution, exclusion: Exclusion) -> None:
        """End an execution as SKIPPED, because the device must not be updated."""
        execution = _record_previous_version(loaded, self._requirement)
        self._add_transition(
            execution,
            end_execution(execution, ExecutionState.SKIPPED, exclusion.reason, self._now, exclusion.code),
        )

    def _needs_route(self, candidate: _Candidate) -> bool:
        """Return whether a gateway must be selected before a candidate can start or wait.

        That includes devices whose own gateway is offline, because another gateway may receive the device.
        """
        execution, snapshot = candidate.loaded
        if self._routes is None or execution.device in self._routes:
            return False
        obstacle = self._find_obstacle(candidate)
        return obstacle is None or (obstacle is WaitReason.GATEWAY_OFFLINE and bool(snapshot.connected))

    def _find_obstacle(self, candidate: _Candidate) -> WaitReason | None:
        """Return why a queued execution cannot start now; None if it can start."""
        execution, snapshot = candidate.loaded
        if candidate.active_job is not None:
            return WaitReason.EARLIER_JOB
        if snapshot.gateway is None:
            return WaitReason.DEVICE_OFFLINE
        if not snapshot.gateway_connected:
            return WaitReason.GATEWAY_OFFLINE
        if not snapshot.connected:
            return WaitReason.DEVICE_OFFLINE
        has_free_slot = self._slots.has_free_slot(
            snapshot.gateway, execution.method, self._parameters.per_gateway
        )
        return None if has_free_slot else WaitReason.GATEWAY_BUSY

    def _postpone_execution(
        self, execution: ExecutionRecord, obstacle: WaitReason, gateway: int | None
    ) -> None:
        """Let an execution wait until its next check. The longer the queue, the later the check."""
        delay = max(_RECHECK_MS, self._parameters.queue_length * 1000 // _RECHECKS_PER_SECOND)
        waiting = replace(
            execution, waiting=str(obstacle), due=self._now + delay, gateway=gateway or execution.gateway
        )
        self._add_transition(execution, Decision(waiting))

    def _add_start(self, execution: ExecutionRecord, decision: Decision, context: UpdateContext) -> None:
        """Add a decision to start an execution. Reserve a gateway slot, unless only a version is read."""
        if decision.execution.step is not UpdateStep.CHECK_REPORTED:
            self._slots.reserve_slot(context.gateway, execution.method)
        self._add_transition(execution, decision)
        self.started += 1

    def _start_broadcast(self, candidate: _Candidate, context: UpdateContext) -> None:
        """Start one broadcast for the candidate and all other devices of its gateway that can take part."""
        leader = candidate.loaded.execution
        others = self._find_broadcast_members(leader, context.gateway)
        batch = f"{leader.device:012x}-{self._now:x}"
        devices = tuple(sorted([leader.device, *(each.execution.device for each in others)]))
        self._broadcast_devices.update(devices)
        for loaded in [candidate.loaded, *others]:
            execution, snapshot = loaded
            member_context = replace(
                context, batch=devices, status=snapshot.status, beat_at=snapshot.heartbeat_at
            )
            is_leader = execution.device == devices[0]  # as in `UpdateContext.is_batch_leader` from now on
            execution = _record_previous_version(loaded, self._requirement)
            decision = dispatch_execution(
                replace(execution, batch=batch), member_context, self._now, is_leader=is_leader
            )
            self._add_start(execution, decision, context)

    def _find_broadcast_members(self, leader: ExecutionRecord, gateway: int) -> list[LoadedExecution]:
        """Find the queued executions that can take part in a broadcast besides its leader."""
        limit = min(MAX_BROADCAST_DEVICES, self._parameters.broadcast_slots - self.started)
        values = (gateway, leader.job, self._parameters.wave, self._now, limit)
        rows = bulk.query_rows(self._connection, _SELECT_BEHIND_GATEWAY, values, lock=_LOCK)
        candidates = [queries.parse_loaded_execution(row) for row in rows if row[-1] is None]
        unavailable = _find_newer_jobs(self._connection, self._parameters, candidates).keys() | {
            leader.device
        }
        members = [
            each
            for each in candidates
            if each.execution.device not in unavailable and self._can_join_broadcast(each)
        ]
        return members[: limit - 1]

    def _can_join_broadcast(self, loaded: LoadedExecution) -> bool:
        """Return whether a queued execution can take part in the broadcast that starts now."""
        execution, snapshot = loaded
        return (
            execution.device not in self._broadcast_devices
            and bool(snapshot.connected)
            and not _may_run_target(execution)
            and find_exclusion(_correct_device_facts(loaded, self._requirement), self._requirement) is None
        )


def _find_newer_jobs(
    connection: Connection, parameters: DispatchParameters, loaded: Sequence[LoadedExecution]
) -> dict[int, int]:
    """Return the number of the newer job that takes over a device, by device.

    Return an empty dict if the job keeps its devices when newer jobs are created.
    """
    if not loaded or not parameters.is_supersedable:
        return {}
    devices = sorted(each.execution.device for each in loaded)
    rows = bulk.query_in(connection, _SELECT_NEWER_JOBS.format(job=parameters.spec.update.job), devices)
    return {row[0]: row[1] for row in rows}


def _correct_device_facts(loaded: LoadedExecution, requirement: FirmwareRequirement) -> DeviceFacts:
    """Return the model and versions of a device in the registry, with a wrong firmware version corrected.

    If the device reports the target version, but another version was read from it, that version is returned.
    """
    execution, snapshot = loaded
    if (
        execution.code != ReasonCode.MISREPORTED
        or execution.from_version is None
        or parse_running_version(snapshot.facts) != requirement.version
    ):
        return snapshot.facts
    version = Version.parse(execution.from_version)
    return snapshot.facts._replace(firmware=".".join(map(str, version[:3])), beta=version.beta)


def _record_previous_version(loaded: LoadedExecution, requirement: FirmwareRequirement) -> ExecutionRecord:
    """Return the execution with `from_version` set to the version that the device runs, if known.

    From the second attempt on, ignore the target version: an earlier attempt may have installed it.
    """
    running = parse_running_version(_correct_device_facts(loaded, requirement))
    execution = loaded.execution
    return (
        execution
        if running is None or (running == requirement.version and execution.attempt > 1)
        else replace(execution, from_version=str(running))
    )


def _may_run_target(execution: ExecutionRecord) -> bool:
    """Return whether an earlier attempt may have installed the target version without confirming it."""
    return execution.attempt > 1 and execution.code in UNCERTAIN_CODES
