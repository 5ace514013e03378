"""What an execution waits for, in one sentence for people that begins with a word for programs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.service.clock import steady
from meshfleet.service.jobs.update.ending import CANCELING
from meshfleet.service.jobs.update.model import Step
from meshfleet.service.jobs.update.outages import OFFLINE
from meshfleet.service.jobs.update.states import ACTIVE
from meshfleet.wire.rest import ExecutionState, JobState
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Mapping


class Waiting(StrEnum):
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


class JobNow(NamedTuple):
    """As much of a job as its executions wait for."""

    state: JobState
    wave: int
    start_at: int | None
    heartbeats: int
    is_staging: bool
    """Whether devices keep the image until the job is applied, which it is not."""


class Waiter(NamedTuple):
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


_QUEUED: Final[Mapping[Waiting, str]] = {
    Waiting.WAVE: "its wave has not begun",
    Waiting.RATE: "its turn has not come",
    Waiting.GATEWAY_BUSY: "its gateway is busy with other updates",
    Waiting.GATEWAY_OFFLINE: "its gateway is not connected",
    Waiting.DEVICE_OFFLINE: "it is not connected",
    Waiting.WINDOW: "the time to begin has not come",
    Waiting.BATTERY: "its battery is too low, and it is tried again",
    Waiting.PAUSED: "the job is paused",
    Waiting.BACK_OFF: "it is tried again",
    Waiting.EARLIER_JOB: "another job updates it",
}

_BY_WORD: Final[Mapping[str | None, Waiting]] = {str(each): each for each in Waiting}

_ACTIVE: Final[Mapping[ExecutionState, str]] = {
    ExecutionState.DISPATCHED: "it is to begin, and has not shown that it did",
    ExecutionState.TRANSFERRING: "the image is being transferred",
    ExecutionState.VERIFYING: "the image has arrived and is being checked",
    ExecutionState.STAGED: "the image is ready, and the device is about to start it",
    ExecutionState.APPLYING: "the device starts the new version",
}

_BY_STEP: Final[Mapping[str | None, str]] = {
    Step.UNSENT: "its first command could not be sent yet",
    Step.CHECK: "its version is being read: it reports that it runs the new one already",
}
"""What an update waits for that was dispatched and has not begun."""
_HELD_UP: Final[Mapping[str | None, str]] = {
    CANCELING: "it is being taken back, if that is still possible",
    OFFLINE: f"{OFFLINE}: its gateway is not connected, and the clocks of the update stand still",
}

_STAGED: Final = "the image is ready, and the device keeps it until somebody installs it"


def waiting_for(job: JobNow, execution: Waiter) -> str | None:
    """What an execution waits for; None: it is over."""
    said = _said(job, execution)
    if said is None or execution.reason is None:
        return said
    if execution.state is ExecutionState.CONFIRMING:
        return f"{said}; {execution.reason}"
    return f"{said}; at the last try: {execution.reason}"


def _said(job: JobNow, execution: Waiter) -> str | None:
    """The same without what went wrong before."""
    if execution.state is ExecutionState.QUEUED:
        word = waiting(job, execution)
        return f"{word}: {_queued(word, job, execution)}"
    if execution.state in ACTIVE and execution.waiting in _HELD_UP:
        return _HELD_UP[execution.waiting]
    if execution.state is ExecutionState.DISPATCHED and execution.step in _BY_STEP:
        return _BY_STEP[execution.step]
    if execution.state is ExecutionState.CONFIRMING:
        return _confirming(job, execution) + _until(execution)
    if execution.state is ExecutionState.STAGED and job.is_staging:
        return _STAGED
    return _ACTIVE.get(execution.state)


def waiting(job: JobNow, execution: Waiter) -> Waiting:
    """What a queued execution waits for: what keeps back the whole job comes first."""
    if job.state in {JobState.PAUSED, JobState.CANCELING}:
        return Waiting.PAUSED
    if job.state is not JobState.IN_PROGRESS:
        return Waiting.WINDOW
    if execution.wave > job.wave:
        return Waiting.WAVE
    return _BY_WORD.get(execution.waiting, Waiting.RATE)


def _queued(word: Waiting, job: JobNow, execution: Waiter) -> str:
    if word is Waiting.WINDOW and job.state is JobState.CREATED:
        return "the job waits until somebody starts it"
    if word is Waiting.WINDOW and job.start_at is not None:
        return f"the job begins at {write_millis(job.start_at)}"
    if word is Waiting.PAUSED and job.state is JobState.CANCELING:
        return "the job is being canceled"
    if word in {Waiting.BACK_OFF, Waiting.BATTERY}:
        return f"{_QUEUED[word]} at {write_millis(steady.on_the_wall(execution.due))}"
    return _QUEUED[word]


def _confirming(job: JobNow, execution: Waiter) -> str:
    if execution.beats < job.heartbeats:
        return f"{job.heartbeats} good heartbeats are awaited, and {execution.beats} came"
    return "its health is being judged" if execution.is_read else "its new version is being read back"


def _until(execution: Waiter) -> str:
    if execution.until is None:
        return ""
    return f", until {write_millis(steady.on_the_wall(execution.until))}"
