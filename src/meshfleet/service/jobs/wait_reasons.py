"""Describes what an execution waits for, as a sentence for users that starts with a keyword for programs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.protocol.times import format_millis
from meshfleet.rest.jobs import ExecutionState, JobState
from meshfleet.service.clock import monotonic
from meshfleet.service.jobs.updates.decisions import WAIT_CANCELING
from meshfleet.service.jobs.updates.gateway_outages import WAIT_GATEWAY_OFFLINE
from meshfleet.service.jobs.updates.model import UpdateStep
from meshfleet.service.jobs.updates.states import ACTIVE_STATES

if TYPE_CHECKING:
    from collections.abc import Mapping


class WaitReason(StrEnum):
    """Reason why a queued execution waits (rest-133)."""

    WAVE = "wave"
    RATE = "rate"
    GATEWAY_BUSY = "gateway-busy"
    GATEWAY_OFFLINE = "gateway-offline"
    DEVICE_OFFLINE = "device-offline"
    WINDOW = "window"
    BATTERY = "battery"
    PAUSED = "paused"
    BACK_OFF = "back-off"
    EARLIER_JOB = "earlier-job"


class JobSnapshot(NamedTuple):
    """Data of a job that determines what its executions wait for."""

    state: JobState
    wave: int
    """Index of the last wave that has started, from 0."""
    start_at: int | None
    """Start time of the job as Unix time in milliseconds; None if the job has no start time."""
    heartbeats: int
    """Number of good heartbeats in a row that confirm an update."""
    is_staging: bool
    """Whether devices keep the staged image, because no user has applied the job yet."""


class ExecutionSnapshot(NamedTuple):
    """Data of an execution that determines what the execution waits for."""

    state: ExecutionState
    wave: int
    waiting: str | None
    due: int
    """Monotonic time in milliseconds at which the execution is checked next."""
    beats: int
    """Number of good heartbeats in a row since the new version was installed."""
    is_read: bool
    """Whether the new version was read from the device."""
    reason: str | None = None
    """Last error of the execution as a sentence; None if there was no error."""
    step: str | None = None
    until: int | None = None
    """Next deadline as monotonic time in milliseconds; None if there is none or timers are suspended."""


WAIT_TEXTS: Final[Mapping[WaitReason, str]] = {
    WaitReason.WAVE: "its wave has not started",
    WaitReason.RATE: "it is waiting for its turn",
    WaitReason.GATEWAY_BUSY: "its gateway is busy with other updates",
    WaitReason.GATEWAY_OFFLINE: "its gateway is not connected",
    WaitReason.DEVICE_OFFLINE: "the device is not connected",
    WaitReason.WINDOW: "the job has not started",
    WaitReason.BATTERY: "its battery is too low; next attempt",
    WaitReason.PAUSED: "the job is paused",
    WaitReason.BACK_OFF: "next attempt",
    WaitReason.EARLIER_JOB: "another job is updating the device",
}
"""Sentence for users about each reason why a queued execution waits."""

_BY_KEYWORD: Final[Mapping[str | None, WaitReason]] = {str(each): each for each in WaitReason}

_ACTIVE_TEXTS: Final[Mapping[ExecutionState, str]] = {
    ExecutionState.DISPATCHED: "waiting for confirmation that the update has started",
    ExecutionState.TRANSFERRING: "the image is being transferred",
    ExecutionState.VERIFYING: "the image has arrived and is being checked",
    ExecutionState.STAGED: "the image is staged; the device is about to start it",
    ExecutionState.APPLYING: "the device is starting the new version",
}

_STEP_TEXTS: Final[Mapping[str | None, str]] = {
    UpdateStep.UNSENT: "the start command could not be sent yet",
    UpdateStep.CHECK_REPORTED: "its version is being read: it reports that it already runs the new one",
}
"""Sentences about executions in state DISPATCHED, by step. For other steps see `_ACTIVE_TEXTS`."""

_HOLD_TEXTS: Final[Mapping[str | None, str]] = {
    WAIT_CANCELING: "the update is being canceled, if that is still possible",
    WAIT_GATEWAY_OFFLINE: (
        f"{WAIT_GATEWAY_OFFLINE}: its gateway is not connected; the timers of the update are suspended"
    ),
}

_STAGED_TEXT: Final = "the image is staged; the device keeps it until the job is applied"


def describe_wait(job: JobSnapshot, execution: ExecutionSnapshot) -> str | None:
    """Return what an execution waits for, including its last error; None if the execution has ended."""
    wait = _describe_current_wait(job, execution)
    if wait is None or execution.reason is None:
        return wait
    if execution.state is ExecutionState.CONFIRMING:
        return f"{wait}; {execution.reason}"
    return f"{wait}; last error: {execution.reason}"


def _describe_current_wait(job: JobSnapshot, execution: ExecutionSnapshot) -> str | None:
    """Return what an execution waits for, without its last error; None if the execution has ended."""
    if execution.state is ExecutionState.QUEUED:
        reason = find_wait_reason(job, execution)
        return f"{reason}: {_describe_queued(reason, job, execution)}"
    if execution.state in ACTIVE_STATES and execution.waiting in _HOLD_TEXTS:
        return _HOLD_TEXTS[execution.waiting]
    if execution.state is ExecutionState.DISPATCHED and execution.step in _STEP_TEXTS:
        return _STEP_TEXTS[execution.step]
    if execution.state is ExecutionState.CONFIRMING:
        return _describe_confirming(job, execution) + _describe_deadline(execution)
    if execution.state is ExecutionState.STAGED and job.is_staging:
        return _STAGED_TEXT
    return _ACTIVE_TEXTS.get(execution.state)


def find_wait_reason(job: JobSnapshot, execution: ExecutionSnapshot) -> WaitReason:
    """Return why a queued execution waits. A reason that holds for its whole job takes precedence."""
    if job.state in {JobState.PAUSED, JobState.CANCELING}:
        return WaitReason.PAUSED
    if job.state is not JobState.IN_PROGRESS:
        return WaitReason.WINDOW
    if execution.wave > job.wave:
        return WaitReason.WAVE
    return _BY_KEYWORD.get(execution.waiting, WaitReason.RATE)


def _describe_queued(reason: WaitReason, job: JobSnapshot, execution: ExecutionSnapshot) -> str:
    """Return why a queued execution waits, as a sentence for users."""
    if reason is WaitReason.WINDOW and job.state is JobState.CREATED:
        return "the job has not been started; apply it to start it"
    if reason is WaitReason.WINDOW and job.start_at is not None:
        return f"the job starts at {format_millis(job.start_at)}"
    if reason is WaitReason.PAUSED and job.state is JobState.CANCELING:
        return "the job is being canceled"
    if reason in {WaitReason.BACK_OFF, WaitReason.BATTERY}:
        return f"{WAIT_TEXTS[reason]} at {format_millis(monotonic.to_wall_time(execution.due))}"
    return WAIT_TEXTS[reason]


def _describe_confirming(job: JobSnapshot, execution: ExecutionSnapshot) -> str:
    """Return what the confirmation of an update waits for, as a sentence for users."""
    if execution.beats < job.heartbeats:
        return f"{execution.beats} of {job.heartbeats} good heartbeats received"
    return "its health is being checked" if execution.is_read else "its new version is being read"


def _describe_deadline(execution: ExecutionSnapshot) -> str:
    """Return the deadline of an execution as the end of a sentence; "" if there is none."""
    if execution.until is None:
        return ""
    return f", deadline {format_millis(monotonic.to_wall_time(execution.until))}"
