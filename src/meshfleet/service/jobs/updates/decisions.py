"""Builds decisions about an execution: send a request, wait, enter a state, retry, or end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState as S
from meshfleet.rest.jobs import StopCause
from meshfleet.service.jobs.updates import states, timeouts
from meshfleet.service.jobs.updates.drivers import (
    ABORT_ACTION,
    DRIVERS,
    build_device_control,
    build_version_query,
)
from meshfleet.service.jobs.updates.model import Decision, UpdateStep
from meshfleet.service.jobs.updates.reasons import (
    REJECTION_CODES,
    RETRYABLE_CODES,
    STOP_CAUSE_TEXTS,
    ReasonCode,
)

if TYPE_CHECKING:
    from meshfleet.service.jobs.compatibility import ExclusionCode
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext, UpdateRequest, UpdateSpec


# Entering a state: its timeout and its first request.


def issue_request(x: ExecutionRecord, request: UpdateRequest, now: int, cause: str = "") -> Decision:
    """Decide to send a request. If its result is lost, the execution is due again after a timeout."""
    until = now + timeouts.LOST_REQUEST_TIMEOUT
    if x.final_until is not None:
        until = min(until, x.final_until)
    return Decision(replace(x, step=request.step, due=until), cause, request)


def wait_until(x: ExecutionRecord, until: int) -> Decision:
    """Let the execution wait until a time, or until its next deadline if that is earlier.

    Deadlines do not count while the timers of the execution are suspended.
    """
    if x.suspended_at is not None:
        return Decision(replace(x, due=until))
    deadlines = list_deadlines(x) if x.final_until is None else (x.final_until,)
    return Decision(replace(x, due=min(until, *deadlines)))


def list_deadlines(x: ExecutionRecord) -> tuple[int, ...]:
    """Return the deadline of the current state and, unless the image is staged, of the whole update."""
    deadlines = (x.expires, None if x.state is S.STAGED else x.total_until)
    return tuple(each for each in deadlines if each is not None)


def enter_state(x: ExecutionRecord, state: S, cause: str, context: UpdateContext, now: int) -> Decision:
    """Enter the next state of an update, and decide the first request or wait in it."""
    states.check_execution_transition(x.state, state)
    leaves_stage = x.state is S.STAGED and x.total_until is not None
    x = replace(
        x,
        state=state,
        moved_at=now,
        expires=now + _find_state_timeout(state, context),
        waiting=None,
        reason=None,
        final_until=None,
    )
    if leaves_stage:  # the time that the image was staged does not count
        remaining = timeouts.APPLY_TIMEOUT + timeouts.compute_confirm_timeout(context)
        x = replace(x, total_until=max(x.total_until or 0, now + remaining))
    decision = _decide_on_entry(x, context, now)
    return decision._replace(cause=cause, is_evidence=True)


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
    """Decide the first request or wait in the state that the execution has entered."""
    match x.state:
        case S.TRANSFERRING:
            member_delay = 0 if context.is_batch_leader(x.device) else timeouts.BATCH_MEMBER_DELAY
            return wait_until(x, now + timeouts.compute_poll_interval(context) + member_delay)
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
    """Send the command to start the staged image, or wait until the device may start it."""
    request = DRIVERS[x.method].build_apply()
    x = replace(x, progress=100)
    if request is None or not may_apply(context):
        return wait_until(x, now + context.spec.queue_timeout)
    until = now + timeouts.APPLY_TIMEOUT  # counted from the first request
    x = replace(x, expires=until if x.expires is None else min(x.expires, until))
    if context.is_batch_leader(x.device):
        return issue_request(x, request, now)
    # The response to the batch leader is shared with this device.
    return wait_until(replace(x, step=request.step), now + timeouts.APPLY_RETRY_DELAY)


def may_apply(context: UpdateContext) -> bool:
    """Return whether devices of the job may start their staged image now."""
    return not context.spec.is_canceling and (context.spec.is_applied or not context.spec.stage)


WAIT_CANCELING: Final = "canceling"
"""Value of `waiting` while an execution is being canceled."""


def end_execution(
    x: ExecutionRecord, state: S, cause: str, now: int, code: ReasonCode | ExclusionCode | None = None
) -> Decision:
    """End an execution in the terminal state `state`."""
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
        pending_request=None,
        step=None,
        suspended_at=None,
        final_until=None,
    )
    return Decision(x, cause, is_evidence=True)


def fail_execution(
    x: ExecutionRecord, code: ReasonCode, cause: str, context: UpdateContext, now: int
) -> Decision:
    """Handle a failed update: retry it if another attempt may succeed, and otherwise end it."""
    if context.spec.is_canceling and S.CANCELED in states.EXECUTION_TRANSITIONS[x.state]:
        return end_execution(x, S.CANCELED, cause, now, ReasonCode.CANCELED)
    if code in REJECTION_CODES and S.REJECTED in states.EXECUTION_TRANSITIONS[x.state]:
        return end_execution(x, S.REJECTED, cause, now, code)
    return _retry_or_end(S.FAILED, x, code, cause, context=context, now=now)


def time_out_execution(
    x: ExecutionRecord, code: ReasonCode, cause: str, context: UpdateContext, now: int
) -> Decision:
    """Handle a missed deadline: retry or end the execution; abort the update on the device if possible."""
    decision = _retry_or_end(S.TIMED_OUT, x, code, cause, context=context, now=now)
    return decision._replace(abort_request=_build_final_abort(x))


def remove_execution(x: ExecutionRecord, now: int) -> Decision:
    """End the execution of a device that was removed from the registry; abort its update if possible."""
    decision = end_execution(
        x, S.REMOVED, "the device was removed from the registry", now, ReasonCode.REMOVED
    )
    return decision._replace(abort_request=_build_final_abort(x))


def reject_execution(x: ExecutionRecord, cause: str, now: int) -> Decision:
    """End an execution as REJECTED: the device or gateway would reject the request every time."""
    return end_execution(x, S.REJECTED, cause, now, ReasonCode.REFUSED)


def cancel_execution(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Abort the update on the device. If it can no longer be aborted, wait for its outcome (I11)."""
    request = DRIVERS[x.method].build_abort()
    if (cause := _explain_nothing_to_abort(x)) is not None:
        return end_execution(x, S.CANCELED, cause, now, ReasonCode.CANCELED)
    if request is None:
        return Decision(replace(x, waiting=WAIT_CANCELING))
    if x.waiting != WAIT_CANCELING:
        x = replace(x, waiting=WAIT_CANCELING, expires=now + timeouts.CANCEL_TIMEOUT)
    elif x.expires is not None and now >= x.expires:
        cause = "canceled without a response; the device may still complete the update"
        return end_execution(x, S.CANCELED, cause, now, ReasonCode.CANCELED)
    if is_past_abort(x):
        return Decision(x)
    return (
        issue_request(x, request, now)
        if context.is_batch_leader(x.device)
        else wait_until(x, now + timeouts.RETRY_DELAY)
    )


