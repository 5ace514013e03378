"""Confirmation of an update: the device must run the new version and send good heartbeats (firmware-34).

The version is read after the first heartbeat, so that a failed update is noticed early. The version is read
again after the last required heartbeat, because the device may have gone back to the old version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from meshfleet.protocol.codes import Status
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.updates import timeouts
from meshfleet.service.jobs.updates.decisions import end_execution, fail_execution, issue_request, wait_until
from meshfleet.service.jobs.updates.drivers import build_version_query, parse_version
from meshfleet.service.jobs.updates.model import Decision, UpdateStep
from meshfleet.service.jobs.updates.reasons import (
    ReasonCode,
    describe_bad_heartbeat,
    describe_unreadable_response,
)

if TYPE_CHECKING:
    from meshfleet.service.jobs.updates.model import ExecutionRecord, HeartbeatReceived, UpdateContext


def handle_heartbeat(
    execution: ExecutionRecord, event: HeartbeatReceived, context: UpdateContext, now: int
) -> Decision:
    """Count a heartbeat of an updated device, and read the version of the device if necessary.

    A good heartbeat has status 0, no status, or the same status as before the update. A bad heartbeat sets
    the number of good heartbeats back to 0.
    """
    # Another process may have counted this heartbeat.
    if execution.beat_at is not None and event.at <= execution.beat_at:
        return Decision(execution)
    fault = _find_heartbeat_fault(execution, event.status)
    execution = replace(
        _shorten_confirmation_deadline(execution, context),
        beat_at=event.at,
        beats=0 if fault else execution.beats + 1,
        reason=fault or execution.reason,
    )
    # The last version query has just failed.
    is_retry_pending = execution.step is UpdateStep.CONFIRM_VERSION and now < execution.due
    if (
        execution.pending_request is None
        and not is_retry_pending
        and (not execution.is_read or execution.beats >= context.spec.heartbeats)
    ):
        decision = issue_request(execution, build_version_query(UpdateStep.CONFIRM_VERSION), now)
    else:
        decision = wait_until(execution, execution.due)
    # Surplus heartbeats are no evidence: a device may send many before its version can be read.
    return decision._replace(is_evidence=execution.beats <= context.spec.heartbeats)


def _find_heartbeat_fault(execution: ExecutionRecord, status: int | None) -> str | None:
    """Return why a heartbeat is bad; None if its status is 0, missing, or as before the update."""
    return None if status in (None, 0, execution.status_before) else describe_bad_heartbeat(status)


def _shorten_confirmation_deadline(execution: ExecutionRecord, context: UpdateContext) -> ExecutionRecord:
    """Shorten the confirmation deadline to the timeout for the current heartbeat interval."""
    if execution.expires is None or execution.moved_at is None:
        return execution
    return replace(
        execution,
        expires=min(execution.expires, execution.moved_at + timeouts.compute_confirm_timeout(context)),
    )


def handle_version_response(
    execution: ExecutionRecord, status: int, value: Any, context: UpdateContext, now: int
) -> Decision:
    """Handle the response to a version query: succeed, fail, retry, or wait for more heartbeats."""
    version = parse_version(value) if status == Status.OK else None
    if version is None:
        return wait_until(
            replace(execution, reason=describe_unreadable_response(status)), now + timeouts.RETRY_DELAY
        )
    if version != context.spec.version:
        cause = f"the device runs {version} after the update, not {context.spec.version}"
        return fail_execution(execution, ReasonCode.WRONG_VERSION, cause, context, now)
    execution = replace(execution, is_read=True, reason=_find_heartbeat_fault(execution, context.status))
    if execution.beats >= context.spec.heartbeats:
        return end_execution(
            execution, ExecutionState.SUCCEEDED, f"the device runs {version} and is healthy", now
        )
    return wait_until(replace(execution, step=None), now + timeouts.LOST_REQUEST_TIMEOUT)._replace(
        is_evidence=True
    )


def continue_confirmation(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Continue the confirmation when its timer is due.

    Read the version if the last version query failed, or if no heartbeats are required. Otherwise wait for a
    heartbeat.
    """
    if execution.step is UpdateStep.CONFIRM_VERSION or not context.spec.heartbeats:
        return issue_request(execution, build_version_query(UpdateStep.CONFIRM_VERSION), now)
    return wait_until(execution, now + timeouts.LOST_REQUEST_TIMEOUT)


def describe_missing_confirmation(execution: ExecutionRecord, context: UpdateContext) -> str:
    """Return a sentence for users that tells why an update is not confirmed."""
    if not execution.is_read:
        cause = "the device did not confirm the new version"
        return (
            f"{cause}: {execution.reason}"
            if execution.reason
            else f"{cause}: nothing was received from it after the update"
        )
    cause = f"only {execution.beats} of {context.spec.heartbeats} good heartbeats were received in time"
    return f"{cause}: {execution.reason}" if execution.reason else cause
