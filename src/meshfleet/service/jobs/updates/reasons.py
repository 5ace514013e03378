"""Why an update did not succeed: codes for programs, sentences for people, and what is tried again."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from meshfleet.protocol.codes import Status, UpdateErrorCode
from meshfleet.rest import StopCause

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReasonCode(StrEnum):
    """Stable words."""

    NO_IMAGE = "NO_IMAGE"
    WRONG_MODEL = "WRONG_MODEL"
    BAD_HASH = "BAD_HASH"
    DOWNGRADE = "DOWNGRADE"
    BATTERY = "BATTERY"
    ABORTED = "ABORTED"
    TRANSFER_LOST = "TRANSFER_LOST"
    ROLLED_BACK = "ROLLED_BACK"
    OVERRIDDEN = "OVERRIDDEN"
    """The device, or its gateway, is busy with another image."""
    REFUSED = "REFUSED"
    NOT_STARTED = "NOT_STARTED"
    STALLED = "STALLED"
    TOO_LONG = "TOO_LONG"
    NOT_APPLIED = "NOT_APPLIED"
    NOT_STAGED = "NOT_STAGED"
    """Nobody applied what was staged."""
    WRONG_VERSION = "WRONG_VERSION"
    NOT_CONFIRMED = "NOT_CONFIRMED"
    NEVER_BEGUN = "NEVER_BEGUN"
    """It waited in the queue for too long."""
    MISREPORTED = "MISREPORTED"
    """Its reports name the target version, and it runs another."""
    CANCELED = "CANCELED"
    NEWER_JOB = "NEWER_JOB"
    """That job has taken the device over."""
    REMOVED = "REMOVED"
    DEFECT = "DEFECT"
    """Of ours."""


RETRYABLE_CODES: Final = frozenset(
    {
        ReasonCode.NO_IMAGE,
        ReasonCode.BAD_HASH,
        ReasonCode.BATTERY,
        ReasonCode.ABORTED,
        ReasonCode.TRANSFER_LOST,
        ReasonCode.OVERRIDDEN,
        ReasonCode.NOT_STARTED,
        ReasonCode.STALLED,
    }
)
"""What may go better another time. A device that did not do well with the new version is not among them."""

UNCERTAIN_CODES: Final = frozenset(
    {ReasonCode.NOT_STARTED, ReasonCode.STALLED, ReasonCode.TRANSFER_LOST, ReasonCode.OVERRIDDEN}
)
"""After these nobody knows what the device has done since: it may run the new version."""

REJECTION_CODES: Final = frozenset({ReasonCode.WRONG_MODEL, ReasonCode.DOWNGRADE, ReasonCode.REFUSED})
"""What would be refused again."""

ERROR_REASONS: Final[Mapping[int, tuple[ReasonCode, str]]] = {
    UpdateErrorCode.NO_IMAGE: (ReasonCode.NO_IMAGE, "the gateway could not get the image"),
    UpdateErrorCode.WRONG_MODEL: (
        ReasonCode.WRONG_MODEL,
        "the device says that the image is for another model",
    ),
    UpdateErrorCode.BAD_HASH: (
        ReasonCode.BAD_HASH,
        "what arrived at the device is not the image that was sent",
    ),
    UpdateErrorCode.DOWNGRADE: (ReasonCode.DOWNGRADE, "the device does not take an older version"),
    UpdateErrorCode.BATTERY: (ReasonCode.BATTERY, "the battery of the device is too low"),
    UpdateErrorCode.ABORTED: (ReasonCode.ABORTED, "somebody else aborted the update"),
    UpdateErrorCode.TRANSFER_LOST: (ReasonCode.TRANSFER_LOST, "the transfer broke off at {percent} %"),
    UpdateErrorCode.ROLLED_BACK: (
        ReasonCode.ROLLED_BACK,
        "the new version did not start, the device went back",
    ),
}
"""What devices tell (firmware-6)."""

STATUS_TEXTS: Final[Mapping[int, str]] = {
    Status.FAILED: "it failed",
    Status.INVALID_REQUEST: "the request is not valid",
    Status.UNKNOWN_OPERATION: "the gateway does not know the operation",
    Status.UNKNOWN_IDENTIFIER: "the device has no such property",
    Status.NOT_SUPPORTED: "it is not possible on this device",
    Status.INVALID_VALUE: "the value is not valid",
    Status.ACCESS_NOT_ALLOWED: "the property cannot be written",
    Status.BUSY: "it is busy",
    Status.TIMEOUT: "the device did not answer its gateway",
    Status.UNREACHABLE: "the gateway has no route to the device",
    Status.ACCESS_DENIED: "access was denied",
}


STOP_CAUSE_TEXTS: Final[Mapping[StopCause, str]] = {
    StopCause.USER: "the job was canceled",
    StopCause.ABORT_CRITERIA: "too many updates of the job failed",
    StopCause.RELEASE_WITHDRAWN: "the firmware was withdrawn",
    StopCause.DEADLINE: "the deadline of the job has passed",
}
"""Why a job that is being canceled ends its executions."""

STOPPED_TEXT: Final = "the job was canceled, and the update was stopped"
"""Of one that was taken back in time."""


def describe_status(status: int) -> str:
    """What a status says, in words."""
    return STATUS_TEXTS.get(status, f"it answered with status {status}")


def describe_heartbeat(status: int) -> str:
    """Name a heartbeat whose status is not good."""
    return f"a heartbeat came with status {status}"


def describe_unreadable_response(status: int) -> str:
    """Why an answer tells nothing."""
    return describe_status(status) if status else "what it answered cannot be read"


def describe_error(error: int, percent: int) -> tuple[ReasonCode, str]:
    """What an error of an update says."""
    code, words = ERROR_REASONS.get(error, (ReasonCode.TRANSFER_LOST, f"the device tells error {error}"))
    return code, words.format(percent=percent)
