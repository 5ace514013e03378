"""Gateway outages: the timers of an execution stop while no request can be sent to its device (firmware-39).

Within one attempt the timers are suspended for at most the queue timeout of the job, so that every execution
ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.updates import timeouts
from meshfleet.service.jobs.updates.decisions import WAIT_CANCELING
from meshfleet.service.jobs.updates.model import Decision

if TYPE_CHECKING:
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext

WAIT_GATEWAY_OFFLINE: Final = "gateway-offline"
"""Value of the column `execution.waiting` while the gateway of an execution is disconnected."""


def suspend_timers(execution: ExecutionRecord, context: UpdateContext, now: int) -> ExecutionRecord:
    """Return the execution with suspended timers.

    Leave the timers running if the execution is being canceled or has used up its maximum suspension.
    """
    left = _find_suspension_left(execution, context)
    if execution.waiting == WAIT_CANCELING or left <= 0:
        return replace(execution, outage_left=left)
    return replace(execution, suspended_at=now if execution.suspended_at is None else execution.suspended_at)


def resume_timers(execution: ExecutionRecord, context: UpdateContext, now: int) -> ExecutionRecord:
    """Return the execution with running timers and deadlines postponed by the length of the suspension."""
    if execution.suspended_at is None:
        return execution
    left = _find_suspension_left(execution, context)
    length = min(max(now - execution.suspended_at, 0), left)
    return replace(
        execution,
        suspended_at=None,
        resumed_at=now,
        outage_left=left - length,
        waiting=None if execution.waiting == WAIT_GATEWAY_OFFLINE else execution.waiting,
        expires=_postpone_time(execution.expires, length),
        total_until=_postpone_time(execution.total_until, length),
        moved_at=_postpone_time(execution.moved_at, length),
        final_until=_postpone_time(execution.final_until, length),
    )


def find_suspension_end(execution: ExecutionRecord, context: UpdateContext) -> int:
    """Return the latest monotonic time in milliseconds at which suspended timers continue."""
    return (execution.suspended_at or 0) + _find_suspension_left(execution, context)


def handle_gateway_disconnect(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Suspend the timers of an execution until its gateway reconnects.

    Do nothing in STAGED, which needs no gateway.
    """
    if execution.state is ExecutionState.STAGED or execution.waiting in (
        WAIT_CANCELING,
        WAIT_GATEWAY_OFFLINE,
    ):
        return Decision(execution)
    execution = suspend_timers(execution, context, now)
    if execution.suspended_at is None:
        return Decision(execution)
    execution = replace(execution, waiting=WAIT_GATEWAY_OFFLINE)
    return Decision(
        execution
        if execution.pending_request is not None
        else replace(execution, due=find_suspension_end(execution, context))
    )


def _find_suspension_left(execution: ExecutionRecord, context: UpdateContext) -> int:
    """Return for how many more milliseconds the timers may be suspended in this attempt.

    If the updated device is the gateway itself, the limit is the maximum duration of its restart.
    """
    if execution.outage_left is not None:
        return execution.outage_left
    return (
        min(context.spec.queue_timeout, timeouts.APPLY_TIMEOUT)
        if context.gateway == execution.device
        else context.spec.queue_timeout
    )


def _postpone_time(time: int | None, delay: int) -> int | None:
    """Return a time postponed by a delay in milliseconds; None if there is no time."""
    return None if time is None else time + delay
