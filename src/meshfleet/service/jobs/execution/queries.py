"""Queries that load executions with the data of their device, their job and their gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition
from meshfleet.db.tables import execution as execution_table
from meshfleet.protocol.decoders import get_decoder
from meshfleet.protocol.ids import format_model_number
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.job_requests import StoredJobRequest
from meshfleet.rest.jobs import ExecutionState, JobState, StopCause
from meshfleet.service.jobs.compatibility import DeviceFacts, FirmwareRequirement, build_requirement
from meshfleet.service.jobs.updates import timeouts
from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext, UpdateSpec, UpdateStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.rest.job_requests import NewJob
    from meshfleet.service.jobs.updates.model import UpdateEvent

    GatewayRoutes = Mapping[int, int | None]
    """Gateway that was selected for each device; None if no connected gateway has received the device.

    Requests to a device that is missing here or has None go through the own gateway of the device.
    """

_MINUTE_MS: Final = 60_000
_SECOND_MS: Final = 1000

EXECUTION_COLUMNS: Final = ", ".join(f"e.{column.name}" for column in execution_table.columns)
_FIELDS: Final = ExecutionRecord.__struct_fields__
_FIELD_COUNT: Final = len(_FIELDS)

DEVICE_COLUMNS: Final = (
    " d.id, d.model, d.hardware, d.firmware, d.beta, d.connected,"
    " CASE WHEN w.device IS NULL THEN d.gateway ELSE d.id END, g.connected, s.status, s.status_at, s.rhythm"
)
"""SQL columns in the order of the fields of `DeviceSnapshot`."""

STATE_JOINS: Final = (
    " LEFT JOIN gateway w ON w.device = e.device"
    " LEFT JOIN device g ON g.id = CASE WHEN w.device IS NULL THEN d.gateway ELSE d.id END"
    " LEFT JOIN device_state s ON s.device = e.device"
)
DEVICE_JOINS: Final = f" LEFT JOIN device d ON d.id = e.device{STATE_JOINS}"

SELECT_EXECUTIONS: Final = f"SELECT {EXECUTION_COLUMNS},{DEVICE_COLUMNS} FROM execution e{DEVICE_JOINS}"  # noqa: S608 # constants only
"""Selects executions with their devices. `parse_loaded_execution` parses the rows."""

IS_ACTIVE: Final = active_condition("e.state")
LOCK_EXECUTIONS: Final = " FOR UPDATE OF e"

EXECUTIONS_PER_TRANSACTION: Final = 100
"""Maximum number of active executions that are advanced in one transaction."""

_SELECT_JOBS: Final = (
    "SELECT j.id, j.state, j.stop_cause, j.waves, j.applied_at, f.size,"
    " (SELECT sum(t.count) FROM tally t WHERE t.job = j.id AND t.state = 'TRANSFERRING'),"
    " f.model, f.version, f.hardware, f.min_version, f.type"
    " FROM job j JOIN firmware f ON f.id = j.firmware WHERE j.id IN numbers"
)
_SELECT_BODIES: Final = "SELECT id, body FROM job WHERE id IN numbers"
_SELECT_RATES: Final = "SELECT gateway, method, rate FROM pace WHERE gateway IN numbers"

_MAX_CACHED_BODIES: Final = 256


class DeviceSnapshot(NamedTuple):
    """Registry data of a device, with the connection state of its gateway."""

    device: int | None
    """Device id as an integer; None if the device was removed from the registry."""
    model: int
    hardware: str
    firmware: str
    beta: int
    connected: bool
    gateway: int | None
    """Gateway of the device, or the device itself if it is a claimed gateway; None if unknown."""
    gateway_connected: bool | None
    status: int | None
    """Status of the last heartbeat; None if the device has sent no heartbeat."""
    heartbeat_at: int | None
    """Time of the last heartbeat in milliseconds, by the clock of the device or gateway that reported it."""
    heartbeat_interval: int | None
    """Usual milliseconds between two heartbeats; None if unknown."""

    @property
    def facts(self) -> DeviceFacts:
        """Properties of the device that decide whether a firmware fits."""
        is_gateway = self.device is not None and self.gateway == self.device
        return DeviceFacts(self.model, self.hardware, self.firmware, self.beta, is_gateway)


class LoadedExecution(NamedTuple):
    """Execution with the registry data of its device."""

    execution: ExecutionRecord
    snapshot: DeviceSnapshot

    def with_route(self, routes: GatewayRoutes | None) -> LoadedExecution:
        """Return a copy that uses the gateway which `routes` selects for the device, if any."""
        gateway = None if routes is None else routes.get(self.execution.device)
        if gateway is None:
            return self
        return self._replace(snapshot=self.snapshot._replace(gateway=gateway, gateway_connected=True))


class ExecutionEvent(NamedTuple):
    """Event of an execution, together with the loaded execution."""

    loaded: LoadedExecution
    event: UpdateEvent


class JobSpec(NamedTuple):
    """Current parameters of a job: parameters of each update, and requirements that devices must meet."""

    update: UpdateSpec
    requirement: FirmwareRequirement


class JobSpecCache:
    """Loads job parameters, and caches the bodies of job requests, which never change. Thread-safe."""

    def __init__(self) -> None:
        self._bodies: dict[int, NewJob] = {}

    def load_body(self, connection: Connection, job: int) -> NewJob:
        """Return the body of the request with which a job was created."""
        return self._load_bodies(connection, [job])[job]

    def load_specs(self, connection: Connection, jobs: Iterable[int]) -> dict[int, JobSpec]:
        """Load the current parameters of jobs, by job number."""
        numbers = sorted(set(jobs))
        bodies = self._load_bodies(connection, numbers)
        return {
            row[0]: _build_job_spec(bodies[row[0]], row)
            for row in bulk.query_in(connection, _SELECT_JOBS, numbers)
        }

    def _load_bodies(self, connection: Connection, numbers: Sequence[int]) -> dict[int, NewJob]:
        """Return the bodies of job requests, from the cache if possible, by job number."""
        bodies = self._bodies
        missing = [each for each in numbers if each not in bodies]
        if missing:
            loaded = {
                number: get_decoder(StoredJobRequest).decode(body)
                for number, body in bulk.query_in(connection, _SELECT_BODIES, missing)
            }
            # Other threads may be reading the old dictionary: it is replaced, not changed.
            cached = {} if len(bodies) >= _MAX_CACHED_BODIES else bodies
            self._bodies = cached | loaded
            bodies = bodies | loaded
        return {each: bodies[each] for each in numbers}


def _build_job_spec(body: NewJob, row: Sequence[Any]) -> JobSpec:
    """Build the parameters of a job from the body of its request and a row of `_SELECT_JOBS`."""
    number, state, stop_cause, waves, applied_at, size, transferring, *firmware_columns = row
    requirement = build_requirement(body, *firmware_columns)
    total = body.timeouts.total_minutes
    spec = UpdateSpec(
        job=number,
        model=format_model_number(requirement.model),
        version=requirement.version,
        size=size,
        stage=body.stage,
        is_applied=applied_at is not None,
        is_canceling=state == JobState.CANCELING,
        stop_cause=None if stop_cause is None else StopCause(stop_cause),
        last_wave=len(msgspec.json.decode(waves)) - 1,
        transferring_count=int(transferring or 0),
        heartbeats=body.health.heartbeats,
        retries=body.retry.max,
        backoff_base=int(body.retry.backoff_seconds * _SECOND_MS),
        queue_timeout=int(body.timeouts.queue_minutes * _MINUTE_MS),
        step_timeout=int(body.timeouts.step_minutes * _MINUTE_MS),
        total_timeout=None if total is None else int(total * _MINUTE_MS),
    )
    return JobSpec(spec, requirement)


def parse_loaded_execution(row: Sequence[Any]) -> LoadedExecution:
    """Parse a row of `EXECUTION_COLUMNS` and `DEVICE_COLUMNS`."""
    return LoadedExecution(
        parse_execution(row[:_FIELD_COUNT]),
        DeviceSnapshot(*row[_FIELD_COUNT : _FIELD_COUNT + len(DeviceSnapshot._fields)]),
    )


def parse_execution(row: Sequence[Any]) -> ExecutionRecord:
    """Parse a row of `EXECUTION_COLUMNS`."""
    values = dict(zip(_FIELDS, row, strict=True))
    values["state"] = ExecutionState(values["state"])
    values["method"] = UpdateMethod(values["method"])
    values["step"] = None if values["step"] is None else UpdateStep(values["step"])
    values["is_read"] = bool(values["is_read"])
    return ExecutionRecord(**values)


def load_update_contexts(
    connection: Connection,
    specs: Mapping[int, JobSpec],
    loaded: Sequence[LoadedExecution],
) -> list[UpdateContext]:
    """Load the data for the next decision about each execution, except the members of its broadcast."""
    gateways = sorted({each.snapshot.gateway for each in loaded if each.snapshot.gateway is not None})
    rates = {
        (gateway, method): rate
        for gateway, method, rate in bulk.query_in(connection, _SELECT_RATES, gateways)
    }
    return [_build_context(specs[each.execution.job].update, each, rates) for each in loaded]


def _build_context(
    spec: UpdateSpec, loaded: LoadedExecution, rates: Mapping[tuple[int, str], float]
) -> UpdateContext:
    """Build the data for the next decision about an execution. `rates` are by gateway and update method."""
    execution, snapshot = loaded
    gateway = snapshot.gateway if snapshot.gateway is not None else execution.gateway or 0
    return UpdateContext(
        spec=spec,
        gateway=gateway,
        rate=rates.get((gateway, str(execution.method)), timeouts.DEFAULT_RATES[execution.method]),
        heartbeat_interval=snapshot.heartbeat_interval,
        status=snapshot.status,
        beat_at=snapshot.heartbeat_at,
    )
