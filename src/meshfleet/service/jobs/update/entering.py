"""How an execution enters a state: its clock, and what is asked first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from meshfleet.service.jobs.update import clocks, states
from meshfleet.service.jobs.update.drivers import DRIVERS
from meshfleet.service.jobs.update.drivers.driver import ask_version
from meshfleet.service.jobs.update.model import Move, Step
from meshfleet.wire.rest import ExecutionState as S

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.model import Ask, Execution, Scene


def asking(x: Execution, ask: Ask, now: int, cause: str = "") -> Move:
    """Let something be asked for it. If nobody tells what came of that, we look again."""
    until = now + clocks.GUARD
    if x.final_until is not None:
        until = min(until, x.final_until)
    return Move(replace(x, step=ask.step, due=until), cause, ask)


def waiting(x: Execution, until: int) -> Move:
    """Look again at a time, or when its clock runs out before. Clocks that stand still do not run out."""
    if x.suspended_at is not None:
        return Move(replace(x, due=until))
    ends = clock_ends(x) if x.final_until is None else (x.final_until,)
    return Move(replace(x, due=min(until, *ends)))


def clock_ends(x: Execution) -> tuple[int, ...]:
    """Return when the clocks of an execution run out: that of its state, and that of the whole update."""
    ends = (x.expires, None if x.state is S.STAGED else x.total_until)
    return tuple(each for each in ends if each is not None)


def enter(x: Execution, state: S, cause: str, scene: Scene, now: int) -> Move:
    """Go on to the next state of an update."""
    states.check(x.state, state)
    left_stage = x.state is S.STAGED and x.total_until is not None
    x = replace(
        x,
        state=state,
        moved_at=now,
        expires=now + _patience(state, scene),
        waiting=None,
        reason=None,
        final_until=None,
    )
    if left_stage:  # what the device waited for people does not count
        rest = clocks.APPLY + clocks.confirm(scene)
        x = replace(x, total_until=max(x.total_until or 0, now + rest))
    move = _first(x, scene, now)
    return move._replace(cause=cause, is_evidence=True)


def _patience(state: S, scene: Scene) -> int:
    match state:
        case S.STAGED:
            return scene.order.queue
        case S.APPLYING:
            return clocks.APPLY
        case S.CONFIRMING:
            return clocks.confirm(scene)
        case _:
            return scene.order.step


def _first(x: Execution, scene: Scene, now: int) -> Move:
    """What to do at the beginning of a state."""
    match x.state:
        case S.TRANSFERRING:
            asks_later = 0 if scene.leads(x.device) else clocks.OTHERS
            return waiting(x, now + clocks.poll(scene) + asks_later)
        case S.STAGED:
            return apply(replace(x, step=None), scene, now)
        case S.CONFIRMING:
            x = replace(x, progress=100, beat_at=scene.beat_at, beats=0, is_read=False, step=None)
            if scene.order.heartbeats:
                return waiting(x, now + clocks.GUARD)
            return asking(x, ask_version(Step.VERSION), now)
        case _:
            return waiting(replace(x, progress=100), now + clocks.SOON)


def apply(x: Execution, scene: Scene, now: int) -> Move:
    """Let the device start what it has staged, if it may."""
    ask = DRIVERS[x.method].apply()
    x = replace(x, progress=100)
    if ask is None or not may_apply(scene):
        return waiting(x, now + scene.order.queue)
    until = now + clocks.APPLY  # from the first time that it is told so
    x = replace(x, expires=until if x.expires is None else min(x.expires, until))
    if scene.leads(x.device):
        return asking(x, ask, now)
    return waiting(replace(x, step=ask.step), now + clocks.LATER)  # it hears what comes of it


def may_apply(scene: Scene) -> bool:
    """Whether devices may start what they have."""
    return not scene.order.is_canceling and (scene.order.is_applied or not scene.order.stage)
