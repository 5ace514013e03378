"""Gateway outages: the timers of an execution stop while no request can be sent to its device (firmware-39).

Within one attempt the timers are suspended for at most the queue timeout of the job. Then they continue, so
that every execution ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.rest.jobs import ExecutionState as S
from meshfleet.service.jobs.updates import timeouts
from meshfleet.service.jobs.updates.decisions import WAIT_CANCELING
from meshfleet.service.jobs.updates.model import Decision

if TYPE_CHECKING:
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext

WAIT_GATEWAY_OFFLINE: Final = "gateway-offline"
"""Value of `waiting` while the gateway of an execution is disconnected."""


def suspend_timers(x: ExecutionRecord, context: UpdateContext, now: int) -> ExecutionRecord:
    """Suspend the timers of an execution.

    They continue if the execution is being canceled or has used up its maximum suspension.
    """
    left = _find_outage_left(x, context)
    if x.waiting == WAIT_CANCELING or left <= 0:
        return replace(x, outage_left=left)
    return replace(x, suspended_at=now if x.suspended_at is None else x.suspended_at)


def resume_timers(x: ExecutionRecord, context: UpdateContext, now: int) -> ExecutionRecord:
    """Resume the timers: postpone the deadlines by the length of the suspension."""
    if x.suspended_at is None:
        return x
    left = _find_outage_left(x, context)
    length = min(max(now - x.suspended_at, 0), left)
    return replace(
        x,
        suspended_at=None,
        resumed_at=now,
        outage_left=left - length,
        waiting=None if x.waiting == WAIT_GATEWAY_OFFLINE else x.waiting,
        expires=_postpone(x.expires, length),
        total_until=_postpone(x.total_until, length),
        moved_at=_postpone(x.moved_at, length),
        final_until=_postpone(x.final_until, length),
    )


def find_suspension_end(x: ExecutionRecord, context: UpdateContext) -> int:
    """Return the time at which timers that a gateway outage suspended must continue."""
    return (x.suspended_at or 0) + _find_outage_left(x, context)


def handle_gateway_disconnect(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Suspend the timers until the gateway reconnects. A device with a staged image needs no gateway."""
    if x.state is S.STAGED or x.waiting in (WAIT_CANCELING, WAIT_GATEWAY_OFFLINE):
        return Decision(x)
    x = suspend_timers(x, context, now)
    if x.suspended_at is None:
        return Decision(x)
    x = replace(x, waiting=WAIT_GATEWAY_OFFLINE)
    return Decision(x if x.pending_request is not None else replace(x, due=find_suspension_end(x, context)))


def _find_outage_left(x: ExecutionRecord, context: UpdateContext) -> int:
    """Return for how many more milliseconds the timers may be suspended in this attempt.

    A gateway that is updated itself disconnects while it restarts: its timers are suspended for at most as
    long as a restart may take.
    """
    if x.outage_left is not None:
        return x.outage_left
    return (
        min(context.spec.queue_timeout, timeouts.APPLY_TIMEOUT)
        if context.gateway == x.device
        else context.spec.queue_timeout
    )


def _postpone(at: int | None, length: int) -> int | None:
    return None if at is None else at + length
