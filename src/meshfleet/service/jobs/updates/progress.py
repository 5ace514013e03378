"""Handles progress reports: decides how an execution continues after a report of its device or gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.protocol.codes import UpdateErrorCode, UpdateState
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState as S
from meshfleet.service.jobs.updates import reasons, states, timeouts
from meshfleet.service.jobs.updates.decisions import (
    WAIT_CANCELING,
    cancel_idle_execution,
    end_execution,
    enter_state,
    fail_execution,
    issue_request,
    may_apply,
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

_EXECUTION_STATES: Final[Mapping[UpdateState, S]] = {
    UpdateState.FETCHING: S.TRANSFERRING,
    UpdateState.TRANSFERRING: S.TRANSFERRING,
    UpdateState.VERIFYING: S.VERIFYING,
    UpdateState.STAGED: S.STAGED,
    UpdateState.APPLYING: S.APPLYING,
    UpdateState.DONE: S.CONFIRMING,
}

_CAUSES: Final[Mapping[S, str]] = {
    S.TRANSFERRING: "the image is being transferred",
    S.VERIFYING: "the image has arrived and is being checked",
    S.STAGED: "the device has the image and waits for the command to start it",
    S.APPLYING: "the device is starting the new version",
    S.CONFIRMING: "the device reports that the update is done",
}

_ORDER: Final = tuple(_CAUSES)

_REST_STATES: Final = frozenset({UpdateState.IDLE, UpdateState.DONE, UpdateState.FAILED})
"""States that a device can report before this update starts: idle, or the result of an earlier update."""


def handle_progress(
    x: ExecutionRecord, report: ProgressReport, context: UpdateContext, now: int, *, is_shared: bool
) -> Decision:
    """Handle a progress report: follow the reported state, wait, query again, or fail the execution."""
    if x.state is S.DISPATCHED:
        return _handle_start_progress(x, report, context, now, is_shared=is_shared)
    if not report.is_ours or report.state is UpdateState.IDLE:
        return _handle_missing_update(x, report, context, now, is_shared=is_shared)
    if report.state is UpdateState.FAILED:
        return _handle_failure(x, report, context, now)
    if (
        _is_broadcast_report(x)
        and report.state is not UpdateState.FETCHING
        and report.state is not UpdateState.TRANSFERRING
    ):
        return query_device_state(x, context, now)
    return _follow_state(x, report, context, now, is_shared=is_shared)


def _handle_start_progress(
    x: ExecutionRecord, report: ProgressReport, context: UpdateContext, now: int, *, is_shared: bool
) -> Decision:
    """Find out from a progress report whether the device has executed a start command without response."""
    if context.spec.is_canceling and report.state in (UpdateState.IDLE, UpdateState.FAILED):
        return cancel_idle_execution(x, now)
    if (
        _is_broadcast_report(x)
        and report.is_ours
        and report.state not in (UpdateState.IDLE, UpdateState.FAILED)
    ):
        return enter_state(x, S.TRANSFERRING, _CAUSES[S.TRANSFERRING], context, now)
    is_unknown = report.state is UpdateState.IDLE or (report.state is UpdateState.DONE and report.is_ours)
    if is_unknown or (_is_broadcast_report(x) and report.state is UpdateState.FAILED):
        return _recheck_version(x, context, now)  # a device that finished and restarted is idle, too
    if report.state in (UpdateState.FAILED, UpdateState.DONE):
        x = replace(x, step=UpdateStep.START)
        return (
            wait_until(x, now + timeouts.BATCH_MEMBER_DELAY)
            if is_shared
            else resend_first_command(x, context, now)
        )
    if not report.is_ours:
        busy = "the device or gateway is busy with another update"
        return wait_until(replace(x, step=UpdateStep.BUSY_ELSEWHERE, reason=busy), now + timeouts.RETRY_DELAY)
    return enter_state(
        x, _EXECUTION_STATES[report.state], _CAUSES[_EXECUTION_STATES[report.state]], context, now
    )


def _may_still_start(x: ExecutionRecord, context: UpdateContext, now: int) -> bool:
    """Return whether a device that accepted the start command but shows no progress may still start."""
    if x.state is not S.TRANSFERRING or x.progress or x.final_until is not None:
        return False
    return x.moved_at is not None and now < x.moved_at + timeouts.compute_first_progress_timeout(context.spec)


def _handle_missing_update(
    x: ExecutionRecord, report: ProgressReport, context: UpdateContext, now: int, *, is_shared: bool
) -> Decision:
    """Handle a report that does not show this update: it has not started yet, or the device has lost it."""
    if x.state is S.APPLYING and report.state is UpdateState.IDLE:
        return enter_state(x, S.CONFIRMING, "the device has restarted", context, now)
    if report.state in _REST_STATES and _may_still_start(x, context, now):
        return wait_until(
            x, now + timeouts.STATE_QUERY_DELAY + (timeouts.BATCH_MEMBER_DELAY if is_shared else 0)
        )
    if report.state is UpdateState.IDLE:  # the device may have restarted, with the new or the old version
        return issue_request(x, build_version_query(UpdateStep.RECHECK_VERSION), now)
    return fail_execution(x, ReasonCode.OVERRIDDEN, "another update replaced this one", context, now)


def _handle_failure(x: ExecutionRecord, report: ProgressReport, context: UpdateContext, now: int) -> Decision:
    if (
        report.error == UpdateErrorCode.ABORTED
        and context.spec.is_canceling
        and x.state in states.CANCELABLE_STATES
    ):
        return end_execution(x, S.CANCELED, reasons.STOPPED_TEXT, now, ReasonCode.CANCELED)
    if _is_broadcast_report(x):
        return query_device_state(x, context, now)
    failure = reasons.describe_error(report.error, report.percent)
    return fail_execution(x, failure.code, failure.text, context, now)


def _recheck_version(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Read the version before the start command is sent again; in a broadcast, one device after another."""
    if not context.batch or x.final_until is not None:
        return issue_request(x, build_version_query(UpdateStep.RECHECK_VERSION), now)
    return wait_until(replace(x, step=UpdateStep.RECHECK_VERSION), now + _compute_batch_delay(x, context))


