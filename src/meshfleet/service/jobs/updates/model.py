"""An execution and what it is to do: plain values, as the engine knows them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from meshfleet.protocol.ids import ModelNumber, Version
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import ExecutionState, StopCause

if TYPE_CHECKING:
    from meshfleet.protocol.codes import Operation


# What can happen to an execution.


class TimerDue(NamedTuple):
    """It is time to look at it: a clock ran out, or something is to be asked."""


class ResponseReceived(NamedTuple):
    """A response came to its request."""

    step: UpdateStep
    status: int
    value: Any = None
    is_shared: bool = False
    """Whether another device of the same broadcast asked."""


class RequestNotSent(NamedTuple):
    """Its request did not leave, and why."""

    step: UpdateStep
    reason: str


class RequestUnanswered(NamedTuple):
    """Its request may have been carried out: no response came that says so, and why."""

    step: UpdateStep
    reason: str
    is_connection_lost: bool = False
    """Whether the way to the gateway broke, so that the silence says nothing about the device."""


class HeartbeatReceived(NamedTuple):
    """The device sent a heartbeat."""

    status: int
    at: int
    """By the clock of whoever reported it."""


class DfuModeSeen(NamedTuple):
    """The device was heard in DFU mode."""

    gateway: int | None
    parent: int | None
    rssi: int | None
    has_free_slot: bool = True
    """Whether that gateway can take one more update."""


class GatewayDisconnected(NamedTuple):
    """The gateway through which it is reached is not connected."""


class GatewayReconnected(NamedTuple):
    """That gateway is connected again."""


class DeviceRemoved(NamedTuple):
    """The device is in the registry no longer."""


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
    """What a request of a job is for."""

    RECHECK_VERSION = "look"
    """Read the version before another attempt: the one before may have done it."""
    CHECK_REPORTED = "check"
    """Read the version of a device that reports the target version, before it is skipped."""
    ENTER_DFU = "mode"
    """Send the device into DFU mode."""
    START = "start"
    STATE = "state"
    BUSY_ELSEWHERE = "foreign"
    """Nothing is asked: device or gateway are busy with what is not ours, and must not be disturbed."""
    UNSENT = "unsent"
    """Nothing is asked: the command that begins the update never left in this attempt."""
    DEVICE_STATE = "own-state"
    """In a broadcast: what one device tells, not the gateway for all."""
    APPLY = "apply"
    ABORT = "abort"
    CONFIRM_VERSION = "version"
    FINAL_ABORT = "parting"
    """Abort what we wait for no longer. Whatever the answer is, it moves nothing."""


START_STEPS: Final = frozenset({UpdateStep.START, UpdateStep.ENTER_DFU})
"""The commands with which an update begins."""


class UpdateRequest(NamedTuple):
    """A request to be sent."""

    step: UpdateStep
    targets_gateway: bool
    """Whether it is the gateway that is asked, not the device."""
    operation: Operation
    identifier: str
    value: Any = None


def build_device_request(
    step: UpdateStep, operation: Operation, identifier: str, value: Any = None
) -> UpdateRequest:
    """A request to the device itself."""
    return UpdateRequest(step, targets_gateway=False, operation=operation, identifier=identifier, value=value)


def build_gateway_request(
    step: UpdateStep, operation: Operation, identifier: str, value: Any = None
) -> UpdateRequest:
    """A request to its gateway."""
    return UpdateRequest(step, targets_gateway=True, operation=operation, identifier=identifier, value=value)


class UpdateSpec(Struct, frozen=True, kw_only=True):
    """What a job says about each of its devices. Times are milliseconds."""

    job: int
    model: ModelNumber
    version: Version
    size: int
    stage: bool
    is_applied: bool
    """Whether devices that have the image may start it."""
    is_canceling: bool
    stop_cause: StopCause | None = None
    """Why the job is being canceled."""
    last_wave: int = 0
    transferring_count: int = 0
    """How many devices of the job get the image at this moment."""
    heartbeats: int
    retries: int
    backoff_base: int
    queue_timeout: int
    step_timeout: int
    total_timeout: int | None


class UpdateContext(Struct, frozen=True, kw_only=True):
    """An order, and what is known of one device at this moment."""

    spec: UpdateSpec
    gateway: int
    """Through which it is reached now."""
    rate: float
    """Bytes per second that its gateway is known to bring."""
    heartbeat_interval: int | None
    """Milliseconds that usually pass between two of its heartbeats; None: not known."""
    status: int | None = None
    """Of its last heartbeat."""
    beat_at: int | None = None
    """When that was, by the clock of whoever reported it."""
    batch: tuple[int, ...] = ()
    """In a broadcast: those who are as far as this one, and so have to be told and asked the same."""
    is_batch_complete: bool = True
    """In a broadcast: whether nobody who is to take part has still to tell its version."""

    def is_batch_leader(self, device: int) -> bool:
        """Whether it is this device on behalf of which the gateway is told and asked: one does for all."""
        return not self.batch or self.batch[0] == device


class ExecutionRecord(Struct, frozen=True, kw_only=True):
    """A row of `execution`; see there."""

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
    """What becomes of an execution."""

    execution: ExecutionRecord
    cause: str = ""
    """Why its state is another, in a sentence."""
    request: UpdateRequest | None = None
    abort_request: UpdateRequest | None = None
    """What is sent besides, as a last word."""
    is_evidence: bool = False
    """Whether what caused it is kept even if the state is the same."""
