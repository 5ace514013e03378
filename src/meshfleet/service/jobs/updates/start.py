"""Starts an update: sends the start command, and repeats a failed command with growing delays.

A start command whose result is unknown is sent again only after the state of the device was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.updates import timeouts
from meshfleet.service.jobs.updates.decisions import (
    cancel_idle_execution,
    end_execution,
    enter_state,
    issue_request,
    reject_execution,
    time_out_execution,
    wait_until,
)
from meshfleet.service.jobs.updates.drivers import DRIVERS, build_mode_switch, build_version_query
from meshfleet.service.jobs.updates.model import Decision, UpdateStep
from meshfleet.service.jobs.updates.reasons import ReasonCode, describe_status
from meshfleet.service.jobs.updates.version_check import start_version_check

if TYPE_CHECKING:
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext

_TRANSIENT_STATUSES = frozenset({Status.FAILED, Status.BUSY, Status.TIMEOUT, Status.UNREACHABLE})
"""Response statuses after which the same request may succeed later."""


def dispatch_execution(  # noqa: PLR0913 # the flags are keyword-only
    execution: ExecutionRecord,
    context: UpdateContext,
    now: int,
    *,
    is_leader: bool = True,
    may_run_target: bool = False,
    reports_target: bool = False,
) -> Decision:
    """Start the update of a queued device: decide to send the first request, or to wait for the leader.

    The leader sends the start command of a broadcast; `is_leader` says that this execution does so. If
    `may_run_target` is True, an earlier attempt may have installed the target version, so the version is read
    first. If `reports_target` is True, the device reports the target version before the first attempt, so the
    version is read and no update starts.
    """
    execution = replace(
        execution,
        state=ExecutionState.DISPATCHED,
        gateway=context.gateway,
        total_until=now + timeouts.compute_total_timeout(context),
        expires=now + timeouts.START_TIMEOUT,
        moved_at=now,
        # The status before the first attempt, which may have changed it.
        status_before=context.status if execution.attempt == 1 else execution.status_before,
        beat_at=context.beat_at,
        waiting=None,
        code=None,
        reason=None,
        tries=0,
        suspended_at=None,
        outage_left=None,
        final_until=None,
    )
    if reports_target:
        return start_version_check(execution, now)
    if may_run_target:
        return issue_request(
            execution,
            build_version_query(UpdateStep.RECHECK_VERSION),
            now,
            "the version is read first: an earlier attempt may have installed it",
        )
    if not is_leader:
        position = context.batch.index(execution.device) if execution.device in context.batch else 0
        execution = replace(
            execution,
            step=UpdateStep.START,
            due=now + timeouts.BATCH_MEMBER_DELAY + position * timeouts.BATCH_QUERY_SPACING,
        )
        return Decision(execution, "dispatched as part of a broadcast")
    # The cause does not say that the command was sent: sending may still fail.
    return send_first_command(execution, context, now)._replace(
        cause="dispatched: the start command is about to be sent"
    )


def send_first_command(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Decide to send the first command of an update.

    For Nordic DFU this is the switch to DFU mode, for other methods the start command.
    """
    if execution.method is UpdateMethod.NORDIC_DFU:
        return issue_request(
            replace(execution, tries=execution.tries + 1), build_mode_switch(context.spec, execution), now
        )
    return send_start_command(execution, context, now)


