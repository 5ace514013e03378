"""State machine of an update: a pure function of the execution, an event, and the time.

A command whose result is unknown is not sent again before the device state was read. An update is given up
only after a last query to the device. Timers are suspended while no request can be sent. An update succeeds
if the new version was read from the device and good heartbeats arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.updates import confirmation, model, start, states, timeouts
from meshfleet.service.jobs.updates.decisions import (
    WAIT_CANCELING,
    apply_staged_image,
    cancel_execution,
    end_execution,
    enter_state,
    fail_execution,
    is_abort_impossible,
    issue_request,
    list_deadlines,
    may_apply_staged_image,
    remove_execution,
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
"""Steps whose request only reads from the device or gateway."""


def advance_execution(  # noqa: C901, PLR0911 # one case per event
    execution: ExecutionRecord, event: UpdateEvent, context: UpdateContext, now: int
) -> Decision:
    """Return what follows from an event of an active execution: its changes, and requests to send."""
    match event:
        case model.DeviceRemoved():
            return remove_execution(execution, now)
        case _ if is_version_check(execution):
            return advance_version_check(execution, event, context, now)
        case model.TimerDue():
            return _handle_timer(_discard_lost_request(execution), context, now)
        case model.HeartbeatReceived() if execution.state is ExecutionState.CONFIRMING:
            return confirmation.handle_heartbeat(resume_timers(execution, context, now), event, context, now)
        case model.HeartbeatReceived():
            return Decision(execution)
        case model.DfuModeSeen():
            return _handle_dfu_mode(execution, event, context, now)
        case model.GatewayDisconnected():
            return handle_gateway_disconnect(execution, context, now)
        case model.GatewayReconnected():
            return _handle_gateway_reconnect(execution, context, now)
        case model.ResponseReceived():
            execution = resume_timers(execution, context, now)
            decision = _handle_response(
                replace(execution, pending_request=None, reason=_find_lasting_reason(execution)),
                event,
                context,
                now,
            )
            return _enforce_deadlines(
                execution, decision, context, now, is_conclusive=event.status == Status.OK
            )
        case model.RequestNotSent():
            return _handle_not_sent(
                replace(execution, pending_request=None, reason=event.reason), event, context, now
            )
        case model.RequestUnanswered():
            execution = execution if event.is_connection_lost else resume_timers(execution, context, now)
            decision = _handle_unanswered(
                replace(execution, pending_request=None, reason=event.reason), event, context, now
            )
            return _enforce_deadlines(execution, decision, context, now, is_conclusive=False)


def _find_lasting_reason(execution: ExecutionRecord) -> str | None:
    """Return the stored reason if it still applies after a response: a failed start or a bad heartbeat."""
    return (
        execution.reason
        if execution.state in (ExecutionState.DISPATCHED, ExecutionState.CONFIRMING)
        else None
    )


def _enforce_deadlines(
    execution: ExecutionRecord, decision: Decision, context: UpdateContext, now: int, *, is_conclusive: bool
) -> Decision:
    """Replace a decision to stay in a state if a deadline has passed or the job is being canceled.

    After a deadline a last query is sent, and `final_until` is set. The execution ends if the response to the
    last query has status OK (`is_conclusive`) and leads to no new state.
    """
    after = decision.execution
    if after.state is not execution.state:
        return decision
    must_cancel = (
        context.spec.is_canceling
        and execution.state in states.CANCELABLE_STATES
        and execution.waiting != WAIT_CANCELING
    )
    if decision.request is not None and must_cancel:
        return _handle_timer(replace(after, pending_request=None), context, now)
    if not _has_expired(after, now):
        return decision._replace(execution=replace(after, final_until=None))
    if execution.final_until is None:
        return (
            decision
            if decision.request is None
            else _handle_timer(replace(after, pending_request=None), context, now)
        )
    if decision.request is not None:
        return decision if decision.request.step in _QUERY_STEPS else _time_out_update(after, context, now)
    return _time_out_update(after, context, now) if is_conclusive else decision


def _has_expired(execution: ExecutionRecord, now: int) -> bool:
    """Return whether a deadline of an execution has passed; False while its timers are suspended."""
    return execution.suspended_at is None and any(now >= each for each in list_deadlines(execution))


def _discard_lost_request(execution: ExecutionRecord) -> ExecutionRecord:
    """Discard a request whose result was lost. After a lost start command, the state is queried next."""
    if execution.pending_request is None:
        return execution
    return replace(
        execution,
        pending_request=None,
        step=UpdateStep.STATE if execution.step is UpdateStep.START else execution.step,
    )


def _handle_timer(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Advance an execution whose timer is due.

    Cancel the execution if its job is being canceled and the update can still be aborted. Otherwise send the
    last query if a deadline has passed, or else the next request. While the timers are suspended, no deadline
    passes. While the gateway is disconnected, only wait until the suspension ends.
    """
    if context.spec.is_canceling and execution.state in states.CANCELABLE_STATES:
        execution = resume_timers(execution, context, now)
        decision = cancel_execution(execution, context, now)
        if decision.execution.state is not execution.state or not is_abort_impossible(execution):
            return decision
        execution = decision.execution
    if execution.suspended_at is not None:
        return _handle_timer_while_suspended(execution, context, now)
    return (
        _send_last_query(execution, context, now)
        if _has_expired(execution, now)
        else _send_next_request(execution, context, now)
    )


