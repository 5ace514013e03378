"""What becomes of an execution: a pure function of what it is, what happened, and the time.

Nothing is assumed that was not seen. A command whose fate is unclear is not sent again before the state was
read; an update is given up only after a last question, and clocks stand still while nothing can be asked; and
success needs the version, read back from the device, and good heartbeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import ExecutionState as S
from meshfleet.service.jobs.updates import confirmation, start, states, timeouts
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
    resume_clocks,
    suspend_clocks,
)
from meshfleet.service.jobs.updates.model import (
    START_STEPS,
    Decision,
    DeviceRemoved,
    DfuModeSeen,
    GatewayDisconnected,
    GatewayReconnected,
    HeartbeatReceived,
    RequestNotSent,
    RequestUnanswered,
    ResponseReceived,
    TimerDue,
    UpdateStep,
)
from meshfleet.service.jobs.updates.progress import handle_progress, query_device_state
from meshfleet.service.jobs.updates.reasons import STOPPED_TEXT, ReasonCode, describe_unreadable_response
from meshfleet.service.jobs.updates.version_check import advance_version_check, is_version_check

if TYPE_CHECKING:
    from meshfleet.service.jobs.updates.model import (
        ExecutionRecord,
        UpdateContext,
        UpdateEvent,
        UpdateRequest,
    )

_QUERY_STEPS: Final = frozenset(
    {UpdateStep.STATE, UpdateStep.DEVICE_STATE, UpdateStep.RECHECK_VERSION, UpdateStep.CONFIRM_VERSION}
)
"""Requests that change nothing."""


def advance_execution(x: ExecutionRecord, event: UpdateEvent, context: UpdateContext, now: int) -> Decision:  # noqa: C901, PLR0911 # one for each
    """Return what becomes of an active execution."""
    match event:
        case DeviceRemoved():
            return remove_execution(x, now)
        case _ if is_version_check(x):
            return advance_version_check(x, event, context, now)
        case TimerDue():
            return _handle_timer(_forget_lost_request(x), context, now)
        case HeartbeatReceived() if x.state is S.CONFIRMING:
            return confirmation.handle_heartbeat(resume_clocks(x, context, now), event, context, now)
        case HeartbeatReceived():
            return Decision(x)
        case DfuModeSeen():
            return _handle_dfu_mode(x, event, context, now)
        case GatewayDisconnected():
            return handle_gateway_disconnect(x, context, now)
        case GatewayReconnected():
            return _handle_gateway_reconnect(x, context, now)
        case ResponseReceived():
            x = resume_clocks(x, context, now)
            move = _handle_response(replace(x, ask=None, reason=_lasting_reason(x)), event, context, now)
            return _enforce_deadlines(x, move, context, now, decides=event.status == Status.OK)
        case RequestNotSent():
            return _handle_not_sent(replace(x, ask=None, reason=event.reason), event, context, now)
        case RequestUnanswered():
            x = x if event.is_connection_lost else resume_clocks(x, context, now)
            move = _handle_unanswered(replace(x, ask=None, reason=event.reason), event, context, now)
            return _enforce_deadlines(x, move, context, now, decides=False)


def _lasting_reason(x: ExecutionRecord) -> str | None:
    """Return what an answer does not take back: why the last start failed, or a bad heartbeat."""
    return x.reason if x.state in (S.DISPATCHED, S.CONFIRMING) else None


def _enforce_deadlines(
    x: ExecutionRecord, decision: Decision, context: UpdateContext, now: int, *, decides: bool
) -> Decision:
    """Hold a move that an answer led to against the clocks, and against a cancel.

    An answer that only leads to the next question outlives neither. The answer to the last question
    `decides`, if it tells anything: what it does not save is given up.
    """
    after = decision.execution
    if after.state is not x.state:
        return decision
    is_unwanted = (
        context.spec.is_canceling and x.state in states.CANCELABLE_STATES and x.waiting != WAIT_CANCELING
    )
    if decision.request is not None and is_unwanted:
        return _handle_timer(replace(after, ask=None), context, now)
    if not _has_expired(after, now):
        return decision._replace(execution=replace(after, final_until=None))
    if x.final_until is None:
        return decision if decision.request is None else _handle_timer(replace(after, ask=None), context, now)
    if decision.request is not None:
        return decision if decision.request.step in _QUERY_STEPS else _time_out(after, context, now)
    return _time_out(after, context, now) if decides else decision


def _has_expired(x: ExecutionRecord, now: int) -> bool:
    return x.suspended_at is None and any(now >= each for each in list_deadlines(x))


def _forget_lost_request(x: ExecutionRecord) -> ExecutionRecord:
    """Nobody told what became of its request: then a command is not sent again without a look."""
    if x.ask is None:
        return x
    return replace(x, ask=None, step=UpdateStep.STATE if x.step is UpdateStep.START else x.step)


def _handle_timer(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """A clock may have run out; if not, something is to be asked."""
    if context.spec.is_canceling and x.state in states.CANCELABLE_STATES:
        x = resume_clocks(x, context, now)
        move = cancel_execution(x, context, now)
        if move.execution.state is not x.state or not is_past_abort(x):
            return move
        x = move.execution
    if x.suspended_at is not None:
        return _handle_timer_suspended(x, context, now)
    return _send_last_query(x, context, now) if _has_expired(x, now) else _send_next_request(x, context, now)


def _handle_timer_suspended(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Ask again whether something can be sent by now; a gateway that is away is waited for."""
    until = find_suspension_end(x, context)
    if now >= until or (x.state is S.STAGED and not may_apply(context)):
        return _handle_timer(resume_clocks(x, context, now), context, now)
    return (
        Decision(replace(x, due=until))
        if x.waiting == WAIT_GATEWAY_OFFLINE
        else _send_next_request(x, context, now)
    )


