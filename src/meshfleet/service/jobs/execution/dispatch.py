"""Lets executions begin: looks at those whose turn it is, and either begins or says what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition
from meshfleet.protocol.ids import Version
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import ExecutionState as S
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
from meshfleet.service.jobs.updates.version_check import skip_unreachable
from meshfleet.service.jobs.wait_reasons import WaitReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.clock import Moment
    from meshfleet.service.jobs.compatibility import DeviceFacts, Exclusion, FirmwareRequirement
    from meshfleet.service.jobs.execution.queries import GatewayRoutes, LoadedExecution
    from meshfleet.service.jobs.notifications import ExecutionChange
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext, UpdateSpec

CANDIDATES_PER_TRANSACTION: Final = 100
"""Executions that are looked at in one transaction."""

_RECHECK_MS: Final = 30_000
"""Milliseconds after which one that has to wait is looked at again."""

_OFFLINE_TEXTS: Final = {
    WaitReason.DEVICE_OFFLINE: "it is not connected",
    WaitReason.GATEWAY_OFFLINE: "its gateway is not connected",
}

_RECHECKS_PER_SECOND: Final = 200
"""So many are looked at again in a second, if all of a long queue have to wait."""

_SELECT: Final = (
    f"SELECT {queries.EXECUTION_COLUMNS},{queries.DEVICE_COLUMNS}, a.job"  # noqa: S608 # our own names
    f" FROM execution e{queries.DEVICE_JOINS}"
)
_JOIN_ACTIVE: Final = f" LEFT JOIN execution a ON a.device = e.device AND {active_condition('a.state')}"
_SELECT_QUEUED: Final = (
    f"{_SELECT}{_JOIN_ACTIVE} WHERE e.job = ? AND e.state = 'QUEUED' AND e.wave = ? AND e.due <= ?"
    " ORDER BY e.due LIMIT ?"
)
_SELECT_BEHIND_GATEWAY: Final = (
    f"SELECT {queries.EXECUTION_COLUMNS},{queries.DEVICE_COLUMNS}, a.job FROM device d CROSS JOIN execution e"  # noqa: S608 # our own names
    f"{queries.STATE_JOINS}{_JOIN_ACTIVE} WHERE d.gateway = ? AND e.job = ? AND e.device = d.id"
    " AND e.state = 'QUEUED' AND e.wave BETWEEN 0 AND ? AND (e.due <= ? OR e.waiting = 'gateway-busy')"
    " ORDER BY e.wave, e.due LIMIT ?"
)
"""From the devices of the gateway on, in this order: SQLite would walk along the whole queue."""
_LOCK: Final = " FOR UPDATE OF e SKIP LOCKED"
_SELECT_NEWER_JOBS: Final = (
    # From the few jobs that are open on, in this order.
    "SELECT e.device, min(e.job) FROM job j CROSS JOIN execution e WHERE j.finished_at IS NULL"
    " AND (j.created_at, j.id) > (SELECT created_at, id FROM job WHERE id = {job})"
    " AND e.job = j.id AND e.device IN numbers AND e.wave >= 0 GROUP BY e.device"
)


class DispatchParameters(NamedTuple):
    """A job whose executions may begin."""

    spec: UpdateSpec
    requirement: FirmwareRequirement
    per_gateway: int | None
    wave: int
    """The last one that has begun."""
    slots: int
    """How many may begin."""
    broadcast_slots: int
    """How many may begin together with one of these: what goes beyond the rate is waited for afterwards."""
    queue_length: int
    """How many wait, so that not too many are looked at."""
    is_supersedable: bool
    """Whether newer jobs take its devices over."""


class DispatchResult(NamedTuple):
    """What came of a turn."""

    started: int
    changed: list[ExecutionChange]
    request_count: int
    has_more: bool
    """Whether there are more to look at."""
    unrouted: list[int]
    """Devices that could begin, but for which no gateway was selected yet."""


class _Candidate(NamedTuple):
    loaded: LoadedExecution
    active_job: int | None
    """A job that updates the device at this moment."""


def dispatch_executions(
    connection: Connection,
    parameters: DispatchParameters,
    waves: Sequence[int],
    now: Moment,
    routes: GatewayRoutes | None = None,
) -> DispatchResult:
    """Let as many begin as may, and tell what the others wait for.

    With `routes`, only devices begin that are in it. To select a gateway the sample store is read, so that is
    done for those alone that could begin: call again with routes for the `unrouted`.
    """
    found = [
        each._replace(loaded=each.loaded.with_route(routes))
        for each in _load_candidates(connection, parameters, waves, now.steady)
    ]
    said = {parameters.spec.job: (parameters.spec, parameters.requirement)}
    scenes = queries.load_contexts(connection, said, [each.loaded for each in found])
    deciding = _Dispatcher(connection, parameters, found, now.steady, routes)
    for candidate, scene in zip(found, scenes, strict=True):
        if deciding.started + len(deciding.unrouted) >= parameters.slots:
            break
        deciding.decide(candidate, scene)
    changed = transition_writer.write_transitions(connection, deciding.transitions, now)
    asks = sum(each.decision.request is not None for each in deciding.transitions)
    return DispatchResult(
        deciding.started, changed, asks, len(found) >= CANDIDATES_PER_TRANSACTION, deciding.unrouted
    )


def _load_candidates(
    connection: Connection, parameters: DispatchParameters, waves: Sequence[int], now: int
) -> list[_Candidate]:
    found: list[_Candidate] = []
    for wave in waves:
        values = (parameters.spec.job, wave, now, CANDIDATES_PER_TRANSACTION - len(found))
        rows = bulk.query_rows(connection, _SELECT_QUEUED, values, lock=_LOCK)
        found += [_Candidate(queries.parse_loaded_execution(row), row[-1]) for row in rows]
        if len(found) >= CANDIDATES_PER_TRANSACTION:
            break
    return found


class _Dispatcher:
    """Decides about one after the other: with each that begins there is less room for the next."""

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
        self._turn = parameters
        self._now = now
        self._slots = GatewaySlots(connection)
        self._slots.load(each.loaded.snapshot.gateway for each in candidates)
        self._newer_jobs = _find_newer_jobs(connection, parameters, [each.loaded for each in candidates])
        self._broadcast_devices: set[int] = set()
        """Devices that have begun together with another."""
        self.transitions: list[ExecutionTransition] = []
        self.started = 0

    def decide(self, candidate: _Candidate, context: UpdateContext) -> None:
        """Let one begin, alone or with others; or end it; or let it wait."""
        x, about = candidate.loaded
        if x.device in self._broadcast_devices:
            return
        if about.device is None:
            self.transitions.append(ExecutionTransition(x, remove_execution(x, self._now)))
            return
        if (taker := self._newer_jobs.get(x.device)) is not None:
            self.transitions.append(
                ExecutionTransition(
                    x,
                    end_execution(
                        x, S.SUPERSEDED, f"job-{taker} took it over", self._now, ReasonCode.NEWER_JOB
                    ),
                )
            )
            return
        wrong = find_exclusion(_find_facts(candidate.loaded, self._turn.requirement), self._turn.requirement)
        is_there = wrong is not None and wrong.code is ExclusionCode.ALREADY_THERE
        # One that was in no wave because of its reports is asked, whatever it reports by now.
        is_reported = x.attempt == 1 and (is_there or (wrong is None and x.wave == LEFT_OUT_WAVE))
        looks = is_there or _may_be_updated(x)
        if wrong is not None and not is_there:
            self._skip(candidate.loaded, wrong)
        elif self._needs_route(candidate):
            self.unrouted.append(x.device)
        elif (obstacle := self._find_obstacle(candidate)) is not None:
            self._wait_or_skip(candidate.loaded, obstacle, is_reported=is_reported)
        elif x.method is UpdateMethod.BROADCAST and not looks and not is_reported:
            self._start_broadcast(candidate, context)
        else:
            x = _with_from_version(candidate.loaded, self._turn.requirement)
            self._start(
                x,
                dispatch_execution(x, context, self._now, may_be_updated=looks, reports_target=is_reported),
                context,
            )

    def _wait_or_skip(self, loaded: LoadedExecution, obstacle: WaitReason, *, is_reported: bool) -> None:
        """Let one wait; but one that reports the target version does not keep a job open until it returns."""
        x, about = loaded
        if not is_reported or obstacle not in _OFFLINE_TEXTS:
            self._wait(x, obstacle, about.gateway)
        elif x.moved_at is None:
            self._wait(replace(x, moved_at=self._now), obstacle, about.gateway)
        elif self._now < x.moved_at + timeouts.OFFLINE_CHECK_TIMEOUT:
            self._wait(x, obstacle, about.gateway)
        else:
            why = _OFFLINE_TEXTS[obstacle]
            self.transitions.append(
                ExecutionTransition(x, skip_unreachable(x, self._turn.requirement.version, why, self._now))
            )

    def _skip(self, loaded: LoadedExecution, exclusion: Exclusion) -> None:
        x = _with_from_version(loaded, self._turn.requirement)
        move = end_execution(x, S.SKIPPED, exclusion.reason, self._now)
        self.transitions.append(
            ExecutionTransition(x, move._replace(execution=replace(move.execution, code=str(exclusion.code))))
        )

    def _needs_route(self, candidate: _Candidate) -> bool:
        """Whether a gateway must be selected before this one is decided.

        The gateway to which a connected device belongs may be away: then another one hears the device.
        """
        x, about = candidate.loaded
        if self._routes is None or x.device in self._routes:
            return False
        obstacle = self._find_obstacle(candidate)
        return obstacle is None or (obstacle is WaitReason.GATEWAY_OFFLINE and bool(about.connected))

    def _find_obstacle(self, candidate: _Candidate) -> WaitReason | None:
        """What keeps one from beginning."""
        x, about = candidate.loaded
        if candidate.active_job is not None:
            return WaitReason.EARLIER_JOB
        if about.gateway is None:
            return WaitReason.DEVICE_OFFLINE
        if not about.gateway_connected:
            return WaitReason.GATEWAY_OFFLINE
        if not about.connected:
            return WaitReason.DEVICE_OFFLINE
        is_free = self._slots.is_free(about.gateway, x.method, self._turn.per_gateway)
        return None if is_free else WaitReason.GATEWAY_BUSY

    def _wait(self, x: ExecutionRecord, obstacle: WaitReason, gateway: int | None) -> None:
        """Look at it again later; in a long queue much later, for there are many to look at."""
        pause = max(_RECHECK_MS, self._turn.queue_length * 1000 // _RECHECKS_PER_SECOND)
        waits = replace(x, waiting=str(obstacle), due=self._now + pause, gateway=gateway or x.gateway)
        self.transitions.append(ExecutionTransition(x, Decision(waits)))

    def _start(self, x: ExecutionRecord, decision: Decision, context: UpdateContext) -> None:
        if decision.execution.step is not UpdateStep.CHECK_REPORTED:
            self._slots.reserve(context.gateway, x.method)
        self.transitions.append(ExecutionTransition(x, decision))
        self.started += 1

    def _start_broadcast(self, candidate: _Candidate, context: UpdateContext) -> None:
        """Begin a broadcast for all behind one gateway that can take part."""
        leader = candidate.loaded.execution
        others = self._find_members(leader, context.gateway)
        batch = f"{leader.device:012x}-{self._now:x}"
        devices = tuple(sorted([leader.device, *(each.execution.device for each in others)]))
        self._broadcast_devices.update(devices)
        for known in [candidate.loaded, *others]:
            x, about = known
            own = replace(context, batch=devices, status=about.status, beat_at=about.heartbeat_at)
            leads = x.device == devices[0]  # as `Scene.leads` has it from now on
            x = _with_from_version(known, self._turn.requirement)
            self._start(
                x, dispatch_execution(replace(x, batch=batch), own, self._now, is_leader=leads), context
            )

    def _find_members(self, leader: ExecutionRecord, gateway: int) -> list[LoadedExecution]:
        """Who can take part besides the one that leads."""
        most = min(MAX_BROADCAST_DEVICES, self._turn.broadcast_slots - self.started)
        values = (gateway, leader.job, self._turn.wave, self._now, most)
        rows = bulk.query_rows(self._connection, _SELECT_BEHIND_GATEWAY, values, lock=_LOCK)
        found = [queries.parse_loaded_execution(row) for row in rows if row[-1] is None]
        taken = _find_newer_jobs(self._connection, self._turn, found).keys() | {leader.device}
        fit = [each for each in found if each.execution.device not in taken and self._can_join(each)]
        return fit[: most - 1]

    def _can_join(self, loaded: LoadedExecution) -> bool:
        x, about = loaded
        is_free = x.device not in self._broadcast_devices and bool(about.connected) and not _may_be_updated(x)
        return (
            is_free
            and find_exclusion(_find_facts(loaded, self._turn.requirement), self._turn.requirement) is None
        )


def _find_newer_jobs(
    connection: Connection, parameters: DispatchParameters, loaded: Sequence[LoadedExecution]
) -> dict[int, int]:
    """Devices that a newer job has taken over meanwhile, and which."""
    if not loaded or not parameters.is_supersedable:
        return {}
    devices = sorted(each.execution.device for each in loaded)
    rows = bulk.query_in(connection, _SELECT_NEWER_JOBS.format(job=parameters.spec.job), devices)
    return {row[0]: row[1] for row in rows}


def _find_facts(loaded: LoadedExecution, requirement: FirmwareRequirement) -> DeviceFacts:
    """Return what is known of a device. If it was asked and contradicted its reports, its answer counts."""
    x, about = loaded
    if (
        x.code != ReasonCode.MISREPORTED
        or x.from_version is None
        or parse_running_version(about.facts) != requirement.version
    ):
        return about.facts
    read = Version.parse(x.from_version)
    return about.facts._replace(firmware=".".join(map(str, read[:3])), beta=read.beta)


def _with_from_version(loaded: LoadedExecution, requirement: FirmwareRequirement) -> ExecutionRecord:
    """Let an execution say from which version this attempt begins, as far as that is known.

    If it is the target already, an attempt before this one may have brought it.
    """
    runs = parse_running_version(_find_facts(loaded, requirement))
    x = loaded.execution
    return (
        x
        if runs is None or (runs == requirement.version and x.attempt > 1)
        else replace(x, from_version=str(runs))
    )


def _may_be_updated(x: ExecutionRecord) -> bool:
    """Whether an attempt before this one may have brought the version, though nobody saw it."""
    return x.attempt > 1 and x.code in UNCERTAIN_CODES
