"""Decides how an execution continues after a progress report of its device or gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.protocol.codes import UpdateErrorCode, UpdateState
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.updates import reasons, states, timeouts
from meshfleet.service.jobs.updates.decisions import (
    WAIT_CANCELING,
    cancel_idle_execution,
    end_execution,
    enter_state,
    fail_execution,
    issue_request,
    may_apply_staged_image,
    wait_until,
)
from meshfleet.service.jobs.updates.drivers import APPLY_ACTION, build_device_control, build_version_query
from meshfleet.service.jobs.updates.model import UpdateStep
from meshfleet.service.jobs.updates.reasons import ReasonCode
from meshfleet.service.jobs.updates.start import resend_first_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.jobs.updates.drivers import ProgressReport
    from meshfleet.service.jobs.updates.model import Decision, ExecutionRecord, UpdateContext

_EXECUTION_STATES: Final[Mapping[UpdateState, ExecutionState]] = {
    UpdateState.FETCHING: ExecutionState.TRANSFERRING,
    UpdateState.TRANSFERRING: ExecutionState.TRANSFERRING,
    UpdateState.VERIFYING: ExecutionState.VERIFYING,
    UpdateState.STAGED: ExecutionState.STAGED,
    UpdateState.APPLYING: ExecutionState.APPLYING,
    UpdateState.DONE: ExecutionState.CONFIRMING,
}

_CAUSES: Final[Mapping[ExecutionState, str]] = {
    ExecutionState.TRANSFERRING: "the image is being transferred",
    ExecutionState.VERIFYING: "the image has arrived and is being checked",
    ExecutionState.STAGED: "the device has the image and waits for the command to start it",
    ExecutionState.APPLYING: "the device is starting the new version",
    ExecutionState.CONFIRMING: "the device reports that the update is done",
}

_ORDER: Final = tuple(_CAUSES)

_REST_STATES: Final = frozenset({UpdateState.IDLE, UpdateState.DONE, UpdateState.FAILED})
"""States that a device can report before an update starts: idle, or the result of an earlier update."""


def handle_progress(
    execution: ExecutionRecord,
    report: ProgressReport,
    context: UpdateContext,
    now: int,
    *,
    is_batch_response: bool,
) -> Decision:
    """Decide how an execution continues after a progress report of its device or gateway.

    The execution enters the reported state, waits, queries the state again, or fails. `is_batch_response`
    says that another device of the same broadcast sent the query.
    """
    if execution.state is ExecutionState.DISPATCHED:
        return _handle_start_progress(execution, report, context, now, is_batch_response=is_batch_response)
    if not report.is_ours or report.state is UpdateState.IDLE:
        return _handle_missing_update(execution, report, context, now, is_batch_response=is_batch_response)
    if report.state is UpdateState.FAILED:
        return _handle_failure_report(execution, report, context, now)
    if (
        _is_broadcast_report(execution)
        and report.state is not UpdateState.FETCHING
        and report.state is not UpdateState.TRANSFERRING
    ):
        return query_device_state(execution, context, now)
    return _follow_reported_state(execution, report, context, now, is_batch_response=is_batch_response)


def _handle_start_progress(
    execution: ExecutionRecord,
    report: ProgressReport,
    context: UpdateContext,
    now: int,
    *,
    is_batch_response: bool,
) -> Decision:
    """Decide how an execution continues whose start command got no response.

    The progress report shows whether the device has executed the command.
    """
    if context.spec.is_canceling and report.state in (UpdateState.IDLE, UpdateState.FAILED):
        return cancel_idle_execution(execution, now)
    if (
        _is_broadcast_report(execution)
        and report.is_ours
        and report.state not in (UpdateState.IDLE, UpdateState.FAILED)
    ):
        return enter_state(
            execution, ExecutionState.TRANSFERRING, _CAUSES[ExecutionState.TRANSFERRING], context, now
        )
    is_unknown = report.state is UpdateState.IDLE or (report.state is UpdateState.DONE and report.is_ours)
    if is_unknown or (_is_broadcast_report(execution) and report.state is UpdateState.FAILED):
        return _recheck_version(execution, context, now)  # a device that finished and restarted is idle, too
    if report.state in (UpdateState.FAILED, UpdateState.DONE):
        execution = replace(execution, step=UpdateStep.START)
        return (
            wait_until(execution, now + timeouts.BATCH_MEMBER_DELAY)
            if is_batch_response
            else resend_first_command(execution, context, now)
        )
    if not report.is_ours:
        busy = "the device or gateway is busy with another update"
        return wait_until(
            replace(execution, step=UpdateStep.BUSY_ELSEWHERE, reason=busy), now + timeouts.RETRY_DELAY
        )
    return enter_state(
        execution, _EXECUTION_STATES[report.state], _CAUSES[_EXECUTION_STATES[report.state]], context, now
    )


def _may_still_start(execution: ExecutionRecord, context: UpdateContext, now: int) -> bool:
    """Return whether a device that accepted the start command may still start, although it is idle."""
    if (
        execution.state is not ExecutionState.TRANSFERRING
        or execution.progress
        or execution.final_until is not None
    ):
        return False
    return (
        execution.moved_at is not None
        and now < execution.moved_at + timeouts.compute_first_progress_timeout(context.spec)
    )


def _handle_missing_update(
    execution: ExecutionRecord,
    report: ProgressReport,
    context: UpdateContext,
    now: int,
    *,
    is_batch_response: bool,
) -> Decision:
    """Handle a report of no update, or of another one: the update has not started yet, or was lost."""
    if execution.state is ExecutionState.APPLYING and report.state is UpdateState.IDLE:
        return enter_state(execution, ExecutionState.CONFIRMING, "the device has restarted", context, now)
    if report.state in _REST_STATES and _may_still_start(execution, context, now):
        return wait_until(
            execution,
            now + timeouts.STATE_QUERY_DELAY + (timeouts.BATCH_MEMBER_DELAY if is_batch_response else 0),
        )
    if report.state is UpdateState.IDLE:  # the device may have restarted, with the new or the old version
        return issue_request(execution, build_version_query(UpdateStep.RECHECK_VERSION), now)
    return fail_execution(execution, ReasonCode.OVERRIDDEN, "another update replaced this one", context, now)


def _handle_failure_report(
    execution: ExecutionRecord, report: ProgressReport, context: UpdateContext, now: int
) -> Decision:
    """Handle a report that the update failed: cancel, query the device itself, or fail the execution."""
    if (
        report.error == UpdateErrorCode.ABORTED
        and context.spec.is_canceling
        and execution.state in states.CANCELABLE_STATES
    ):
        return end_execution(
            execution, ExecutionState.CANCELED, reasons.STOPPED_TEXT, now, ReasonCode.CANCELED
        )
    if _is_broadcast_report(execution):
        return query_device_state(execution, context, now)
    failure = reasons.describe_error(report.error, report.percent)
    return fail_execution(execution, failure.code, failure.text, context, now)


def _recheck_version(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Read the version before the start command is sent again. In a broadcast, read one device at a time."""
    if not context.batch or execution.final_until is not None:
        return issue_request(execution, build_version_query(UpdateStep.RECHECK_VERSION), now)
    return wait_until(
        replace(execution, step=UpdateStep.RECHECK_VERSION), now + _compute_batch_delay(execution, context)
    )


