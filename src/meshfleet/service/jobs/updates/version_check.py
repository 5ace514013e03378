"""Version check of a device that already reports the target version (rest-219).

The report may be outdated or wrong, so the version is read from the device. A device that runs the target
version is skipped. If it runs another version, the execution returns to the queue, and the device is updated.
A device that does not respond in time is skipped, too: nothing contradicts its report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from meshfleet.protocol.codes import Status
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.compatibility import ExclusionCode
from meshfleet.service.jobs.updates import model, timeouts
from meshfleet.service.jobs.updates.decisions import end_execution, issue_request, wait_until
from meshfleet.service.jobs.updates.drivers import build_version_query, parse_version
from meshfleet.service.jobs.updates.model import Decision, UpdateStep
from meshfleet.service.jobs.updates.reasons import ReasonCode, describe_unreadable_response

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Version
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext


def start_version_check(execution: ExecutionRecord, now: int) -> Decision:
    """Start the version check: read the version of a device that reports the target version."""
    execution = replace(
        execution, expires=now + timeouts.VERSION_CHECK_TIMEOUT, code=str(ExclusionCode.ALREADY_THERE)
    )
    return issue_request(
        execution,
        build_version_query(UpdateStep.CHECK_REPORTED),
        now,
        "the version is read first: the device reports that it already runs it",
    )


def is_version_check(execution: ExecutionRecord) -> bool:
    """Return whether an execution is checking the version of a device that reports the target version."""
    return execution.state is ExecutionState.DISPATCHED and execution.step is UpdateStep.CHECK_REPORTED


def advance_version_check(
    execution: ExecutionRecord, event: model.UpdateEvent, context: UpdateContext, now: int
) -> Decision:
    """Handle an event during the version check: skip the device, queue its update, or query again."""
    match event:
        case model.ResponseReceived(_, status, value):
            return _handle_version_response(
                replace(execution, pending_request=None), status, value, context=context, now=now
            )
        case model.RequestNotSent() | model.RequestUnanswered():
            return _retry_check_later(
                replace(execution, pending_request=None, reason=event.reason), context, now
            )
        case model.TimerDue():
            return _handle_check_timer(replace(execution, pending_request=None), context, now)
        case _:
            return Decision(execution)


def skip_unreachable_device(execution: ExecutionRecord, target: Version, reason: str, now: int) -> Decision:
    """Skip a device that reports the target version, because its version could not be read."""
    return _skip_device(
        execution, f"the device already reports {target}; its version could not be read: {reason}", now
    )


def _handle_version_response(
    execution: ExecutionRecord, status: int, value: object, *, context: UpdateContext, now: int
) -> Decision:
    """Handle the version that was read: skip the device, queue its update, or read again later."""
    version = parse_version(value) if status == Status.OK else None
    target = context.spec.version
    if version is None:
        return _retry_check_later(
            replace(execution, reason=describe_unreadable_response(status)), context, now
        )
    execution = replace(execution, from_version=str(version))
    if version == target:
        return _skip_device(execution, f"the device already runs {target}, as read from it", now)
    if context.spec.is_canceling:
        return _cancel_check(execution, now)
    return _queue_for_update(execution, f"the device reports {target}, but runs {version}", context, now)


def _retry_check_later(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Read the version again later, or cancel the check if the job is being canceled."""
    if context.spec.is_canceling:
        return _cancel_check(execution, now)
    return wait_until(execution, now + timeouts.RETRY_DELAY)


def _handle_check_timer(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Read the version again. After the timeout skip the device; cancel the check with the job."""
    if context.spec.is_canceling:
        return _cancel_check(execution, now)
    if execution.expires is not None and now >= execution.expires:
        return skip_unreachable_device(
            execution, context.spec.version, execution.reason or "no response", now
        )
    return issue_request(execution, build_version_query(UpdateStep.CHECK_REPORTED), now)


def _queue_for_update(execution: ExecutionRecord, cause: str, context: UpdateContext, now: int) -> Decision:
    """Return an execution to the queue for an update, in the last wave if it belongs to no wave."""
    execution = replace(
        execution,
        state=ExecutionState.QUEUED,
        wave=context.spec.last_wave if execution.wave < 0 else execution.wave,
        code=ReasonCode.MISREPORTED,
        reason=cause,
        due=now,
        expires=None,
        total_until=None,
        step=None,
    )
    return Decision(execution, cause, is_evidence=True)


def _skip_device(execution: ExecutionRecord, cause: str, now: int) -> Decision:
    """End an execution as SKIPPED, because the device already runs the target version."""
    return end_execution(execution, ExecutionState.SKIPPED, cause, now, ExclusionCode.ALREADY_THERE)


def _cancel_check(execution: ExecutionRecord, now: int) -> Decision:
    """End an execution as CANCELED during the version check."""
    return end_execution(
        execution, ExecutionState.CANCELED, "canceled before the transfer started", now, ReasonCode.CANCELED
    )
