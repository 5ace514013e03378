"""What an execution waits for, in one sentence for people that begins with a word for programs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.protocol.times import format_millis
from meshfleet.rest import ExecutionState, JobState
from meshfleet.service.clock import steady
from meshfleet.service.jobs.updates.decisions import WAIT_CANCELING
from meshfleet.service.jobs.updates.gateway_outages import WAIT_GATEWAY_OFFLINE
from meshfleet.service.jobs.updates.model import UpdateStep
from meshfleet.service.jobs.updates.states import ACTIVE_STATES

if TYPE_CHECKING:
    from collections.abc import Mapping


class WaitReason(StrEnum):
    """What a queued execution can wait for (rest-133)."""

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
    """As much of a job as its executions wait for."""

    state: JobState
    wave: int
    start_at: int | None
    heartbeats: int
    is_staging: bool
    """Whether devices keep the image until the job is applied, which it is not."""


class ExecutionSnapshot(NamedTuple):
    """As much of an execution as tells what it waits for."""

    state: ExecutionState
    wave: int
    waiting: str | None
    due: int
    beats: int
    is_read: bool
    reason: str | None = None
    """Why the last try did not come through."""
    step: str | None = None
    until: int | None = None
    """When its clock runs out; None: it stands still."""


_QUEUED_TEXTS: Final[Mapping[WaitReason, str]] = {
    WaitReason.WAVE: "its wave has not begun",
    WaitReason.RATE: "its turn has not come",
    WaitReason.GATEWAY_BUSY: "its gateway is busy with other updates",
    WaitReason.GATEWAY_OFFLINE: "its gateway is not connected",
    WaitReason.DEVICE_OFFLINE: "it is not connected",
    WaitReason.WINDOW: "the time to begin has not come",
    WaitReason.BATTERY: "its battery is too low, and it is tried again",
    WaitReason.PAUSED: "the job is paused",
    WaitReason.BACK_OFF: "it is tried again",
    WaitReason.EARLIER_JOB: "another job updates it",
}

_BY_WORD: Final[Mapping[str | None, WaitReason]] = {str(each): each for each in WaitReason}

_ACTIVE_TEXTS: Final[Mapping[ExecutionState, str]] = {
    ExecutionState.DISPATCHED: "it is to begin, and has not shown that it did",
    ExecutionState.TRANSFERRING: "the image is being transferred",
    ExecutionState.VERIFYING: "the image has arrived and is being checked",
    ExecutionState.STAGED: "the image is ready, and the device is about to start it",
    ExecutionState.APPLYING: "the device starts the new version",
}

_STEP_TEXTS: Final[Mapping[str | None, str]] = {
    UpdateStep.UNSENT: "its first command could not be sent yet",
    UpdateStep.CHECK_REPORTED: "its version is being read: it reports that it runs the new one already",
}
"""What an update waits for that was dispatched and has not begun."""
_HOLD_TEXTS: Final[Mapping[str | None, str]] = {
    WAIT_CANCELING: "it is being taken back, if that is still possible",
    WAIT_GATEWAY_OFFLINE: (
        f"{WAIT_GATEWAY_OFFLINE}: its gateway is not connected, and the clocks of the update stand still"
    ),
}

_STAGED_TEXT: Final = "the image is ready, and the device keeps it until somebody installs it"


def describe_wait(job: JobSnapshot, execution: ExecutionSnapshot) -> str | None:
    """What an execution waits for; None: it is over."""
    said = _describe_current_wait(job, execution)
    if said is None or execution.reason is None:
        return said
    if execution.state is ExecutionState.CONFIRMING:
        return f"{said}; {execution.reason}"
    return f"{said}; at the last try: {execution.reason}"


def _describe_current_wait(job: JobSnapshot, execution: ExecutionSnapshot) -> str | None:
    """The same without what went wrong before."""
    if execution.state is ExecutionState.QUEUED:
        word = find_wait_reason(job, execution)
        return f"{word}: {_describe_queued(word, job, execution)}"
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
    """What a queued execution waits for: what keeps back the whole job comes first."""
    if job.state in {JobState.PAUSED, JobState.CANCELING}:
        return WaitReason.PAUSED
    if job.state is not JobState.IN_PROGRESS:
        return WaitReason.WINDOW
    if execution.wave > job.wave:
        return WaitReason.WAVE
    return _BY_WORD.get(execution.waiting, WaitReason.RATE)


def _describe_queued(word: WaitReason, job: JobSnapshot, execution: ExecutionSnapshot) -> str:
    if word is WaitReason.WINDOW and job.state is JobState.CREATED:
        return "the job waits until somebody starts it"
    if word is WaitReason.WINDOW and job.start_at is not None:
        return f"the job begins at {format_millis(job.start_at)}"
    if word is WaitReason.PAUSED and job.state is JobState.CANCELING:
        return "the job is being canceled"
    if word in {WaitReason.BACK_OFF, WaitReason.BATTERY}:
        return f"{_QUEUED_TEXTS[word]} at {format_millis(steady.to_wall_time(execution.due))}"
    return _QUEUED_TEXTS[word]


def _describe_confirming(job: JobSnapshot, execution: ExecutionSnapshot) -> str:
    if execution.beats < job.heartbeats:
        return f"{job.heartbeats} good heartbeats are awaited, and {execution.beats} came"
    return "its health is being judged" if execution.is_read else "its new version is being read back"


def _describe_deadline(execution: ExecutionSnapshot) -> str:
    if execution.until is None:
        return ""
    return f", until {format_millis(steady.to_wall_time(execution.until))}"
