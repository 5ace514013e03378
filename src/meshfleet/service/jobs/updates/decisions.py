"""How an execution ends, or begins again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import ExecutionState as S
from meshfleet.rest import StopCause
from meshfleet.service.jobs.updates import states, timeouts
from meshfleet.service.jobs.updates.drivers import DRIVERS, DownloadDriver, build_version_query
from meshfleet.service.jobs.updates.model import Decision, UpdateStep
from meshfleet.service.jobs.updates.reasons import (
    REJECTION_CODES,
    RETRYABLE_CODES,
    STOP_CAUSE_TEXTS,
    ReasonCode,
)

if TYPE_CHECKING:
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext, UpdateRequest, UpdateSpec


# How an execution enters a state: its clock, and what is asked first.


def issue_request(x: ExecutionRecord, request: UpdateRequest, now: int, cause: str = "") -> Decision:
    """Let something be asked for it. If nobody tells what came of that, we look again."""
    until = now + timeouts.LOST_REQUEST_TIMEOUT
    if x.final_until is not None:
        until = min(until, x.final_until)
    return Decision(replace(x, step=request.step, due=until), cause, request)


def wait_until(x: ExecutionRecord, until: int) -> Decision:
    """Look again at a time, or when its clock runs out before. Clocks that stand still do not run out."""
    if x.suspended_at is not None:
        return Decision(replace(x, due=until))
    ends = list_deadlines(x) if x.final_until is None else (x.final_until,)
    return Decision(replace(x, due=min(until, *ends)))


def list_deadlines(x: ExecutionRecord) -> tuple[int, ...]:
    """Return when the clocks of an execution run out: that of its state, and that of the whole update."""
    ends = (x.expires, None if x.state is S.STAGED else x.total_until)
    return tuple(each for each in ends if each is not None)


def enter_state(x: ExecutionRecord, state: S, cause: str, context: UpdateContext, now: int) -> Decision:
    """Go on to the next state of an update."""
    states.check_execution_transition(x.state, state)
    left_stage = x.state is S.STAGED and x.total_until is not None
    x = replace(
        x,
        state=state,
        moved_at=now,
        expires=now + _find_state_timeout(state, context),
        waiting=None,
        reason=None,
        final_until=None,
    )
    if left_stage:  # what the device waited for people does not count
        rest = timeouts.APPLY_TIMEOUT + timeouts.compute_confirm_timeout(context)
        x = replace(x, total_until=max(x.total_until or 0, now + rest))
    move = _decide_on_entry(x, context, now)
    return move._replace(cause=cause, is_evidence=True)


def _find_state_timeout(state: S, context: UpdateContext) -> int:
    match state:
        case S.STAGED:
            return context.spec.queue_timeout
        case S.APPLYING:
            return timeouts.APPLY_TIMEOUT
        case S.CONFIRMING:
            return timeouts.compute_confirm_timeout(context)
        case _:
            return context.spec.step_timeout


def _decide_on_entry(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """What to do at the beginning of a state."""
    match x.state:
        case S.TRANSFERRING:
            asks_later = 0 if context.is_batch_leader(x.device) else timeouts.BATCH_MEMBER_DELAY
            return wait_until(x, now + timeouts.compute_poll_interval(context) + asks_later)
        case S.STAGED:
            return request_apply(replace(x, step=None), context, now)
        case S.CONFIRMING:
            x = replace(x, progress=100, beat_at=context.beat_at, beats=0, is_read=False, step=None)
            if context.spec.heartbeats:
                return wait_until(x, now + timeouts.LOST_REQUEST_TIMEOUT)
            return issue_request(x, build_version_query(UpdateStep.CONFIRM_VERSION), now)
        case _:
            return wait_until(replace(x, progress=100), now + timeouts.STATE_QUERY_DELAY)


def request_apply(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Let the device start what it has staged, if it may."""
    ask = DRIVERS[x.method].build_apply()
    x = replace(x, progress=100)
    if ask is None or not may_apply(context):
        return wait_until(x, now + context.spec.queue_timeout)
    until = now + timeouts.APPLY_TIMEOUT  # from the first time that it is told so
    x = replace(x, expires=until if x.expires is None else min(x.expires, until))
    if context.is_batch_leader(x.device):
        return issue_request(x, ask, now)
    return wait_until(
        replace(x, step=ask.step), now + timeouts.APPLY_RETRY_DELAY
    )  # it hears what comes of it


