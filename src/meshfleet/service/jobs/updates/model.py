"""Data model of the update state machine: events, requests, contexts, executions and decisions."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from meshfleet.protocol.ids import ModelNumber, Version
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState, StopCause

if TYPE_CHECKING:
    from meshfleet.protocol.codes import Operation


# Events of an execution.


class TimerDue(NamedTuple):
    """The execution is due: a deadline has passed, or the next request is to be sent."""


class ResponseReceived(NamedTuple):
    """The response to a request of the execution arrived."""

    step: UpdateStep
    status: int
    value: Any = None
    is_shared: bool = False
    """Whether the request was sent by another member of the same broadcast."""


class RequestNotSent(NamedTuple):
    """A request of the execution was not sent."""

    step: UpdateStep
    reason: str


class RequestUnanswered(NamedTuple):
    """No response arrived. The request may have been carried out nevertheless."""

    step: UpdateStep
    reason: str
    is_connection_lost: bool = False
    """Whether the connection to the gateway was lost, so that the silence says nothing about the device."""


class HeartbeatReceived(NamedTuple):
    """The device sent a heartbeat."""

    status: int
    at: int
    """Time in milliseconds, by the clock of the device or gateway that reported it."""


class DfuModeSeen(NamedTuple):
    """A gateway received the device in DFU mode."""

    gateway: int | None
    parent: int | None
    rssi: int | None
    has_free_slot: bool = True
    """Whether that gateway can host one more update."""


class GatewayDisconnected(NamedTuple):
    """The gateway of the execution disconnected."""


class GatewayReconnected(NamedTuple):
    """The gateway of the execution is connected again."""


class DeviceRemoved(NamedTuple):
    """The device was removed from the registry."""


UpdateEvent = (
    TimerDue
    | ResponseReceived
    | RequestNotSent
    | RequestUnanswered
    | HeartbeatReceived
    | DfuModeSeen
    | GatewayDisconnected
    | GatewayReconnected
    | DeviceRemoved
)


class UpdateStep(StrEnum):
    """Purpose of a request of a job, or what an execution waits for between two requests."""

    RECHECK_VERSION = "look"
    """Read the version before another attempt: an earlier one may have installed it."""
    CHECK_REPORTED = "check"
    """Read the version of a device that reports the target version, before it is skipped."""
    ENTER_DFU = "mode"
    """Switch the device to DFU mode."""
    START = "start"
    STATE = "state"
    BUSY_ELSEWHERE = "foreign"
    """No request: the device or gateway is busy with an update of another origin."""
    UNSENT = "unsent"
    """No request: the start command was never sent in this attempt."""
    DEVICE_STATE = "own-state"
    """Read the update state from one device of a broadcast, not from its gateway."""
    APPLY = "apply"
    ABORT = "abort"
    CONFIRM_VERSION = "version"
    FINAL_ABORT = "parting"
    """Abort an update that is given up. The response changes nothing."""


START_STEPS: Final = frozenset({UpdateStep.START, UpdateStep.ENTER_DFU})
"""Steps of the commands that start an update."""


class UpdateRequest(NamedTuple):
    """A request to be sent."""

    step: UpdateStep
    targets_gateway: bool
    """Whether the request is addressed to the gateway, not to the device."""
    operation: Operation
    identifier: str
    value: Any = None


def build_device_request(
    step: UpdateStep, operation: Operation, identifier: str, value: Any = None
) -> UpdateRequest:
    """Build a request to the device itself."""
    return UpdateRequest(step, targets_gateway=False, operation=operation, identifier=identifier, value=value)


def build_gateway_request(
    step: UpdateStep, operation: Operation, identifier: str, value: Any = None
) -> UpdateRequest:
    """Build a request to the gateway of the device."""
    return UpdateRequest(step, targets_gateway=True, operation=operation, identifier=identifier, value=value)


class UpdateSpec(Struct, frozen=True, kw_only=True):
    """Parameters of a job that apply to each of its devices. Times are in milliseconds."""

    job: int
    model: ModelNumber
    version: Version
    size: int
    stage: bool
    is_applied: bool
    """Whether devices may start an image that they have staged."""
    is_canceling: bool
    stop_cause: StopCause | None = None
    """Why the job is being canceled."""
    last_wave: int = 0
    transferring_count: int = 0
    """Number of devices of the job that are receiving the image now."""
    heartbeats: int
    retries: int
    backoff_base: int
    queue_timeout: int
    step_timeout: int
    total_timeout: int | None


class UpdateContext(Struct, frozen=True, kw_only=True):
    """Parameters of the job and current facts about one device."""

    spec: UpdateSpec
    gateway: int
    """Gateway for requests to the device."""
    rate: float
    """Expected transfer rate of its gateway, in bytes per second."""
    heartbeat_interval: int | None
    """Usual time between two heartbeats, in milliseconds; None if unknown."""
    status: int | None = None
    """Status of its last heartbeat; None if there was none."""
    beat_at: int | None = None
    """Time of its last heartbeat, by the clock of the device or gateway that reported it."""
    batch: tuple[int, ...] = ()
    """In a broadcast: devices in the same state, sorted. They get the same requests."""
    is_batch_complete: bool = True
    """In a broadcast: whether the versions of all members in this state are known."""

    def is_batch_leader(self, device: int) -> bool:
        """Return whether this device sends the requests for the whole broadcast."""
        return not self.batch or self.batch[0] == device


class ExecutionRecord(Struct, frozen=True, kw_only=True):
    """Row of the table `execution`."""

    job: int
    device: int
    state: ExecutionState
    wave: int
    due: int
    attempt: int
    method: UpdateMethod
    gateway: int | None
    from_version: str | None
    progress: int = 0
    waiting: str | None = None
    code: str | None = None
    reason: str | None = None
    step: UpdateStep | None = None
    ask: str | None = None
    tries: int = 0
    batch: str | None = None
    expires: int | None = None
    total_until: int | None = None
    moved_at: int | None = None
    status_before: int | None = None
    beat_at: int | None = None
    beats: int = 0
    is_read: bool = False
    started_at: int | None = None
    updated_at: int
    version: int = 0
    suspended_at: int | None = None
    resumed_at: int | None = None
    outage_left: int | None = None
    final_until: int | None = None


class Decision(NamedTuple):
    """Decision of the state machine about an execution."""

    execution: ExecutionRecord
    cause: str = ""
    """Reason for the new state, as a sentence for users."""
    request: UpdateRequest | None = None
    abort_request: UpdateRequest | None = None
    """Additional request that aborts the update on the device; its response is not awaited."""
    is_evidence: bool = False
    """Whether the event is stored as evidence even if the state is unchanged."""
