"""State machine of an update: a pure function of the execution, an event, and the time.

Only observed facts count. A command whose result is unknown is not sent again before the device state was
read. An update is given up only after a last query to the device. Its timers are suspended while no request
can be sent. An update succeeds if the new version was read from the device and good heartbeats arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState as S
from meshfleet.service.jobs.updates import confirmation, model, start, states, timeouts
from meshfleet.service.jobs.updates.decisions import (
    WAIT_CANCELING,
    cancel_execution,
    end_execution,
    enter_state,
    fail_execution,
    is_past_abort,
    issue_request,
    list_deadlines,
    may_apply,
    remove_execution,
    request_apply,
    time_out_execution,
    wait_until,
)
from meshfleet.service.jobs.updates.drivers import DRIVERS, build_version_query, parse_version
from meshfleet.service.jobs.updates.gateway_outages import (
    WAIT_GATEWAY_OFFLINE,
    find_suspension_end,
    handle_gateway_disconnect,
    resume_timers,
    suspend_timers,
)
from meshfleet.service.jobs.updates.model import Decision, UpdateStep
from meshfleet.service.jobs.updates.progress import handle_progress, query_device_state
from meshfleet.service.jobs.updates.reasons import STOPPED_TEXT, ReasonCode, describe_unreadable_response
from meshfleet.service.jobs.updates.version_check import advance_version_check, is_version_check

if TYPE_CHECKING:
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext, UpdateEvent

_QUERY_STEPS: Final = frozenset(
    {UpdateStep.STATE, UpdateStep.DEVICE_STATE, UpdateStep.RECHECK_VERSION, UpdateStep.CONFIRM_VERSION}
)
"""Steps whose requests only read from the device or gateway."""


def advance_execution(x: ExecutionRecord, event: UpdateEvent, context: UpdateContext, now: int) -> Decision:  # noqa: C901, PLR0911 # one case per event
    """Return the decision that follows from an event of an active execution."""
    match event:
        case model.DeviceRemoved():
            return remove_execution(x, now)
        case _ if is_version_check(x):
            return advance_version_check(x, event, context, now)
        case model.TimerDue():
            return _handle_timer(_discard_lost_request(x), context, now)
        case model.HeartbeatReceived() if x.state is S.CONFIRMING:
            return confirmation.handle_heartbeat(resume_timers(x, context, now), event, context, now)
        case model.HeartbeatReceived():
            return Decision(x)
        case model.DfuModeSeen():
            return _handle_dfu_mode(x, event, context, now)
        case model.GatewayDisconnected():
            return handle_gateway_disconnect(x, context, now)
        case model.GatewayReconnected():
            return _handle_gateway_reconnect(x, context, now)
        case model.ResponseReceived():
            x = resume_timers(x, context, now)
            decision = _handle_response(
                replace(x, pending_request=None, reason=_lasting_reason(x)), event, context, now
            )
            return _enforce_deadlines(x, decision, context, now, is_conclusive=event.status == Status.OK)
        case model.RequestNotSent():
            return _handle_not_sent(
                replace(x, pending_request=None, reason=event.reason), event, context, now
            )
        case model.RequestUnanswered():
            x = x if event.is_connection_lost else resume_timers(x, context, now)
            decision = _handle_unanswered(
                replace(x, pending_request=None, reason=event.reason), event, context, now
            )
            return _enforce_deadlines(x, decision, context, now, is_conclusive=False)


def _lasting_reason(x: ExecutionRecord) -> str | None:
    """Return the reason to keep after a response: why the last start failed, or a bad heartbeat."""
    return x.reason if x.state in (S.DISPATCHED, S.CONFIRMING) else None


def _enforce_deadlines(
    x: ExecutionRecord, decision: Decision, context: UpdateContext, now: int, *, is_conclusive: bool
) -> Decision:
    """Replace a decision that stays in the same state if a deadline has passed or the job is being canceled.

    After a deadline a last query is sent; `final_until` is set then. The execution ends if the response to
    the last query has status OK (`is_conclusive`) and leads to no new state.
    """
    after = decision.execution
    if after.state is not x.state:
        return decision
    must_cancel = (
        context.spec.is_canceling and x.state in states.CANCELABLE_STATES and x.waiting != WAIT_CANCELING
    )
    if decision.request is not None and must_cancel:
        return _handle_timer(replace(after, pending_request=None), context, now)
    if not _has_expired(after, now):
        return decision._replace(execution=replace(after, final_until=None))
    if x.final_until is None:
        return (
            decision
            if decision.request is None
            else _handle_timer(replace(after, pending_request=None), context, now)
        )
    if decision.request is not None:
        return decision if decision.request.step in _QUERY_STEPS else _time_out(after, context, now)
    return _time_out(after, context, now) if is_conclusive else decision


def _has_expired(x: ExecutionRecord, now: int) -> bool:
    return x.suspended_at is None and any(now >= each for each in list_deadlines(x))


def _discard_lost_request(x: ExecutionRecord) -> ExecutionRecord:
    """Discard a request whose result was lost. After a lost start command, the state is queried next."""
    if x.pending_request is None:
        return x
    return replace(x, pending_request=None, step=UpdateStep.STATE if x.step is UpdateStep.START else x.step)


def _handle_timer(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Cancel the execution, send the last query if a deadline has passed, or send the next request."""
    if context.spec.is_canceling and x.state in states.CANCELABLE_STATES:
        x = resume_timers(x, context, now)
        decision = cancel_execution(x, context, now)
        if decision.execution.state is not x.state or not is_past_abort(x):
            return decision
        x = decision.execution
    if x.suspended_at is not None:
        return _handle_timer_suspended(x, context, now)
    return _send_last_query(x, context, now) if _has_expired(x, now) else _send_next_request(x, context, now)


