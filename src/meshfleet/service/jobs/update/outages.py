"""Clocks of an execution stand still while nothing can be sent to its gateway (firmware-39).

How long they may do so in one attempt is bounded by the time that the job lets executions wait in the queue:
after that they go on, and so every execution ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.service.jobs.update import clocks
from meshfleet.service.jobs.update.ending import CANCELING
from meshfleet.service.jobs.update.model import Move
from meshfleet.wire.rest import ExecutionState as S

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.model import Execution, Scene

OFFLINE: Final = "gateway-offline"
"""What an execution waits for whose gateway is not connected."""


def suspend(x: Execution, scene: Scene, now: int) -> Execution:
    """Stop the clocks. An execution that is being canceled, or has no outage time left, goes on."""
    left = _left(x, scene)
    if x.waiting == CANCELING or left <= 0:
        return replace(x, outage_left=left)
    return replace(x, suspended_at=now if x.suspended_at is None else x.suspended_at)


def resume(x: Execution, scene: Scene, now: int) -> Execution:
    """Let clocks go on from where they stood."""
    if x.suspended_at is None:
        return x
    left = _left(x, scene)
    length = min(max(now - x.suspended_at, 0), left)
    return replace(
        x,
        suspended_at=None,
        resumed_at=now,
        outage_left=left - length,
        waiting=None if x.waiting == OFFLINE else x.waiting,
        expires=_later(x.expires, length),
        total_until=_later(x.total_until, length),
        moved_at=_later(x.moved_at, length),
        final_until=_later(x.final_until, length),
    )


def suspended_until(x: Execution, scene: Scene) -> int:
    """Return until when the clocks of a suspended execution may stand still."""
    return (x.suspended_at or 0) + _left(x, scene)


def gateway_away(x: Execution, scene: Scene, now: int) -> Move:
    """Wait until the gateway is back. An image that waits in the device for people needs no gateway."""
    if x.state is S.STAGED or x.waiting in (CANCELING, OFFLINE):
        return Move(x)
    x = suspend(x, scene, now)
    if x.suspended_at is None:
        return Move(x)
    x = replace(x, waiting=OFFLINE)
    return Move(x if x.ask is not None else replace(x, due=suspended_until(x, scene)))


def _left(x: Execution, scene: Scene) -> int:
    """Return for how much longer clocks may stand still in this attempt.

    A gateway that is updated itself is away while it restarts: it gets no more time than a restart may take.
    """
    if x.outage_left is not None:
        return x.outage_left
    return min(scene.order.queue, clocks.APPLY) if scene.gateway == x.device else scene.order.queue


def _later(at: int | None, length: int) -> int | None:
    return None if at is None else at + length