def _handle_timer_while_suspended(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Send the next request although the timers are suspended; wait if the gateway is disconnected.

    At the end of the maximum suspension, resume the timers.
    """
    until = find_suspension_end(execution, context)
    if now >= until or (execution.state is ExecutionState.STAGED and not may_apply_staged_image(context)):
        return _handle_timer(resume_timers(execution, context, now), context, now)
    return (
        Decision(replace(execution, due=until))
        if execution.waiting == WAIT_GATEWAY_OFFLINE
        else _send_next_request(execution, context, now)
    )


def _handle_gateway_reconnect(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Resume the timers and send the next request, because the device may have finished the update."""
    execution = resume_timers(execution, context, now)
    return (
        Decision(execution)
        if execution.pending_request is not None
        else _handle_timer(execution, context, now)
    )


def _send_last_query(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Send a last query to the device before an update that missed its deadline is given up (firmware-40)."""
    if not _is_worth_querying(execution, context):
        return _time_out_update(execution, context, now)
    if execution.final_until is None:
        execution = replace(execution, final_until=now + timeouts.LAST_QUERY_TIMEOUT)
    elif now >= execution.final_until:
        return _time_out_update(execution, context, now)
    return issue_request(execution, _build_last_query(execution), now)


def _is_worth_querying(execution: ExecutionRecord, context: UpdateContext) -> bool:
    """Return whether the response to a last query could change the outcome of the update."""
    match execution.state:
        case ExecutionState.DISPATCHED:
            return execution.step is not UpdateStep.UNSENT
        case ExecutionState.STAGED:
            return may_apply_staged_image(context)
        case ExecutionState.CONFIRMING:  # once the version was read, only heartbeats can help
            return not execution.is_read or execution.beats >= context.spec.heartbeats
        case _:
            return True


def _build_last_query(execution: ExecutionRecord) -> model.UpdateRequest:
    """Build the last query to a device, which reads its version or update state, also in a broadcast."""
    if execution.state is ExecutionState.CONFIRMING:
        return build_version_query(UpdateStep.CONFIRM_VERSION)
    if execution.step in (UpdateStep.RECHECK_VERSION, UpdateStep.ENTER_DFU):
        return build_version_query(UpdateStep.RECHECK_VERSION)
    queried = (
        replace(execution, step=UpdateStep.DEVICE_STATE)
        if execution.method is UpdateMethod.BROADCAST
        else execution
    )
    return DRIVERS[execution.method].build_state_query(queried)


def _time_out_update(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """End or retry an update that missed its total timeout or the timeout of its state."""
    if (
        execution.total_until is not None
        and now >= execution.total_until
        and execution.state is not ExecutionState.STAGED
    ):
        cause = "the update exceeded its total timeout"
        if execution.state is ExecutionState.CONFIRMING:
            return time_out_execution(
                execution,
                ReasonCode.TOO_LONG,
                f"{cause}: {confirmation.describe_missing_confirmation(execution, context)}",
                context,
                now,
            )
        return time_out_execution(
            execution, ReasonCode.TOO_LONG, _add_last_error(cause, execution), context, now
        )
    return _time_out_state(execution, context, now)


def _add_last_error(cause: str, execution: ExecutionRecord) -> str:
    """Return `cause`, followed by the error of the last query if there was an error."""
    return f"{cause}; last query: {execution.reason}" if execution.reason else cause


def _time_out_state(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """End or retry an update that missed the timeout of its state."""
    match execution.state:
        case ExecutionState.DISPATCHED:
            return start.give_up_start(execution, context, now)
        case ExecutionState.STAGED if may_apply_staged_image(context):
            cause = _add_last_error("the device did not start the staged image", execution)
            return time_out_execution(execution, ReasonCode.NOT_APPLIED, cause, context, now)
        case ExecutionState.STAGED:
            return time_out_execution(
                execution, ReasonCode.NOT_STAGED, "the staged image was not applied in time", context, now
            )
        case ExecutionState.APPLYING:
            cause = _add_last_error("the device did not return with the new version", execution)
            return time_out_execution(execution, ReasonCode.NOT_APPLIED, cause, context, now)
        case ExecutionState.CONFIRMING:
            return end_execution(
                execution,
                ExecutionState.FAILED,
                confirmation.describe_missing_confirmation(execution, context),
                now,
                ReasonCode.NOT_CONFIRMED,
            )
        case _:
            cause = _add_last_error(f"no progress for too long, at {execution.progress} %", execution)
            return time_out_execution(execution, ReasonCode.STALLED, cause, context, now)


def _send_next_request(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Send the next request in the current state, or wait if there is nothing to send."""
    match execution.state:
        case ExecutionState.DISPATCHED:
            return start.continue_start(execution, context, now)
        case ExecutionState.STAGED if execution.step is not UpdateStep.DEVICE_STATE:
            return apply_staged_image(execution, context, now)
        case ExecutionState.TRANSFERRING if (
            execution.step is not UpdateStep.DEVICE_STATE and not context.is_batch_leader(execution.device)
        ):
            return wait_until(execution, now + timeouts.BATCH_MEMBER_DELAY)
        case ExecutionState.CONFIRMING:
            return confirmation.continue_confirmation(execution, context, now)
        case _:
            return issue_request(execution, DRIVERS[execution.method].build_state_query(execution), now)


def _handle_dfu_mode(
    execution: ExecutionRecord, event: model.DfuModeSeen, context: UpdateContext, now: int
) -> Decision:
    """Start the transfer to a device that was received in DFU mode, unless the transfer already runs."""
    if (
        execution.state is not ExecutionState.DISPATCHED
        or execution.step not in (UpdateStep.ENTER_DFU, UpdateStep.RECHECK_VERSION)
        or execution.pending_request is not None
    ):
        return Decision(execution)
    if context.spec.is_canceling:
        return cancel_execution(execution, context, now)
    if not event.has_free_slot:
        return _wait_for_slot(execution, now)
    # Only a gateway that receives the device can send to it.
    execution = resume_timers(execution, context, now)
    started = replace(execution, step=UpdateStep.START, gateway=event.gateway or execution.gateway)
    if execution.step is UpdateStep.ENTER_DFU:
        started = replace(started, tries=0)
    return start.resend_first_command(started, context, now)._replace(is_evidence=True)


def _wait_for_slot(execution: ExecutionRecord, now: int) -> Decision:
    """Wait for a free slot of the gateway that receives the device, which stays in DFU mode."""
    if execution.due - now > timeouts.DFU_MODE_TIMEOUT // 2:
        return Decision(execution)
    return wait_until(
        replace(execution, reason="the gateway that receives the device is busy"),
        now + timeouts.DFU_MODE_TIMEOUT,
    )


def _handle_response(  # noqa: PLR0911 # one case per step
    execution: ExecutionRecord, event: model.ResponseReceived, context: UpdateContext, now: int
) -> Decision:
    """Handle the response to a request, by the step of the update for which the request was sent."""
    match event.step:
        case UpdateStep.RECHECK_VERSION:
            return _handle_recheck_response(execution, event, context, now)
        case UpdateStep.ENTER_DFU:
            return start.handle_dfu_response(execution, event.status, now)
        case UpdateStep.START:
            return start.handle_start_response(
                execution, event.status, context, now, is_batch_response=event.is_batch_response
            )
        case UpdateStep.APPLY:
            return _handle_apply_response(execution, event, context, now)
        case UpdateStep.ABORT:
            return _handle_abort_response(execution, event.status, now)
        case UpdateStep.CONFIRM_VERSION:
            return confirmation.handle_version_response(execution, event.status, event.value, context, now)
        case _:
            return _handle_state_response(execution, event, context, now)


def _handle_recheck_response(
    execution: ExecutionRecord, event: model.ResponseReceived, context: UpdateContext, now: int
) -> Decision:
    """Handle the response to a version query that was sent because the device may run the new version."""
    version = parse_version(event.value) if event.status == Status.OK else None
    if version is None:  # the device may run the new version: do not update it again without knowing
        return _query_later(
            replace(execution, reason=describe_unreadable_response(event.status)), context, now
        )
    if version == context.spec.version:
        return enter_state(
            execution, ExecutionState.CONFIRMING, f"the device already runs {version}", context, now
        )
    if execution.state is ExecutionState.TRANSFERRING and execution.progress == 0:
        cause = "the device accepted the start, but is idle and has received nothing of the image"
        return time_out_execution(execution, ReasonCode.NOT_STARTED, cause, context, now)
    if execution.state is not ExecutionState.DISPATCHED:
        cause = f"the device has lost the {execution.progress} % of the image that it had received"
        return fail_execution(execution, ReasonCode.TRANSFER_LOST, cause, context, now)
    return start.start_checked_device(execution, context, now)


def _handle_apply_response(
    execution: ExecutionRecord, event: model.ResponseReceived, context: UpdateContext, now: int
) -> Decision:
    """Handle the response to the command that starts the staged image."""
    if event.status == Status.OK and execution.state is ExecutionState.STAGED:
        return enter_state(
            execution,
            ExecutionState.APPLYING,
            "the command to start the new version was accepted",
            context,
            now,
        )
    if event.status == Status.OK:  # the command was sent to this device of a broadcast alone
        return wait_until(replace(execution, step=UpdateStep.DEVICE_STATE), now + timeouts.APPLY_RETRY_DELAY)
    if event.is_batch_response:
        return query_device_state(execution, context, now)
    # The device may be starting the image already, or may have lost it.
    return issue_request(execution, DRIVERS[execution.method].build_state_query(execution), now)


def _handle_abort_response(execution: ExecutionRecord, status: int, now: int) -> Decision:
    """Handle the response to an abort command: end as CANCELED, query the state, or retry."""
    if status == Status.OK:
        return end_execution(execution, ExecutionState.CANCELED, STOPPED_TEXT, now, ReasonCode.CANCELED)
    if status in (Status.BUSY, Status.FAILED):  # too late, or there is nothing to abort
        return issue_request(execution, DRIVERS[execution.method].build_state_query(execution), now)
    return wait_until(execution, now + timeouts.RETRY_DELAY)


def _handle_state_response(
    execution: ExecutionRecord, event: model.ResponseReceived, context: UpdateContext, now: int
) -> Decision:
    """Handle the response to a state query."""
    progress = (
        DRIVERS[execution.method].parse_progress(event.value, context.spec, execution)
        if event.status == Status.OK
        else None
    )
    if progress is None:
        return _query_later(
            replace(execution, reason=describe_unreadable_response(event.status)), context, now
        )
    return handle_progress(execution, progress, context, now, is_batch_response=event.is_batch_response)


def _query_later(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Send a failed query again later. Before the transfer has started, the delay grows with each try.

    A last query is repeated without a growing delay, because the update is given up soon.
    """
    if execution.final_until is not None:
        return wait_until(execution, now + timeouts.RETRY_DELAY)
    if execution.state is not ExecutionState.DISPATCHED or execution.waiting == WAIT_CANCELING:
        return wait_until(execution, now + max(timeouts.compute_poll_interval(context), timeouts.RETRY_DELAY))
    execution = replace(execution, tries=execution.tries + 1)
    return wait_until(execution, now + timeouts.compute_start_backoff(execution))


def _handle_not_sent(
    execution: ExecutionRecord, event: model.RequestNotSent, context: UpdateContext, now: int
) -> Decision:
    """Suspend the timers because a request could not be sent, and send the request again later.

    A start command that was not sent does not count as a try.
    """
    if event.step in model.START_STEPS:
        execution = replace(execution, tries=max(execution.tries - 1, 0))
    if _is_start_unsent(execution, event.step):
        execution = replace(execution, step=UpdateStep.UNSENT)
    if context.spec.is_canceling and event.step in model.START_STEPS:
        return _handle_timer(execution, context, now)
    return wait_until(suspend_timers(execution, context, now), now + timeouts.RETRY_DELAY)


def _is_start_unsent(execution: ExecutionRecord, step: UpdateStep) -> bool:
    """Return whether no start command was sent in the current attempt."""
    if (
        execution.state is not ExecutionState.DISPATCHED
        or execution.tries
        or execution.waiting == WAIT_CANCELING
    ):
        return False
    if execution.method is UpdateMethod.NORDIC_DFU:  # its tries are counted from DFU mode on
        return step is UpdateStep.ENTER_DFU
    # A broadcast member that queries the state does not know what other members have sent.
    return step is UpdateStep.START or (step is UpdateStep.STATE and execution.batch is None)


def _handle_unanswered(
    execution: ExecutionRecord, event: model.RequestUnanswered, context: UpdateContext, now: int
) -> Decision:
    """Query the state after a command without response, because the device may have executed the command."""
    if event.step is UpdateStep.START and execution.state is ExecutionState.DISPATCHED:
        return issue_request(execution, DRIVERS[execution.method].build_state_query(execution), now)
    if event.step is UpdateStep.ENTER_DFU:  # if the command arrived, the device appears in DFU mode
        return wait_until(execution, now + timeouts.DFU_MODE_TIMEOUT)
    return _query_later(execution, context, now)