def _handle_timer_suspended(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Try to send the next request while the timers are suspended, unless the gateway is disconnected."""
    until = find_suspension_end(x, context)
    if now >= until or (x.state is S.STAGED and not may_apply(context)):
        return _handle_timer(resume_timers(x, context, now), context, now)
    return (
        Decision(replace(x, due=until))
        if x.waiting == WAIT_GATEWAY_OFFLINE
        else _send_next_request(x, context, now)
    )


def _handle_gateway_reconnect(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Resume the timers and send the next request: the device may have finished the update meanwhile."""
    x = resume_timers(x, context, now)
    return Decision(x) if x.pending_request is not None else _handle_timer(x, context, now)


def _send_last_query(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Send one last query before an update that missed its deadline is given up (firmware-40)."""
    if not _is_worth_querying(x, context):
        return _time_out(x, context, now)
    if x.final_until is None:
        x = replace(x, final_until=now + timeouts.LAST_QUERY_TIMEOUT)
    elif now >= x.final_until:
        return _time_out(x, context, now)
    return issue_request(x, _build_last_query(x), now)


def _is_worth_querying(x: ExecutionRecord, context: UpdateContext) -> bool:
    """Return whether the response to a last query could change the outcome."""
    match x.state:
        case S.DISPATCHED:
            return x.step is not UpdateStep.UNSENT
        case S.STAGED:
            return may_apply(context)
        case S.CONFIRMING:  # once the version was read, only heartbeats can help
            return not x.is_read or x.beats >= context.spec.heartbeats
        case _:
            return True


def _build_last_query(x: ExecutionRecord) -> model.UpdateRequest:
    """Build the last query for the version or the update state; in a broadcast it goes to the device."""
    if x.state is S.CONFIRMING:
        return build_version_query(UpdateStep.CONFIRM_VERSION)
    if x.step in (UpdateStep.RECHECK_VERSION, UpdateStep.ENTER_DFU):
        return build_version_query(UpdateStep.RECHECK_VERSION)
    queried = replace(x, step=UpdateStep.DEVICE_STATE) if x.method is UpdateMethod.BROADCAST else x
    return DRIVERS[x.method].build_state_query(queried)


def _time_out(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    if x.total_until is not None and now >= x.total_until and x.state is not S.STAGED:
        cause = "the update exceeded its total timeout"
        if x.state is S.CONFIRMING:
            return time_out_execution(
                x,
                ReasonCode.TOO_LONG,
                f"{cause}: {confirmation.describe_missing_proof(x, context)}",
                context,
                now,
            )
        return time_out_execution(x, ReasonCode.TOO_LONG, _with_reason(cause, x), context, now)
    return _time_out_state(x, context, now)


def _with_reason(cause: str, x: ExecutionRecord) -> str:
    """Add the error of the last query to the cause, if there was one."""
    return f"{cause}; last query: {x.reason}" if x.reason else cause


def _time_out_state(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    match x.state:
        case S.DISPATCHED:
            return start.give_up_start(x, context, now)
        case S.STAGED if may_apply(context):
            cause = _with_reason("the device did not start the staged image", x)
            return time_out_execution(x, ReasonCode.NOT_APPLIED, cause, context, now)
        case S.STAGED:
            return time_out_execution(
                x, ReasonCode.NOT_STAGED, "the staged image was not applied in time", context, now
            )
        case S.APPLYING:
            cause = _with_reason("the device did not return with the new version", x)
            return time_out_execution(x, ReasonCode.NOT_APPLIED, cause, context, now)
        case S.CONFIRMING:
            return end_execution(
                x, S.FAILED, confirmation.describe_missing_proof(x, context), now, ReasonCode.NOT_CONFIRMED
            )
        case _:
            cause = _with_reason(f"no progress for too long, at {x.progress} %", x)
            return time_out_execution(x, ReasonCode.STALLED, cause, context, now)


def _send_next_request(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    match x.state:
        case S.DISPATCHED:
            return start.continue_start(x, context, now)
        case S.STAGED if x.step is not UpdateStep.DEVICE_STATE:
            return request_apply(x, context, now)
        case S.TRANSFERRING if x.step is not UpdateStep.DEVICE_STATE and not context.is_batch_leader(
            x.device
        ):
            return wait_until(x, now + timeouts.BATCH_MEMBER_DELAY)
        case S.CONFIRMING:
            return confirmation.continue_confirmation(x, context, now)
        case _:
            return issue_request(x, DRIVERS[x.method].build_state_query(x), now)


def _handle_dfu_mode(
    x: ExecutionRecord, event: model.DfuModeSeen, context: UpdateContext, now: int
) -> Decision:
    """Start the transfer to a device that was received in DFU mode, unless it was started already."""
    if (
        x.state is not S.DISPATCHED
        or x.step not in (UpdateStep.ENTER_DFU, UpdateStep.RECHECK_VERSION)
        or x.pending_request is not None
    ):
        return Decision(x)
    if context.spec.is_canceling:
        return cancel_execution(x, context, now)
    if not event.has_free_slot:
        return _wait_for_slot(x, now)
    # Only a gateway that receives the device can send to it.
    x = resume_timers(x, context, now)
    started = replace(x, step=UpdateStep.START, gateway=event.gateway or x.gateway)
    if x.step is UpdateStep.ENTER_DFU:
        started = replace(started, tries=0)
    return start.resend_first_command(started, context, now)._replace(is_evidence=True)


def _wait_for_slot(x: ExecutionRecord, now: int) -> Decision:
    """Wait for a free slot of the gateway without switching the device to DFU mode again."""
    if x.due - now > timeouts.DFU_MODE_TIMEOUT // 2:
        return Decision(x)
    return wait_until(
        replace(x, reason="the gateway that receives the device is busy"), now + timeouts.DFU_MODE_TIMEOUT
    )


def _handle_response(  # noqa: PLR0911 # one case per step
    x: ExecutionRecord, event: model.ResponseReceived, context: UpdateContext, now: int
) -> Decision:
    match event.step:
        case UpdateStep.RECHECK_VERSION:
            return _handle_recheck_response(x, event, context, now)
        case UpdateStep.ENTER_DFU:
            return start.handle_dfu_response(x, event.status, now)
        case UpdateStep.START:
            return start.handle_start_response(x, event.status, context, now, is_shared=event.is_shared)
        case UpdateStep.APPLY:
            return _handle_apply_response(x, event, context, now)
        case UpdateStep.ABORT:
            return _handle_abort_response(x, event.status, now)
        case UpdateStep.CONFIRM_VERSION:
            return confirmation.handle_version_response(x, event.status, event.value, context, now)
        case _:
            return _handle_state_response(x, event, context, now)


def _handle_recheck_response(
    x: ExecutionRecord, event: model.ResponseReceived, context: UpdateContext, now: int
) -> Decision:
    """Handle the version that was read because the device may already run the new version."""
    version = parse_version(event.value) if event.status == Status.OK else None
    if version is None:  # the device may run the new version: do not update it again without knowing
        return _query_later(replace(x, reason=describe_unreadable_response(event.status)), context, now)
    if version == context.spec.version:
        return enter_state(x, S.CONFIRMING, f"the device already runs {version}", context, now)
    if x.state is S.TRANSFERRING and x.progress == 0:
        cause = "the device accepted the start, but is idle and has received nothing of the image"
        return time_out_execution(x, ReasonCode.NOT_STARTED, cause, context, now)
    if x.state is not S.DISPATCHED:
        cause = f"the device has lost the {x.progress} % of the image that it had received"
        return fail_execution(x, ReasonCode.TRANSFER_LOST, cause, context, now)
    return start.start_checked_device(x, context, now)


def _handle_apply_response(
    x: ExecutionRecord, event: model.ResponseReceived, context: UpdateContext, now: int
) -> Decision:
    if event.status == Status.OK and x.state is S.STAGED:
        return enter_state(x, S.APPLYING, "the command to start the new version was accepted", context, now)
    if event.status == Status.OK:  # the command was sent to this device of a broadcast alone
        return wait_until(replace(x, step=UpdateStep.DEVICE_STATE), now + timeouts.APPLY_RETRY_DELAY)
    if event.is_shared:
        return query_device_state(x, context, now)
    # The device may be starting the image already, or may have lost it.
    return issue_request(x, DRIVERS[x.method].build_state_query(x), now)


def _handle_abort_response(x: ExecutionRecord, status: int, now: int) -> Decision:
    if status == Status.OK:
        return end_execution(x, S.CANCELED, STOPPED_TEXT, now, ReasonCode.CANCELED)
    if status in (Status.BUSY, Status.FAILED):  # too late, or there is nothing to abort
        return issue_request(x, DRIVERS[x.method].build_state_query(x), now)
    return wait_until(x, now + timeouts.RETRY_DELAY)


def _handle_state_response(
    x: ExecutionRecord, event: model.ResponseReceived, context: UpdateContext, now: int
) -> Decision:
    progress = (
        DRIVERS[x.method].parse_progress(event.value, context.spec, x) if event.status == Status.OK else None
    )
    if progress is None:
        return _query_later(replace(x, reason=describe_unreadable_response(event.status)), context, now)
    return handle_progress(x, progress, context, now, is_shared=event.is_shared)


def _query_later(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Send the query again later. Before the transfer has started, the delay grows with each try."""
    if x.state is not S.DISPATCHED or x.waiting == WAIT_CANCELING:
        return wait_until(x, now + max(timeouts.compute_poll_interval(context), timeouts.RETRY_DELAY))
    x = replace(x, tries=x.tries + 1)
    return wait_until(x, now + timeouts.compute_start_backoff(x))


def _handle_not_sent(
    x: ExecutionRecord, event: model.RequestNotSent, context: UpdateContext, now: int
) -> Decision:
    """Suspend the timers, because a request could not be sent, and try again later.

    A start command that was not sent does not count as a try.
    """
    if event.step in model.START_STEPS:
        x = replace(x, tries=max(x.tries - 1, 0))
    if _is_start_unsent(x, event.step):
        x = replace(x, step=UpdateStep.UNSENT)
    if context.spec.is_canceling and event.step in model.START_STEPS:
        return _handle_timer(x, context, now)
    return wait_until(suspend_timers(x, context, now), now + timeouts.RETRY_DELAY)


def _is_start_unsent(x: ExecutionRecord, step: UpdateStep) -> bool:
    """Return whether no start command was sent in this attempt."""
    if x.state is not S.DISPATCHED or x.tries or x.waiting == WAIT_CANCELING:
        return False
    if x.method is UpdateMethod.NORDIC_DFU:  # its tries are counted from DFU mode on
        return step is UpdateStep.ENTER_DFU
    # A broadcast member that queries the state does not know what other members have sent.
    return step is UpdateStep.START or (step is UpdateStep.STATE and x.batch is None)


def _handle_unanswered(
    x: ExecutionRecord, event: model.RequestUnanswered, context: UpdateContext, now: int
) -> Decision:
    """Query the state after a command without response, because the device may have executed the command."""
    if event.step is UpdateStep.START and x.state is S.DISPATCHED:
        return issue_request(x, DRIVERS[x.method].build_state_query(x), now)
    if event.step is UpdateStep.ENTER_DFU:  # if the command arrived, the device appears in DFU mode
        return wait_until(x, now + timeouts.DFU_MODE_TIMEOUT)
    return _query_later(x, context, now)