def may_apply(context: UpdateContext) -> bool:
    """Whether devices may start what they have."""
    return not context.spec.is_canceling and (context.spec.is_applied or not context.spec.stage)


WAIT_CANCELING: Final = "canceling"
"""What an execution waits for that is to be taken back."""


def end_execution(
    x: ExecutionRecord, state: S, cause: str, now: int, code: ReasonCode | None = None
) -> Decision:
    """End, for good."""
    states.check_execution_transition(x.state, state)
    succeeded = state is S.SUCCEEDED
    x = replace(
        x,
        state=state,
        code=code,
        reason=None if succeeded else cause,
        due=now,
        waiting=None,
        expires=None,
        ask=None,
        step=None,
        suspended_at=None,
        final_until=None,
    )
    return Decision(x, cause, is_evidence=True)


def fail_execution(
    x: ExecutionRecord, code: ReasonCode, cause: str, context: UpdateContext, now: int
) -> Decision:
    """The update failed, or was refused; what may go better another time is tried again."""
    if context.spec.is_canceling and S.CANCELED in states.EXECUTION_TRANSITIONS[x.state]:
        return end_execution(x, S.CANCELED, cause, now, ReasonCode.CANCELED)
    if code in REJECTION_CODES and S.REJECTED in states.EXECUTION_TRANSITIONS[x.state]:
        return end_execution(x, S.REJECTED, cause, now, code)
    return _retry_or_end(S.FAILED, x, code, cause, context=context, now=now)


def time_out_execution(
    x: ExecutionRecord, code: ReasonCode, cause: str, context: UpdateContext, now: int
) -> Decision:
    """A clock ran out. The device is told not to go on, as long as that can be."""
    parting = _build_final_abort(x)
    move = _retry_or_end(S.TIMED_OUT, x, code, cause, context=context, now=now)
    return move._replace(abort_request=parting)


def remove_execution(x: ExecutionRecord, now: int) -> Decision:
    """Nobody knows the device any more. If it is on its way, it is told not to go on."""
    move = end_execution(x, S.REMOVED, "the device was removed from the registry", now, ReasonCode.REMOVED)
    return move._replace(abort_request=_build_final_abort(x))


def reject_execution(x: ExecutionRecord, cause: str, now: int) -> Decision:
    """Device or gateway does not do what it was told, and would not another time."""
    return end_execution(x, S.REJECTED, cause, now, ReasonCode.REFUSED)