def send_start_command(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Decide to send the command that starts the transfer of the image."""
    return issue_request(
        replace(execution, tries=execution.tries + 1),
        DRIVERS[execution.method].build_start_command(context, execution),
        now,
    )


def resend_first_command(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Send the first command of an update again, or end the execution if the job is being canceled."""
    if context.spec.is_canceling:
        return end_execution(
            execution,
            ExecutionState.CANCELED,
            "canceled before the transfer started",
            now,
            ReasonCode.CANCELED,
        )
    if execution.step is UpdateStep.ENTER_DFU or execution.step is UpdateStep.RECHECK_VERSION:
        return send_first_command(execution, context, now)
    return send_start_command(execution, context, now)


def give_up_start(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Give up an update that could not be started. The last error becomes part of the reason."""
    cause = "the update could not be started"
    return time_out_execution(
        execution,
        ReasonCode.NOT_STARTED,
        f"{cause}: {execution.reason}" if execution.reason else cause,
        context,
        now,
    )


def continue_start(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Continue an unconfirmed start: read the state or version, or send the start command again."""
    if execution.step is UpdateStep.DEVICE_STATE:
        # The last query of a broadcast was not sent, and its deadline has been put off since.
        execution = replace(execution, step=UpdateStep.STATE)
    if execution.step is UpdateStep.RECHECK_VERSION:
        return issue_request(execution, build_version_query(UpdateStep.RECHECK_VERSION), now)
    if execution.step is UpdateStep.UNSENT and execution.method is UpdateMethod.NORDIC_DFU:
        return resend_first_command(replace(execution, step=UpdateStep.ENTER_DFU), context, now)
    if not context.is_batch_leader(execution.device):
        # The responses of the leader are shared. If this device becomes the leader, it queries first.
        step = execution.step if execution.step is UpdateStep.UNSENT else UpdateStep.STATE
        return wait_until(replace(execution, step=step), now + timeouts.BATCH_MEMBER_DELAY)
    if not context.is_batch_complete:
        return wait_until(execution, now + timeouts.RETRY_DELAY)
    if execution.step in (UpdateStep.STATE, UpdateStep.BUSY_ELSEWHERE, UpdateStep.UNSENT) or (
        execution.step is UpdateStep.START and not execution.tries
    ):
        return issue_request(execution, DRIVERS[execution.method].build_state_query(execution), now)
    return resend_first_command(execution, context, now)


def handle_dfu_response(execution: ExecutionRecord, status: int, now: int) -> Decision:
    """Handle the response to the switch to DFU mode: wait for the device, retry, or end as REJECTED."""
    if status == Status.OK:
        return wait_until(
            replace(execution, reason="the device was not seen in DFU mode"), now + timeouts.DFU_MODE_TIMEOUT
        )
    if status in _TRANSIENT_STATUSES:
        return _retry_later(execution, status, now)
    return reject_execution(
        execution, f"the device did not switch to DFU mode: {describe_status(status)}", now
    )


def start_checked_device(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Start the update of a device that runs another version than the target version, as read from it.

    In a broadcast, wait until the versions of all devices were read.
    """
    if not context.batch:
        return resend_first_command(execution, context, now)
    if context.spec.is_canceling:
        return cancel_idle_execution(execution, now)
    step = UpdateStep.START if context.is_batch_leader(execution.device) else UpdateStep.STATE
    return wait_until(
        replace(execution, step=step, tries=max(execution.tries, 1)), now + timeouts.RETRY_DELAY
    )


def handle_start_response(
    execution: ExecutionRecord, status: int, context: UpdateContext, now: int, *, is_batch_response: bool
) -> Decision:
    """Handle the response to the start command: enter TRANSFERRING, retry, or end as REJECTED.

    `is_batch_response` says that another device of the same broadcast sent the command.
    """
    if status == Status.OK:
        return enter_state(
            execution, ExecutionState.TRANSFERRING, "the start command was accepted", context, now
        )
    if is_batch_response and status in _TRANSIENT_STATUSES:  # the leader retries for all
        execution = replace(
            execution, step=UpdateStep.STATE, reason=describe_status(status), tries=execution.tries + 1
        )
        return wait_until(execution, now + timeouts.BATCH_MEMBER_DELAY)
    if status in (Status.BUSY, Status.TIMEOUT):  # an earlier start of this update may be running
        return _retry_later(replace(execution, step=UpdateStep.STATE), status, now)
    if status in _TRANSIENT_STATUSES:
        return _retry_later(execution, status, now)
    return reject_execution(execution, f"the update was rejected: {describe_status(status)}", now)


def _retry_later(execution: ExecutionRecord, status: int, now: int) -> Decision:
    """Retry a command after a delay that grows with each try. Store the response as evidence."""
    decision = wait_until(
        replace(execution, reason=describe_status(status)), now + timeouts.compute_start_backoff(execution)
    )
    return decision._replace(is_evidence=True)