def _explain_nothing_to_abort(x: ExecutionRecord) -> str | None:
    """Return why the device has no update to abort; None if it may have one."""
    if x.step is UpdateStep.UNSENT:
        return "canceled before the start command was sent"
    cause = "canceled before the transfer started"
    if x.step is UpdateStep.BUSY_ELSEWHERE or _only_read_version(x):
        return cause
    if x.method is not UpdateMethod.NORDIC_DFU or x.state is not S.DISPATCHED:
        return None
    if x.step is UpdateStep.ENTER_DFU:
        return f"{cause}; a device in DFU mode returns to normal mode by itself"
    return cause if x.step is UpdateStep.RECHECK_VERSION else None


def _only_read_version(x: ExecutionRecord) -> bool:
    """Return whether this attempt has sent nothing but version queries, and is not part of a broadcast."""
    return (
        x.state is S.DISPATCHED and x.step is UpdateStep.RECHECK_VERSION and not x.tries and x.batch is None
    )


def add_stop_cause(decision: Decision, spec: UpdateSpec) -> Decision:
    """Add to a canceled execution why its job was canceled, unless a user canceled the job."""
    x = decision.execution
    if x.state is not S.CANCELED or spec.stop_cause in (None, StopCause.USER):
        return decision
    cause = f"{STOP_CAUSE_TEXTS[spec.stop_cause]}: {decision.cause}"
    return decision._replace(execution=replace(x, reason=cause), cause=cause)


def cancel_idle_execution(x: ExecutionRecord, now: int) -> Decision:
    """Cancel an execution whose device has no update in progress."""
    return end_execution(x, S.CANCELED, "canceled while no update was in progress", now, ReasonCode.CANCELED)


def is_past_abort(x: ExecutionRecord) -> bool:
    """Return whether the update can no longer be aborted, so that its outcome is awaited."""
    if DRIVERS[x.method].build_abort() is None:
        return True
    # In these steps the broadcast is over or never started: only the device is queried, not the gateway.
    device_steps = (
        (UpdateStep.DEVICE_STATE, UpdateStep.RECHECK_VERSION)
        if x.batch is not None
        else (UpdateStep.DEVICE_STATE,)
    )
    return x.step in device_steps and x.state in (S.DISPATCHED, S.TRANSFERRING)


def _retry_or_end(  # noqa: PLR0913 # all but the first four are keyword-only
    state: S, x: ExecutionRecord, code: ReasonCode, cause: str, *, context: UpdateContext, now: int
) -> Decision:
    spec = context.spec
    may_retry = code in RETRYABLE_CODES and x.attempt <= spec.retries and not spec.is_canceling
    if not may_retry or S.QUEUED not in states.EXECUTION_TRANSITIONS[x.state]:
        return end_execution(x, state, cause, now, code)
    return _requeue_attempt(x, code, cause, spec, now)


def _requeue_attempt(
    x: ExecutionRecord, code: ReasonCode, cause: str, spec: UpdateSpec, now: int
) -> Decision:
    backoff = timeouts.compute_attempt_backoff(x, spec)
    requeued = replace(
        x,
        state=S.QUEUED,
        attempt=x.attempt + 1,
        code=code,
        reason=cause,
        waiting="battery" if code is ReasonCode.BATTERY else "back-off",
        due=now + backoff,
        expires=now + backoff + spec.queue_timeout,
        progress=0,
        tries=0,
        step=None,
        pending_request=None,
        batch=None,
        total_until=None,
        beats=0,
        is_read=False,
        suspended_at=None,
        outage_left=None,
        final_until=None,
    )
    return Decision(requeued, f"{cause}; attempt {requeued.attempt} follows", is_evidence=True)


def _build_final_abort(x: ExecutionRecord) -> UpdateRequest | None:
    """Build the request that aborts an update in progress; None if there is nothing to abort.

    The request goes to the device even in a broadcast: the broadcast continues for the other devices.
    """
    is_untouched = x.step in (UpdateStep.BUSY_ELSEWHERE, UpdateStep.CHECK_REPORTED, UpdateStep.UNSENT)
    if x.state not in states.CANCELABLE_STATES or x.method is UpdateMethod.NORDIC_DFU or is_untouched:
        return None
    return build_device_control(UpdateStep.FINAL_ABORT, ABORT_ACTION)