def cancel_execution(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Take the update back, if the device has not got too far: else the outcome is awaited (I11)."""
    ask = DRIVERS[x.method].build_abort()
    if (cause := _explain_nothing_to_abort(x)) is not None:
        return end_execution(x, S.CANCELED, cause, now, ReasonCode.CANCELED)
    if ask is None:
        return Decision(replace(x, waiting=WAIT_CANCELING))
    if x.waiting != WAIT_CANCELING:
        x = replace(x, waiting=WAIT_CANCELING, expires=now + timeouts.CANCEL_TIMEOUT)
    elif x.expires is not None and now >= x.expires:
        cause = "canceled without an answer; the device may still go on with what it has"
        return end_execution(x, S.CANCELED, cause, now, ReasonCode.CANCELED)
    if is_past_abort(x):
        return Decision(x)
    return (
        issue_request(x, ask, now)
        if context.is_batch_leader(x.device)
        else wait_until(x, now + timeouts.RETRY_DELAY)
    )


def _explain_nothing_to_abort(x: ExecutionRecord) -> str | None:
    """Return why there is nothing to take back; None: there is."""
    if x.step is UpdateStep.UNSENT:
        return "canceled before the first command was sent"
    cause = "canceled before the transfer began"
    if x.step is UpdateStep.BUSY_ELSEWHERE or _only_read_version(x):
        return cause
    if x.method is not UpdateMethod.NORDIC_DFU or x.state is not S.DISPATCHED:
        return None
    if x.step is UpdateStep.ENTER_DFU:
        return f"{cause}; a device in DFU mode comes back by itself"
    return cause if x.step is UpdateStep.RECHECK_VERSION else None


def _only_read_version(x: ExecutionRecord) -> bool:
    """Return whether only the version was asked for in this attempt, of a device that takes part alone."""
    return (
        x.state is S.DISPATCHED and x.step is UpdateStep.RECHECK_VERSION and not x.tries and x.batch is None
    )


def add_stop_cause(decision: Decision, spec: UpdateSpec) -> Decision:
    """Let an execution that ended with its job say why the job did, unless a user canceled it."""
    x = decision.execution
    if x.state is not S.CANCELED or spec.stop_cause in (None, StopCause.USER):
        return decision
    cause = f"{STOP_CAUSE_TEXTS[spec.stop_cause]}: {decision.cause}"
    return decision._replace(execution=replace(x, reason=cause), cause=cause)


def cancel_idle_execution(x: ExecutionRecord, now: int) -> Decision:
    """It is canceled, and there is nothing to take back."""
    return end_execution(x, S.CANCELED, "canceled when nothing was under way", now, ReasonCode.CANCELED)


def is_past_abort(x: ExecutionRecord) -> bool:
    """Whether nobody can take it back, so that it is followed to its end."""
    if DRIVERS[x.method].build_abort() is None:
        return True
    # The broadcast is over, or never began: the device is asked, and the gateway is not told again.
    own = (
        (UpdateStep.DEVICE_STATE, UpdateStep.RECHECK_VERSION)
        if x.batch is not None
        else (UpdateStep.DEVICE_STATE,)
    )
    return x.step in own and x.state in (S.DISPATCHED, S.TRANSFERRING)


def _retry_or_end(  # noqa: PLR0913 # by name
    state: S, x: ExecutionRecord, code: ReasonCode, cause: str, *, context: UpdateContext, now: int
) -> Decision:
    order = context.spec
    may = code in RETRYABLE_CODES and x.attempt <= order.retries and not order.is_canceling
    if not may or S.QUEUED not in states.EXECUTION_TRANSITIONS[x.state]:
        return end_execution(x, state, cause, now, code)
    return _requeue_attempt(x, code, cause, order, now)


def _requeue_attempt(
    x: ExecutionRecord, code: ReasonCode, cause: str, spec: UpdateSpec, now: int
) -> Decision:
    """Wait in the queue for another attempt."""
    pause = timeouts.compute_attempt_backoff(x, spec)
    again = replace(
        x,
        state=S.QUEUED,
        attempt=x.attempt + 1,
        code=code,
        reason=cause,
        waiting="battery" if code is ReasonCode.BATTERY else "back-off",
        due=now + pause,
        expires=now + pause + spec.queue_timeout,
        progress=0,
        tries=0,
        step=None,
        ask=None,
        batch=None,
        total_until=None,
        beats=0,
        is_read=False,
        suspended_at=None,
        outage_left=None,
        final_until=None,
    )
    return Decision(again, f"{cause}; attempt {again.attempt} follows", is_evidence=True)


def _build_final_abort(x: ExecutionRecord) -> UpdateRequest | None:
    """The last word to a device that may be on its way. A broadcast goes on for the others."""
    is_untouched = x.step in (UpdateStep.BUSY_ELSEWHERE, UpdateStep.CHECK_REPORTED, UpdateStep.UNSENT)
    if x.state not in states.CANCELABLE_STATES or x.method is UpdateMethod.NORDIC_DFU or is_untouched:
        return None
    return DownloadDriver().build_abort()._replace(step=UpdateStep.FINAL_ABORT)
