"""Gateway outages: the timers of an execution stop while no request can be sent to its device (firmware-39).

Within one attempt the timers are suspended for at most the queue timeout of the job. Then they continue, so
that every execution ends.
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
"""Value of `waiting` while the gateway of an execution is disconnected."""


def suspend_timers(execution: ExecutionRecord, context: UpdateContext, now: int) -> ExecutionRecord:
    """Suspend the timers of an execution.

    They continue if the execution is being canceled or has used up its maximum suspension.
    """
    left = _find_outage_left(execution, context)
    if execution.waiting == WAIT_CANCELING or left <= 0:
        return replace(execution, outage_left=left)
    return replace(execution, suspended_at=now if execution.suspended_at is None else execution.suspended_at)


def resume_timers(execution: ExecutionRecord, context: UpdateContext, now: int) -> ExecutionRecord:
    """Resume the timers: postpone the deadlines by the length of the suspension."""
    if execution.suspended_at is None:
        return execution
    left = _find_outage_left(execution, context)
    length = min(max(now - execution.suspended_at, 0), left)
    return replace(
        execution,
        suspended_at=None,
        resumed_at=now,
        outage_left=left - length,
        waiting=None if execution.waiting == WAIT_GATEWAY_OFFLINE else execution.waiting,
        expires=_postpone(execution.expires, length),
        total_until=_postpone(execution.total_until, length),
        moved_at=_postpone(execution.moved_at, length),
        final_until=_postpone(execution.final_until, length),
    )


def find_suspension_end(execution: ExecutionRecord, context: UpdateContext) -> int:
    """Return the time at which timers that a gateway outage suspended must continue."""
    return (execution.suspended_at or 0) + _find_outage_left(execution, context)


def handle_gateway_disconnect(execution: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Suspend the timers until the gateway reconnects. A device with a staged image needs no gateway."""
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


def _find_outage_left(execution: ExecutionRecord, context: UpdateContext) -> int:
    """Return for how many more milliseconds the timers may be suspended in this attempt.

    A gateway that is updated itself disconnects while it restarts: its timers are suspended for at most as
    long as a restart may take.
    """
    if execution.outage_left is not None:
        return execution.outage_left
    return (
        min(context.spec.queue_timeout, timeouts.APPLY_TIMEOUT)
        if context.gateway == execution.device
        else context.spec.queue_timeout
    )


def _postpone(at: int | None, length: int) -> int | None:
    return None if at is None else at + length
