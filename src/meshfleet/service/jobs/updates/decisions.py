"""Builds decisions about an execution: send a request, wait, enter a state, retry, or end the execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState, StopCause
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


def issue_request(execution: ExecutionRecord, request: UpdateRequest, now: int, cause: str = "") -> Decision:
    """Decide to send a request to the device or its gateway. `cause` is the reason for users.

    The execution is due again after five minutes, in case the result of the request gets lost.
    """
    until = now + timeouts.LOST_REQUEST_TIMEOUT
    if execution.final_until is not None:
        until = min(until, execution.final_until)
    return Decision(replace(execution, step=request.step, due=until), cause, request)


def wait_until(execution: ExecutionRecord, until: int) -> Decision:
    """Let an execution wait until the time `until`, or until its next deadline if that is earlier.

    Deadlines are ignored while the timers of the execution are suspended.
    """
    if execution.suspended_at is not None:
        return Decision(replace(execution, due=until))
    deadlines = list_deadlines(execution) if execution.final_until is None else (execution.final_until,)
    return Decision(replace(execution, due=min(until, *deadlines)))


def list_deadlines(execution: ExecutionRecord) -> tuple[int, ...]:
    """Return the deadline of the current state and, except in STAGED, the deadline of the whole update."""
    deadlines = (
        execution.expires,
        None if execution.state is ExecutionState.STAGED else execution.total_until,
    )
    return tuple(each for each in deadlines if each is not None)


def enter_state(
    execution: ExecutionRecord, state: ExecutionState, cause: str, context: UpdateContext, now: int
) -> Decision:
    """Enter a non-terminal state, and decide to send the first request of the state or to wait."""
    states.check_execution_transition(execution.state, state)
    leaves_stage = execution.state is ExecutionState.STAGED and execution.total_until is not None
    execution = replace(
        execution,
        state=state,
        moved_at=now,
        expires=now + _find_state_timeout(state, context),
        waiting=None,
        reason=None,
        final_until=None,
    )
    if leaves_stage:  # the time that the image was staged does not count
        remaining = timeouts.APPLY_TIMEOUT + timeouts.compute_confirm_timeout(context)
        execution = replace(execution, total_until=max(execution.total_until or 0, now + remaining))
    decision = _decide_first_action(execution, context, now)
    return decision._replace(cause=cause, is_evidence=True)


def _find_state_timeout(state: ExecutionState, context: UpdateContext) -> int:
    """Return the timeout of an execution state in milliseconds."""
    match state:
        case ExecutionState.STAGED:
            return context.spec.queue_timeout
        case ExecutionState.APPLYING:
            return timeouts.APPLY_TIMEOUT
        case ExecutionState.CONFIRMING:
            return timeouts.compute_confirm_timeout(context)
        case _:
            return context.spec.step_timeout


def _decide_first_action(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Decide to send the first request of the state that the execution has entered, or to wait."""
    match execution.state:
        case ExecutionState.TRANSFERRING:
            member_delay = 0 if context.is_batch_leader(execution.device) else timeouts.BATCH_MEMBER_DELAY
            return wait_until(execution, now + timeouts.compute_poll_interval(context) + member_delay)
        case ExecutionState.STAGED:
            return apply_staged_image(replace(execution, step=None), context, now)
        case ExecutionState.CONFIRMING:
            execution = replace(
                execution, progress=100, beat_at=context.beat_at, beats=0, is_read=False, step=None
            )
            if context.spec.heartbeats:
                return wait_until(execution, now + timeouts.LOST_REQUEST_TIMEOUT)
            return issue_request(execution, build_version_query(UpdateStep.CONFIRM_VERSION), now)
        case _:
            return wait_until(replace(execution, progress=100), now + timeouts.STATE_QUERY_DELAY)


