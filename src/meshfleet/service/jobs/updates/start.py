"""How an update begins: with growing pauses between tries, and never twice without a look in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import ExecutionState as S
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
from meshfleet.service.jobs.updates.drivers import DRIVERS, NordicDfuDriver, build_version_query
from meshfleet.service.jobs.updates.model import Decision, UpdateStep
from meshfleet.service.jobs.updates.reasons import ReasonCode, describe_status
from meshfleet.service.jobs.updates.version_check import start_version_check

if TYPE_CHECKING:
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext

_TRANSIENT_STATUSES = frozenset({Status.FAILED, Status.BUSY, Status.TIMEOUT, Status.UNREACHABLE})
"""Answers that may be others in a moment."""


def dispatch_execution(  # noqa: PLR0913 # by name
    x: ExecutionRecord,
    context: UpdateContext,
    now: int,
    *,
    is_leader: bool = True,
    may_be_updated: bool = False,
    reports_target: bool = False,
) -> Decision:
    """Begin with an execution whose turn it is.

    Of a broadcast only one `leads`. `is_there`: the device may have the version already, which an attempt
    before this one may have brought about. `is_reported`: it reports the version, and nothing was begun.
    """
    x = replace(
        x,
        state=S.DISPATCHED,
        gateway=context.gateway,
        total_until=now + timeouts.compute_total_timeout(context),
        expires=now + timeouts.START_TIMEOUT,
        moved_at=now,
        status_before=context.status if x.attempt == 1 else x.status_before,  # before any of our updates
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
        return start_version_check(x, now)
    if may_be_updated:
        return issue_request(
            x,
            build_version_query(UpdateStep.RECHECK_VERSION),
            now,
            "the version is read: it may be there already",
        )
    if not is_leader:
        turn = context.batch.index(x.device) if x.device in context.batch else 0
        x = replace(
            x,
            step=UpdateStep.START,
            due=now + timeouts.BATCH_MEMBER_DELAY + turn * timeouts.BATCH_QUERY_SPACING,
        )
        return Decision(x, "its turn has come, together with others of a broadcast")
    # Nothing has left yet: it may turn out that nothing can be sent.
    return send_first_command(x, context, now)._replace(
        cause="its turn has come, and the first command is to be sent"
    )


def send_first_command(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Send the first command."""
    driver = DRIVERS[x.method]
    if isinstance(driver, NordicDfuDriver):
        return issue_request(replace(x, tries=x.tries + 1), driver.build_mode_switch(context.spec, x), now)
    return send_start(x, context, now)


def send_start(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Begin the transfer."""
    return issue_request(replace(x, tries=x.tries + 1), DRIVERS[x.method].build_start(context, x), now)


def resend_first_command(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Send the first command once more."""
    if context.spec.is_canceling:
        return end_execution(x, S.CANCELED, "canceled before the transfer began", now, ReasonCode.CANCELED)
    if x.step is UpdateStep.ENTER_DFU or x.step is UpdateStep.RECHECK_VERSION:
        return send_first_command(x, context, now)
    return send_start(x, context, now)


def give_up_start(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Give up what could not be begun, and tell why as far as it is known."""
    cause = "the update could not be begun"
    return time_out_execution(
        x, ReasonCode.NOT_STARTED, f"{cause}: {x.reason}" if x.reason else cause, context, now
    )


def continue_start(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Nothing is known of the beginning: ask, or begin once more."""
    if x.step is UpdateStep.RECHECK_VERSION:
        return issue_request(x, build_version_query(UpdateStep.RECHECK_VERSION), now)
    if x.step is UpdateStep.UNSENT and x.method is UpdateMethod.NORDIC_DFU:
        return resend_first_command(replace(x, step=UpdateStep.ENTER_DFU), context, now)
    if not context.is_batch_leader(
        x.device
    ):  # it hears what comes of it; if it has to speak some day, it asks first
        step = x.step if x.step is UpdateStep.UNSENT else UpdateStep.STATE
        return wait_until(replace(x, step=step), now + timeouts.BATCH_MEMBER_DELAY)
    if not context.is_batch_complete:
        return wait_until(x, now + timeouts.RETRY_DELAY)
    if x.step in (UpdateStep.STATE, UpdateStep.BUSY_ELSEWHERE, UpdateStep.UNSENT) or (
        x.step is UpdateStep.START and not x.tries
    ):
        return issue_request(x, DRIVERS[x.method].build_state_query(x), now)
    return resend_first_command(x, context, now)


def handle_dfu_response(x: ExecutionRecord, status: int, now: int) -> Decision:
    """The device is on its way into DFU mode, or not."""
    if status == Status.OK:
        return wait_until(
            replace(x, reason="the device is not heard in DFU mode"), now + timeouts.DFU_MODE_TIMEOUT
        )
    if status in _TRANSIENT_STATUSES:
        return _retry_later(x, status, now)
    return reject_execution(x, f"the device was not sent into DFU mode: {describe_status(status)}", now)


def start_checked_device(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """The device does not run the version: begin with it, in a broadcast with all others like it."""
    if not context.batch:
        return resend_first_command(x, context, now)
    if context.spec.is_canceling:
        return cancel_idle_execution(x, now)
    step = UpdateStep.START if context.is_batch_leader(x.device) else UpdateStep.STATE
    return wait_until(replace(x, step=step, tries=max(x.tries, 1)), now + timeouts.RETRY_DELAY)


def handle_start_response(
    x: ExecutionRecord, status: int, context: UpdateContext, now: int, *, is_shared: bool
) -> Decision:
    """The transfer begins, or not."""
    if status == Status.OK:
        return enter_state(x, S.TRANSFERRING, "the gateway has taken the order", context, now)
    if is_shared and status in _TRANSIENT_STATUSES:  # who asked goes on for all
        x = replace(x, step=UpdateStep.STATE, reason=describe_status(status), tries=x.tries + 1)
        return wait_until(x, now + timeouts.BATCH_MEMBER_DELAY)
    if status in (Status.BUSY, Status.TIMEOUT):  # perhaps with what we told it before
        return _retry_later(replace(x, step=UpdateStep.STATE), status, now)
    if status in _TRANSIENT_STATUSES:
        return _retry_later(x, status, now)
    return reject_execution(x, f"the update was refused: {describe_status(status)}", now)


def _retry_later(x: ExecutionRecord, status: int, now: int) -> Decision:
    """Try again after a pause that grows with each try; the answer is kept as evidence and as the reason."""
    move = wait_until(replace(x, reason=describe_status(status)), now + timeouts.compute_start_backoff(x))
    return move._replace(is_evidence=True)