def _is_broadcast_report(x: ExecutionRecord) -> bool:
    """Return whether a progress report for this execution concerns a whole broadcast."""
    return x.method is UpdateMethod.BROADCAST and x.step is not UpdateStep.DEVICE_STATE


def query_device_state(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Query each device for its own state, one after another, because the broadcast has ended."""
    return wait_until(replace(x, step=UpdateStep.DEVICE_STATE), now + _compute_batch_delay(x, context))


def _compute_batch_delay(x: ExecutionRecord, context: UpdateContext) -> int:
    """Return how many milliseconds a device of a broadcast waits while those before it are queried."""
    return context.batch.index(x.device) * timeouts.BATCH_QUERY_SPACING if x.device in context.batch else 0


def _follow_state(
    x: ExecutionRecord, report: ProgressReport, context: UpdateContext, now: int, *, is_shared: bool
) -> Decision:
    state = _EXECUTION_STATES[report.state]
    if state is x.state:
        return _stay_in_state(x, report, context, now, is_shared=is_shared)
    has_missed_apply = x.state is S.APPLYING and state is S.STAGED
    if has_missed_apply and may_apply(context):  # in a broadcast, only this device gets the command
        return issue_request(x, build_device_control(UpdateStep.APPLY, APPLY_ACTION), now)
    if _ORDER.index(state) < _ORDER.index(x.state):  # an old response, or a device that restarts
        return wait_until(x, now + timeouts.STATE_QUERY_DELAY)
    return enter_state(x, state, _CAUSES[state], context, now)


def _stay_in_state(
    x: ExecutionRecord, report: ProgressReport, context: UpdateContext, now: int, *, is_shared: bool
) -> Decision:
    if x.state is S.STAGED:  # the device did not start the image: the command is sent again later
        return wait_until(replace(x, step=UpdateStep.APPLY), now + timeouts.APPLY_RETRY_DELAY)
    if x.state is not S.TRANSFERRING:
        return wait_until(x, now + timeouts.STATE_QUERY_DELAY)
    if report.percent > x.progress:
        x = replace(x, progress=report.percent)
        if x.waiting != WAIT_CANCELING:
            x = replace(x, expires=now + context.spec.step_timeout)
    return wait_until(
        x, now + timeouts.compute_poll_interval(context) + (timeouts.BATCH_MEMBER_DELAY if is_shared else 0)
    )