def apply_staged_image(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Decide to send the command that starts the staged image, or to wait until the image may be started."""
    request = DRIVERS[execution.method].build_apply_command()
    execution = replace(execution, progress=100)
    if request is None or not may_apply_staged_image(context):
        return wait_until(execution, now + context.spec.queue_timeout)
    until = now + timeouts.APPLY_TIMEOUT  # counted from the first request
    execution = replace(
        execution, expires=until if execution.expires is None else min(execution.expires, until)
    )
    if context.is_batch_leader(execution.device):
        return issue_request(execution, request, now)
    # The response to the batch leader is shared with this device.
    return wait_until(replace(execution, step=request.step), now + timeouts.APPLY_RETRY_DELAY)


def may_apply_staged_image(context: UpdateContext) -> bool:
    """Return whether devices of the job may start their staged image now."""
    return not context.spec.is_canceling and (context.spec.is_applied or not context.spec.stage)


WAIT_CANCELING: Final = "canceling"
"""Value of the column `execution.waiting` while an execution is being canceled."""


def end_execution(
    execution: ExecutionRecord,
    state: ExecutionState,
    cause: str,
    now: int,
    code: ReasonCode | ExclusionCode | None = None,
) -> Decision:
    """Decide to end an execution in the terminal state `state`. `cause` is the reason for users."""
    states.check_execution_transition(execution.state, state)
    succeeded = state is ExecutionState.SUCCEEDED
    execution = replace(
        execution,
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
    return Decision(execution, cause, is_evidence=True)


def fail_execution(
    execution: ExecutionRecord, code: ReasonCode, cause: str, context: UpdateContext, now: int
) -> Decision:
    """Handle a failed update: queue another attempt if that may succeed, otherwise end the execution."""
    if context.spec.is_canceling and ExecutionState.CANCELED in states.EXECUTION_TRANSITIONS[execution.state]:
        return end_execution(execution, ExecutionState.CANCELED, cause, now, ReasonCode.CANCELED)
    if code in REJECTION_CODES and ExecutionState.REJECTED in states.EXECUTION_TRANSITIONS[execution.state]:
        return end_execution(execution, ExecutionState.REJECTED, cause, now, code)
    return _retry_or_end(ExecutionState.FAILED, execution, code, cause, context=context, now=now)


def time_out_execution(
    execution: ExecutionRecord, code: ReasonCode, cause: str, context: UpdateContext, now: int
) -> Decision:
    """Handle a missed deadline: queue another attempt, or end the execution as TIMED_OUT.

    In both cases abort the update on the device, if that is possible.
    """
    decision = _retry_or_end(ExecutionState.TIMED_OUT, execution, code, cause, context=context, now=now)
    return decision._replace(abort_request=_build_final_abort(execution))


def remove_execution(execution: ExecutionRecord, now: int) -> Decision:
    """End the execution of a device that was removed from the registry, and abort its update if possible."""
    decision = end_execution(
        execution, ExecutionState.REMOVED, "the device was removed from the registry", now, ReasonCode.REMOVED
    )
    return decision._replace(abort_request=_build_final_abort(execution))


def reject_execution(execution: ExecutionRecord, cause: str, now: int) -> Decision:
    """End an execution as REJECTED, because the device or gateway would reject its request every time."""
    return end_execution(execution, ExecutionState.REJECTED, cause, now, ReasonCode.REFUSED)


def cancel_execution(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Decide to abort an update, because its job is being canceled.

    End the execution if nothing has to be aborted. If the update can no longer be aborted, wait for its
    outcome.
    """
    request = DRIVERS[execution.method].build_abort_command()
    if (cause := _explain_nothing_to_abort(execution)) is not None:
        return end_execution(execution, ExecutionState.CANCELED, cause, now, ReasonCode.CANCELED)
    if request is None:
        return Decision(replace(execution, waiting=WAIT_CANCELING))
    if execution.waiting != WAIT_CANCELING:
        execution = replace(execution, waiting=WAIT_CANCELING, expires=now + timeouts.CANCEL_TIMEOUT)
    elif execution.expires is not None and now >= execution.expires:
        cause = "canceled without a response; the device may still complete the update"
        return end_execution(execution, ExecutionState.CANCELED, cause, now, ReasonCode.CANCELED)
    if is_abort_impossible(execution):
        return Decision(execution)
    return (
        issue_request(execution, request, now)
        if context.is_batch_leader(execution.device)
        else wait_until(execution, now + timeouts.RETRY_DELAY)
    )


def _explain_nothing_to_abort(execution: ExecutionRecord) -> str | None:
    """Return why the device has no update to abort; None if the device may have one."""
    if execution.step is UpdateStep.UNSENT:
        return "canceled before the start command was sent"
    cause = "canceled before the transfer started"
    if execution.step is UpdateStep.BUSY_ELSEWHERE or _has_only_read_version(execution):
        return cause
    if execution.method is not UpdateMethod.NORDIC_DFU or execution.state is not ExecutionState.DISPATCHED:
        return None
    if execution.step is UpdateStep.ENTER_DFU:
        return f"{cause}; a device in DFU mode returns to normal mode by itself"
    return cause if execution.step is UpdateStep.RECHECK_VERSION else None


def _has_only_read_version(execution: ExecutionRecord) -> bool:
    """Return whether an attempt has sent only version queries so far, and is not part of a broadcast."""
    return (
        execution.state is ExecutionState.DISPATCHED
        and execution.step is UpdateStep.RECHECK_VERSION
        and not execution.tries
        and execution.batch is None
    )


def add_stop_cause(decision: Decision, spec: UpdateSpec) -> Decision:
    """Add the reason why the job was canceled to a canceled execution, unless a user canceled the job."""
    execution = decision.execution
    if execution.state is not ExecutionState.CANCELED or spec.stop_cause in (None, StopCause.USER):
        return decision
    cause = f"{STOP_CAUSE_TEXTS[spec.stop_cause]}: {decision.cause}"
    return decision._replace(execution=replace(execution, reason=cause), cause=cause)


def cancel_idle_execution(execution: ExecutionRecord, now: int) -> Decision:
    """Cancel an execution whose device has no update in progress."""
    return end_execution(
        execution,
        ExecutionState.CANCELED,
        "canceled while no update was in progress",
        now,
        ReasonCode.CANCELED,
    )


def is_abort_impossible(execution: ExecutionRecord) -> bool:
    """Return whether an update can no longer be aborted, so that its outcome must be awaited."""
    if DRIVERS[execution.method].build_abort_command() is None:
        return True
    # In these steps the broadcast is over or never started: only the device is queried, not the gateway.
    device_steps = (
        (UpdateStep.DEVICE_STATE, UpdateStep.RECHECK_VERSION)
        if execution.batch is not None
        else (UpdateStep.DEVICE_STATE,)
    )
    return execution.step in device_steps and execution.state in (
        ExecutionState.DISPATCHED,
        ExecutionState.TRANSFERRING,
    )


def _retry_or_end(  # noqa: PLR0913 # all but the first four are keyword-only
    state: ExecutionState,
    execution: ExecutionRecord,
    code: ReasonCode,
    cause: str,
    *,
    context: UpdateContext,
    now: int,
) -> Decision:
    """Queue another attempt if that may succeed. Otherwise end the execution in the state `state`."""
    spec = context.spec
    may_retry = code in RETRYABLE_CODES and execution.attempt <= spec.retries and not spec.is_canceling
    if not may_retry or ExecutionState.QUEUED not in states.EXECUTION_TRANSITIONS[execution.state]:
        return end_execution(execution, state, cause, now, code)
    return _requeue_attempt(execution, code, cause, spec, now)


def _requeue_attempt(
    execution: ExecutionRecord, code: ReasonCode, cause: str, spec: UpdateSpec, now: int
) -> Decision:
    """Return an execution to the queue for another attempt, after a delay."""
    backoff = timeouts.compute_attempt_backoff(execution, spec)
    requeued = replace(
        execution,
        state=ExecutionState.QUEUED,
        attempt=execution.attempt + 1,
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


def _build_final_abort(execution: ExecutionRecord) -> UpdateRequest | None:
    """Build the request that aborts an update which is given up; None if there is nothing to abort.

    Also in a broadcast the request goes to the device, so that the broadcast continues for other devices.
    """
    is_untouched = execution.step in (UpdateStep.BUSY_ELSEWHERE, UpdateStep.CHECK_REPORTED, UpdateStep.UNSENT)
    if (
        execution.state not in states.CANCELABLE_STATES
        or execution.method is UpdateMethod.NORDIC_DFU
        or is_untouched
    ):
        return None
    return build_device_control(UpdateStep.FINAL_ABORT, ABORT_ACTION)