def _is_broadcast_report(execution: ExecutionRecord) -> bool:
    """Return whether a progress report for this execution concerns a whole broadcast."""
    return execution.method is UpdateMethod.BROADCAST and execution.step is not UpdateStep.DEVICE_STATE


def query_device_state(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Query the state of a device directly, because its broadcast has ended. Members take turns."""
    return wait_until(
        replace(execution, step=UpdateStep.DEVICE_STATE), now + _compute_batch_delay(execution, context)
    )


def _compute_batch_delay(execution: ExecutionRecord, context: UpdateContext) -> int:
    """Return the milliseconds before a device of a broadcast is queried, so that members take turns."""
    return (
        context.batch.index(execution.device) * timeouts.BATCH_QUERY_SPACING
        if execution.device in context.batch
        else 0
    )


def _follow_reported_state(
    execution: ExecutionRecord,
    report: ProgressReport,
    context: UpdateContext,
    now: int,
    *,
    is_batch_response: bool,
) -> Decision:
    """Enter the state that the device reports, stay in the current state, or wait if the report is old."""
    state = _EXECUTION_STATES[report.state]
    if state is execution.state:
        return _stay_in_state(execution, report, context, now, is_batch_response=is_batch_response)
    has_missed_apply = execution.state is ExecutionState.APPLYING and state is ExecutionState.STAGED
    if has_missed_apply and may_apply_staged_image(
        context
    ):  # in a broadcast, only this device gets the command
        return issue_request(execution, build_device_control(UpdateStep.APPLY, APPLY_ACTION), now)
    if _ORDER.index(state) < _ORDER.index(execution.state):  # an old response, or a device that restarts
        return wait_until(execution, now + timeouts.STATE_QUERY_DELAY)
    return enter_state(execution, state, _CAUSES[state], context, now)


def _stay_in_state(
    execution: ExecutionRecord,
    report: ProgressReport,
    context: UpdateContext,
    now: int,
    *,
    is_batch_response: bool,
) -> Decision:
    """Wait until the next query, because the device reports the current state. Record its progress."""
    if execution.state is ExecutionState.STAGED:  # the device did not start the image: retry the command
        return wait_until(replace(execution, step=UpdateStep.APPLY), now + timeouts.APPLY_RETRY_DELAY)
    if execution.state is not ExecutionState.TRANSFERRING:
        return wait_until(execution, now + timeouts.STATE_QUERY_DELAY)
    if report.percent > execution.progress:
        execution = replace(execution, progress=report.percent)
        if execution.waiting != WAIT_CANCELING:
            execution = replace(execution, expires=now + context.spec.step_timeout)
    return wait_until(
        execution,
        now
        + timeouts.compute_poll_interval(context)
        + (timeouts.BATCH_MEMBER_DELAY if is_batch_response else 0),
    )