def _handle_gateway_reconnect(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Ask the device first: it may have finished meanwhile."""
    x = resume_clocks(x, context, now)
    return Decision(x) if x.ask is not None else _handle_timer(x, context, now)


def _send_last_query(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Ask one last question before an update is given up whose clock ran out (firmware-40)."""
    if not _is_worth_querying(x, context):
        return _time_out(x, context, now)
    if x.final_until is None:
        x = replace(x, final_until=now + timeouts.LAST_QUERY_TIMEOUT)
    elif now >= x.final_until:
        return _time_out(x, context, now)
    return issue_request(x, _build_last_query(x), now)


def _is_worth_querying(x: ExecutionRecord, context: UpdateContext) -> bool:
    """Return whether an answer could change anything."""
    match x.state:
        case S.DISPATCHED:
            return x.step is not UpdateStep.UNSENT
        case S.STAGED:
            return may_apply(context)
        case S.CONFIRMING:  # after the version was read, only heartbeats could help
            return not x.is_read or x.beats >= context.spec.heartbeats
        case _:
            return True


def _build_last_query(x: ExecutionRecord) -> UpdateRequest:
    """Ask each device of a broadcast for itself, and one that was to go into DFU mode for its version."""
    if x.state is S.CONFIRMING:
        return build_version_query(UpdateStep.CONFIRM_VERSION)
    if x.step in (UpdateStep.RECHECK_VERSION, UpdateStep.ENTER_DFU):
        return build_version_query(UpdateStep.RECHECK_VERSION)
    own = replace(x, step=UpdateStep.DEVICE_STATE) if x.method is UpdateMethod.BROADCAST else x
    return DRIVERS[x.method].build_state_query(own)


def _time_out(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """End an execution whose clock ran out."""
    if x.total_until is not None and now >= x.total_until and x.state is not S.STAGED:
        cause = "the update took longer than it may"
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
    """Add why the last question brought nothing, if it is known."""
    return f"{cause}; the last question: {x.reason}" if x.reason else cause


def _time_out_state(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """The clock of its state ran out."""
    match x.state:
        case S.DISPATCHED:
            return start.give_up_start(x, context, now)
        case S.STAGED if may_apply(context):
            cause = _with_reason("the device did not start what it has got", x)
            return time_out_execution(x, ReasonCode.NOT_APPLIED, cause, context, now)
        case S.STAGED:
            return time_out_execution(
                x, ReasonCode.NOT_STAGED, "nobody installed what the device has got", context, now
            )
        case S.APPLYING:
            cause = _with_reason("the device did not come back with the new version", x)
            return time_out_execution(x, ReasonCode.NOT_APPLIED, cause, context, now)
        case S.CONFIRMING:
            return end_execution(
                x, S.FAILED, confirmation.describe_missing_proof(x, context), now, ReasonCode.NOT_CONFIRMED
            )
        case _:
            cause = _with_reason(f"nothing has moved for too long, at {x.progress} %", x)
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


def _handle_dfu_mode(x: ExecutionRecord, event: DfuModeSeen, context: UpdateContext, now: int) -> Decision:
    """The device waits for its image: begin, unless that was done already."""
    if (
        x.state is not S.DISPATCHED
        or x.step not in (UpdateStep.ENTER_DFU, UpdateStep.RECHECK_VERSION)
        or x.ask is not None
    ):
        return Decision(x)
    if context.spec.is_canceling:
        return cancel_execution(x, context, now)
    if not event.has_free_slot:
        return _wait_for_slot(x, now)
    # Only who hears it can send to it.
    x = resume_clocks(x, context, now)
    heard = replace(x, step=UpdateStep.START, gateway=event.gateway or x.gateway)
    if x.step is UpdateStep.ENTER_DFU:
        heard = replace(heard, tries=0)
    return start.resend_first_command(heard, context, now)._replace(is_evidence=True)


def _wait_for_slot(x: ExecutionRecord, now: int) -> Decision:
    """It is not sent into DFU mode again while it is there."""
    if x.due - now > timeouts.DFU_MODE_TIMEOUT // 2:
        return Decision(x)
    return wait_until(replace(x, reason="the gateway that hears it is busy"), now + timeouts.DFU_MODE_TIMEOUT)


def _handle_response(  # noqa: PLR0911 # one for each step
    x: ExecutionRecord, event: ResponseReceived, context: UpdateContext, now: int
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
    x: ExecutionRecord, event: ResponseReceived, context: UpdateContext, now: int
) -> Decision:
    """Whether the device has the version already."""
    version = parse_version(event.value) if event.status == Status.OK else None
    if version is None:  # all that is known says that it does: it is not updated again for want of an answer
        return _query_later(replace(x, reason=describe_unreadable_response(event.status)), context, now)
    if version == context.spec.version:
        return enter_state(x, S.CONFIRMING, f"the device runs {version} already", context, now)
    if x.state is S.TRANSFERRING and x.progress == 0:
        cause = "the device accepted the start, and is idle with nothing of the image"
        return time_out_execution(x, ReasonCode.NOT_STARTED, cause, context, now)
    if x.state is not S.DISPATCHED:
        cause = f"the device has lost what it had got, {x.progress} % of the image"
        return fail_execution(x, ReasonCode.TRANSFER_LOST, cause, context, now)
    return start.start_checked_device(x, context, now)


def _handle_apply_response(
    x: ExecutionRecord, event: ResponseReceived, context: UpdateContext, now: int
) -> Decision:
    if event.status == Status.OK and x.state is S.STAGED:
        return enter_state(x, S.APPLYING, "the device was told to start the new version", context, now)
    if event.status == Status.OK:  # it was told by itself
        return wait_until(replace(x, step=UpdateStep.DEVICE_STATE), now + timeouts.APPLY_RETRY_DELAY)
    if event.is_shared:
        return query_device_state(x, context, now)
    return issue_request(
        x, DRIVERS[x.method].build_state_query(x), now
    )  # it may do so already, or have forgotten


def _handle_abort_response(x: ExecutionRecord, status: int, now: int) -> Decision:
    if status == Status.OK:
        return end_execution(x, S.CANCELED, STOPPED_TEXT, now, ReasonCode.CANCELED)
    if status in (Status.BUSY, Status.FAILED):  # it is too late, or there is nothing to abort, or no longer
        return issue_request(x, DRIVERS[x.method].build_state_query(x), now)
    return wait_until(x, now + timeouts.RETRY_DELAY)


def _handle_state_response(
    x: ExecutionRecord, event: ResponseReceived, context: UpdateContext, now: int
) -> Decision:
    told = (
        DRIVERS[x.method].parse_progress(event.value, context.spec, x) if event.status == Status.OK else None
    )
    if told is None:
        return _query_later(replace(x, reason=describe_unreadable_response(event.status)), context, now)
    return handle_progress(x, told, context, now, is_shared=event.is_shared)


def _query_later(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Ask again later how far it is. Tries to begin are further apart each time."""
    if x.state is not S.DISPATCHED or x.waiting == WAIT_CANCELING:
        return wait_until(x, now + max(timeouts.compute_poll_interval(context), timeouts.RETRY_DELAY))
    x = replace(x, tries=x.tries + 1)
    return wait_until(x, now + timeouts.compute_start_backoff(x))


def _handle_not_sent(x: ExecutionRecord, event: RequestNotSent, context: UpdateContext, now: int) -> Decision:
    """Stop the clocks until something can be sent again: a try that did not leave is none."""
    if event.step in START_STEPS:
        x = replace(x, tries=max(x.tries - 1, 0))
    if _is_start_unsent(x, event.step):
        x = replace(x, step=UpdateStep.UNSENT)
    if context.spec.is_canceling and event.step in START_STEPS:
        return _handle_timer(x, context, now)
    return wait_until(suspend_clocks(x, context, now), now + timeouts.RETRY_DELAY)


def _is_start_unsent(x: ExecutionRecord, step: UpdateStep) -> bool:
    """Return whether no command that begins the update has left in this attempt."""
    if x.state is not S.DISPATCHED or x.tries or x.waiting == WAIT_CANCELING:
        return False
    if x.method is UpdateMethod.NORDIC_DFU:  # which counts its tries from the DFU mode on
        return step is UpdateStep.ENTER_DFU
    # One of a broadcast that asks for the state does not know what the others have sent.
    return step is UpdateStep.START or (step is UpdateStep.STATE and x.batch is None)


def _handle_unanswered(
    x: ExecutionRecord, event: RequestUnanswered, context: UpdateContext, now: int
) -> Decision:
    """Look before anything is done again: it is not known what was carried out."""
    if event.step is UpdateStep.START and x.state is S.DISPATCHED:
        return issue_request(x, DRIVERS[x.method].build_state_query(x), now)
    if event.step is UpdateStep.ENTER_DFU:  # if it has come through, the device shows up
        return wait_until(x, now + timeouts.DFU_MODE_TIMEOUT)
    return _query_later(x, context, now)
