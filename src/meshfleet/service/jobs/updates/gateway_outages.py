"""Clocks of an execution stand still while nothing can be sent to its gateway (firmware-39).

How long they may do so in one attempt is bounded by the time that the job lets executions wait in the queue:
after that they go on, and so every execution ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.rest import ExecutionState as S
from meshfleet.service.jobs.updates import timeouts
from meshfleet.service.jobs.updates.decisions import WAIT_CANCELING
from meshfleet.service.jobs.updates.model import Decision

if TYPE_CHECKING:
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext

WAIT_GATEWAY_OFFLINE: Final = "gateway-offline"
"""What an execution waits for whose gateway is not connected."""


def suspend_clocks(x: ExecutionRecord, context: UpdateContext, now: int) -> ExecutionRecord:
    """Stop the clocks. An execution that is being canceled, or has no outage time left, goes on."""
    left = _find_outage_left(x, context)
    if x.waiting == WAIT_CANCELING or left <= 0:
        return replace(x, outage_left=left)
    return replace(x, suspended_at=now if x.suspended_at is None else x.suspended_at)


def resume_clocks(x: ExecutionRecord, context: UpdateContext, now: int) -> ExecutionRecord:
    """Let clocks go on from where they stood."""
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
    """Return until when the clocks of a suspended execution may stand still."""
    return (x.suspended_at or 0) + _find_outage_left(x, context)


def handle_gateway_disconnect(x: ExecutionRecord, context: UpdateContext, now: int) -> Decision:
    """Wait until the gateway is back. An image that waits in the device for people needs no gateway."""
    if x.state is S.STAGED or x.waiting in (WAIT_CANCELING, WAIT_GATEWAY_OFFLINE):
        return Decision(x)
    x = suspend_clocks(x, context, now)
    if x.suspended_at is None:
        return Decision(x)
    x = replace(x, waiting=WAIT_GATEWAY_OFFLINE)
    return Decision(x if x.ask is not None else replace(x, due=find_suspension_end(x, context)))


def _find_outage_left(x: ExecutionRecord, context: UpdateContext) -> int:
    """Return for how much longer clocks may stand still in this attempt.

    A gateway that is updated itself is away while it restarts: it gets no more time than a restart may take.
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
