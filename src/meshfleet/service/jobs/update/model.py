"""An execution and what it is to do: plain values, as the engine knows them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from meshfleet.wire.ids import ModelNumber, Version  # msgspec reads them
from meshfleet.wire.products import Way  # msgspec reads it
from meshfleet.wire.rest import ExecutionState, StopCause  # msgspec reads them

if TYPE_CHECKING:
    from meshfleet.wire.codes import Operation


class Step(StrEnum):
    """What a request of a job is for."""

    LOOK = "look"
    """Read the version before another attempt: the one before may have done it."""
    CHECK = "check"
    """Read the version of a device that reports the target version, before it is skipped."""
    MODE = "mode"
    """Send the device into DFU mode."""
    START = "start"
    STATE = "state"
    FOREIGN = "foreign"
    """Nothing is asked: device or gateway are busy with what is not ours, and must not be disturbed."""
    UNSENT = "unsent"
    """Nothing is asked: the command that begins the update never left in this attempt."""
    OWN_STATE = "own-state"
    """In a broadcast: what one device tells, not the gateway for all."""
    APPLY = "apply"
    ABORT = "abort"
    VERSION = "version"
    PARTING = "parting"
    """Abort what we wait for no longer. Whatever the answer is, it moves nothing."""


FIRST: Final = frozenset({Step.START, Step.MODE})
"""The commands with which an update begins."""


class Ask(NamedTuple):
    """A request to be sent."""

    step: Step
    at_gateway: bool
    """Whether it is the gateway that is asked, not the device."""
    operation: Operation
    identifier: str
    value: Any = None


def to_device(step: Step, operation: Operation, identifier: str, value: Any = None) -> Ask:
    """A request to the device itself."""
    return Ask(step, at_gateway=False, operation=operation, identifier=identifier, value=value)


def to_gateway(step: Step, operation: Operation, identifier: str, value: Any = None) -> Ask:
    """A request to its gateway."""
    return Ask(step, at_gateway=True, operation=operation, identifier=identifier, value=value)


class Order(Struct, frozen=True, kw_only=True):
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
    transferring: int = 0
    """How many devices of the job get the image at this moment."""
    heartbeats: int
    retries: int
    backoff: int
    queue: int
    step: int
    total: int | None


class Scene(Struct, frozen=True, kw_only=True):
    """An order, and what is known of one device at this moment."""

    order: Order
    gateway: int
    """Through which it is reached now."""
    rate: float
    """Bytes per second that its gateway is known to bring."""
    rhythm: int | None
    """Milliseconds that usually pass between two of its heartbeats; None: not known."""
    status: int | None = None
    """Of its last heartbeat."""
    beat_at: int | None = None
    """When that was, by the clock of whoever reported it."""
    batch: tuple[int, ...] = ()
    """In a broadcast: those who are as far as this one, and so have to be told and asked the same."""
    is_assembled: bool = True
    """In a broadcast: whether nobody who is to take part has still to tell its version."""

    def leads(self, device: int) -> bool:
        """Whether it is this device on behalf of which the gateway is told and asked: one does for all."""
        return not self.batch or self.batch[0] == device


class Execution(Struct, frozen=True, kw_only=True):
    """A row of `execution`; see there."""

    job: int
    device: int
    state: ExecutionState
    wave: int
    due: int
    attempt: int
    method: Way
    gateway: int | None
    from_version: str | None
    progress: int = 0
    waiting: str | None = None
    code: str | None = None
    reason: str | None = None
    step: Step | None = None
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


class Move(NamedTuple):
    """What becomes of an execution."""

    execution: Execution
    cause: str = ""
    """Why its state is another, in a sentence."""
    ask: Ask | None = None
    parting: Ask | None = None
    """What is sent besides, as a last word."""
    is_evidence: bool = False
    """Whether what caused it is kept even if the state is the same."""
