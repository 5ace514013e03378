"""Data types of the update state machine: events, requests, contexts, executions and decisions."""

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
    """Event: the timer of the execution is due. A deadline has passed, or the next request is to be sent."""


class ResponseReceived(NamedTuple):
    """Event: the response to a request of the execution arrived."""

    step: UpdateStep
    status: int
    value: Any = None
    is_batch_response: bool = False
    """Whether another device of the same broadcast sent the request."""


class RequestNotSent(NamedTuple):
    """Event: a request of the execution could not be sent, so no device or gateway received it."""

    step: UpdateStep
    reason: str


class RequestUnanswered(NamedTuple):
    """Event: a sent request of the execution got no response. The device may have executed the request."""

    step: UpdateStep
    reason: str
    is_connection_lost: bool = False
    """Whether the response is missing because the connection to the gateway was lost."""


class HeartbeatReceived(NamedTuple):
    """Event: the device sent a heartbeat."""

    status: int
    at: int
    """Time of the heartbeat in milliseconds, by the clock of the device or gateway that reported it."""


class DfuModeSeen(NamedTuple):
    """Event: a gateway received the device in DFU mode."""

    gateway: int | None
    """Gateway that received the device; None if unknown."""
    parent: int | None
    """Mesh node that received the advertisement of the device; None if unknown."""
    rssi: int | None
    has_free_slot: bool = True
    """Whether one more update may run through the gateway that received the device."""


class GatewayDisconnected(NamedTuple):
    """Event: the gateway of the execution disconnected."""


class GatewayReconnected(NamedTuple):
    """Event: the gateway of the execution is connected again."""


class DeviceRemoved(NamedTuple):
    """Event: the device of the execution was removed from the registry."""


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
    """Purpose of the last request of an execution, or the reason why the execution has sent no request."""

    RECHECK_VERSION = "look"
    """Read the version before the start command is sent again, as the device may run the new version."""
    CHECK_REPORTED = "check"
    """Read the version of a device that reports the target version, before the device is skipped."""
    ENTER_DFU = "mode"
    """Switch the device to DFU mode."""
    START = "start"
    """Send the start command of the update."""
    STATE = "state"
    """Read the update state."""
    BUSY_ELSEWHERE = "foreign"
    """Wait without a request: the device or gateway is busy with an update that this job did not start."""
    UNSENT = "unsent"
    """Wait to send the start command, because no start command could be sent in this attempt yet."""
    DEVICE_STATE = "own-state"
    """Read the update state of one device of a broadcast from the device, not from its gateway."""
    APPLY = "apply"
    """Send the command that starts the staged image."""
    ABORT = "abort"
    """Send the command that aborts the update."""
    CONFIRM_VERSION = "version"
    """Read the version after the update."""
    FINAL_ABORT = "parting"
    """Abort an update that is given up. The response to the abort command is ignored."""


START_STEPS: Final = frozenset({UpdateStep.START, UpdateStep.ENTER_DFU})
"""Steps whose request starts an update on the device."""


class UpdateRequest(NamedTuple):
    """Request to a device or gateway that a decision of the state machine contains."""

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
    """Firmware version that the job installs."""
    size: int
    """Size of the firmware image in bytes."""
    stage: bool
    """Whether devices keep the image until a user applies the job, instead of starting it at once."""
    is_applied: bool
    """Whether a user has applied the job, so that devices may start their staged image."""
    is_canceling: bool
    stop_cause: StopCause | None = None
    """Reason why the job is being canceled; None if the job is not being canceled."""
    last_wave: int = 0
    """Index of the last wave of the job, from 0."""
    transferring_count: int = 0
    """Number of devices of the job that are receiving the image now."""
    heartbeats: int
    """Number of good heartbeats in a row that confirm an update."""
    retries: int
    """Maximum number of further attempts after the first attempt."""
    backoff_base: int
    """Delay before the second attempt. The delay doubles with each further attempt."""
    queue_timeout: int
    """Maximum time in the queue, and maximum time that an image stays staged."""
    step_timeout: int
    """Maximum time without progress of a transfer."""
    total_timeout: int | None
    """Maximum duration of an update; None to estimate the duration from the size of the image."""


class UpdateContext(Struct, frozen=True, kw_only=True):
    """Parameters of the job and current data of one device, from which the next decision is made."""

    spec: UpdateSpec
    gateway: int
    """Gateway through which requests to the device are sent."""
    rate: float
    """Expected transfer rate from this gateway to the device, in bytes per second."""
    heartbeat_interval: int | None
    """Usual time between two heartbeats of the device, in milliseconds; None if unknown."""
    status: int | None = None
    """Status of the last heartbeat of the device; None if the device has sent no heartbeat."""
    beat_at: int | None = None
    """Time of the last heartbeat in milliseconds, by the clock of the device or gateway that reported it."""
    batch: tuple[int, ...] = ()
    """Devices of the broadcast whose executions are in the same state, sorted; empty without broadcast."""
    is_batch_complete: bool = True
    """Whether the version of every device in the same state of the broadcast has been read."""

    def is_batch_leader(self, device: int) -> bool:
        """Return whether the execution of `device` sends the requests for the whole broadcast."""
        return not self.batch or self.batch[0] == device


class ExecutionRecord(Struct, frozen=True, kw_only=True):
    """Row of the table `execution`: the update of one device in a job. The table describes the columns."""

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
    pending_request: str | None = None
    """Id of the outbox request whose result is awaited (column `ask`); None if no result is awaited."""
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
    """Decision of the state machine: the changed execution, and the requests to send."""

    execution: ExecutionRecord
    cause: str = ""
    """Reason for the new state, as a sentence for users."""
    request: UpdateRequest | None = None
    abort_request: UpdateRequest | None = None
    """Additional request that aborts the update on the device; its response is not awaited."""
    is_evidence: bool = False
    """Whether the event is stored as evidence, even if the execution state is unchanged."""
