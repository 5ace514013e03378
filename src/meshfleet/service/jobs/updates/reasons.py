"""Reasons why updates fail or end early: codes for programs, sentences for users, retryable reasons."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.protocol.codes import Status, UpdateErrorCode
from meshfleet.rest.jobs import StopCause

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReasonCode(StrEnum):
    """Code of the reason why an update failed, ended early or is retried. REST clients rely on the codes."""

    NO_IMAGE = "NO_IMAGE"
    WRONG_MODEL = "WRONG_MODEL"
    BAD_HASH = "BAD_HASH"
    DOWNGRADE = "DOWNGRADE"
    BATTERY = "BATTERY"
    ABORTED = "ABORTED"
    TRANSFER_LOST = "TRANSFER_LOST"
    ROLLED_BACK = "ROLLED_BACK"
    OVERRIDDEN = "OVERRIDDEN"
    """Another update replaced the update of this job on the device or its gateway."""
    REFUSED = "REFUSED"
    NOT_STARTED = "NOT_STARTED"
    STALLED = "STALLED"
    TOO_LONG = "TOO_LONG"
    NOT_APPLIED = "NOT_APPLIED"
    NOT_STAGED = "NOT_STAGED"
    """The staged image was not applied in time."""
    WRONG_VERSION = "WRONG_VERSION"
    NOT_CONFIRMED = "NOT_CONFIRMED"
    NEVER_BEGUN = "NEVER_BEGUN"
    """The execution waited in the queue until the queue timeout."""
    MISREPORTED = "MISREPORTED"
    """The device reports the target version, but runs another version."""
    CANCELED = "CANCELED"
    NEWER_JOB = "NEWER_JOB"
    """A newer job took over the device."""
    REMOVED = "REMOVED"
    DEFECT = "DEFECT"
    """Internal error of the service."""


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
"""Codes of failures after which another attempt may succeed, unlike problems of the new version itself."""

UNCERTAIN_CODES: Final = frozenset(
    {ReasonCode.NOT_STARTED, ReasonCode.STALLED, ReasonCode.TRANSFER_LOST, ReasonCode.OVERRIDDEN}
)
"""Codes of failures after which the device may run the new version nevertheless."""

REJECTION_CODES: Final = frozenset({ReasonCode.WRONG_MODEL, ReasonCode.DOWNGRADE, ReasonCode.REFUSED})
"""Codes of failures that would occur in every attempt, and therefore end the execution as REJECTED."""


class UpdateFailure(NamedTuple):
    """Why an update failed: reason code for programs, and sentence for users."""

    code: ReasonCode
    text: str


_FAILURES: Final[Mapping[int, UpdateFailure]] = {
    UpdateErrorCode.NO_IMAGE: UpdateFailure(ReasonCode.NO_IMAGE, "the gateway could not download the image"),
    UpdateErrorCode.WRONG_MODEL: UpdateFailure(
        ReasonCode.WRONG_MODEL,
        "the device reports that the image is for another model",
    ),
    UpdateErrorCode.BAD_HASH: UpdateFailure(
        ReasonCode.BAD_HASH,
        "the image that the device received is damaged: wrong hash",
    ),
    UpdateErrorCode.DOWNGRADE: UpdateFailure(
        ReasonCode.DOWNGRADE, "the device does not accept an older version"
    ),
    UpdateErrorCode.BATTERY: UpdateFailure(ReasonCode.BATTERY, "the battery of the device is too low"),
    UpdateErrorCode.ABORTED: UpdateFailure(ReasonCode.ABORTED, "the update was aborted, but not by this job"),
    UpdateErrorCode.TRANSFER_LOST: UpdateFailure(
        ReasonCode.TRANSFER_LOST, "the transfer was interrupted at {percent} %"
    ),
    UpdateErrorCode.ROLLED_BACK: UpdateFailure(
        ReasonCode.ROLLED_BACK,
        "the new version did not start; the device went back to the old one",
    ),
}
"""Failure for each update error code that a device can report (firmware-6)."""

STATUS_TEXTS: Final[Mapping[int, str]] = {
    Status.FAILED: "the request failed",
    Status.INVALID_REQUEST: "the request is invalid",
    Status.UNKNOWN_OPERATION: "the gateway does not know the operation",
    Status.UNKNOWN_IDENTIFIER: "the device has no such property",
    Status.NOT_SUPPORTED: "the device does not support the request",
    Status.INVALID_VALUE: "the value is invalid",
    Status.ACCESS_NOT_ALLOWED: "the property cannot be written",
    Status.BUSY: "the device or gateway is busy",
    Status.TIMEOUT: "the device did not respond to its gateway",
    Status.UNREACHABLE: "the gateway has no route to the device",
    Status.ACCESS_DENIED: "access was denied",
}


STOP_CAUSE_TEXTS: Final[Mapping[StopCause, str]] = {
    StopCause.USER: "the job was canceled",
    StopCause.ABORT_CRITERIA: "too many updates of the job failed",
    StopCause.RELEASE_WITHDRAWN: "the firmware was withdrawn",
    StopCause.DEADLINE: "the deadline of the job has passed",
}
"""Reason of executions that end because their job is being canceled, by the cause of the cancellation."""

STOPPED_TEXT: Final = "the job was canceled, and the update was stopped"
"""Reason of an execution whose update was aborted after its job was canceled."""


def describe_status(status: int) -> str:
    """Return a sentence for users about the status of a response."""
    return STATUS_TEXTS.get(status, f"the response has status {status}")


def describe_bad_heartbeat(status: int) -> str:
    """Return a sentence for users about a heartbeat with a bad status."""
    return f"a heartbeat reported status {status}"


def describe_unreadable_response(status: int) -> str:
    """Return a sentence for users that tells why a response has no usable value."""
    return describe_status(status) if status else "the response could not be decoded"


def describe_error(error: int, percent: int) -> UpdateFailure:
    """Return the failure for an error code that a device reported at `percent` % of the transfer."""
    unknown = UpdateFailure(ReasonCode.TRANSFER_LOST, f"the device reports error {error}")
    failure = _FAILURES.get(error, unknown)
    return failure._replace(text=failure.text.format(percent=percent))
