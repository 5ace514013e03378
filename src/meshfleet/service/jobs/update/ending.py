"""How an execution ends, or begins again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.service.jobs.update import clocks, states
from meshfleet.service.jobs.update.drivers import DRIVERS
from meshfleet.service.jobs.update.drivers.download import Download
from meshfleet.service.jobs.update.entering import asking, waiting
from meshfleet.service.jobs.update.model import Move, Step
from meshfleet.service.jobs.update.reasons import REFUSALS, RETRYABLE, STOP_REASONS, Code
from meshfleet.wire.products import Way
from meshfleet.wire.rest import ExecutionState as S
from meshfleet.wire.rest import StopCause

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.model import Ask, Execution, Order, Scene

CANCELING: Final = "canceling"
"""What an execution waits for that is to be taken back."""


def finish(x: Execution, state: S, cause: str, now: int, code: Code | None = None) -> Move:
    """End, for good."""
    states.check(x.state, state)
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
    return Move(x, cause, is_evidence=True)


def fail(x: Execution, code: Code, cause: str, scene: Scene, now: int) -> Move:
    """The update failed, or was refused; what may go better another time is tried again."""
    if scene.order.is_canceling and S.CANCELED in states.MOVES[x.state]:
        return finish(x, S.CANCELED, cause, now, Code.CANCELED)
    if code in REFUSALS and S.REJECTED in states.MOVES[x.state]:
        return finish(x, S.REJECTED, cause, now, code)
    return _again_or(S.FAILED, x, code, cause, scene=scene, now=now)


def give_up(x: Execution, code: Code, cause: str, scene: Scene, now: int) -> Move:
    """A clock ran out. The device is told not to go on, as long as that can be."""
    parting = _parting(x)
    move = _again_or(S.TIMED_OUT, x, code, cause, scene=scene, now=now)
    return move._replace(parting=parting)


def remove(x: Execution, now: int) -> Move:
    """Nobody knows the device any more. If it is on its way, it is told not to go on."""
    move = finish(x, S.REMOVED, "the device was removed from the registry", now, Code.REMOVED)
    return move._replace(parting=_parting(x))


def refuse(x: Execution, cause: str, now: int) -> Move:
    """Device or gateway does not do what it was told, and would not another time."""
    return finish(x, S.REJECTED, cause, now, Code.REFUSED)


def cancel(x: Execution, scene: Scene, now: int) -> Move:
    """Take the update back, if the device has not got too far: else the outcome is awaited (I11)."""
    ask = DRIVERS[x.method].abort()
    if (cause := _not_begun(x)) is not None:
        return finish(x, S.CANCELED, cause, now, Code.CANCELED)
    if ask is None:
        return Move(replace(x, waiting=CANCELING))
    if x.waiting != CANCELING:
        x = replace(x, waiting=CANCELING, expires=now + clocks.CANCEL)
    elif x.expires is not None and now >= x.expires:
        cause = "canceled without an answer; the device may still go on with what it has"
        return finish(x, S.CANCELED, cause, now, Code.CANCELED)
    if is_beyond_recall(x):
        return Move(x)
    return asking(x, ask, now) if scene.leads(x.device) else waiting(x, now + clocks.AGAIN)


def _not_begun(x: Execution) -> str | None:
    """Return why there is nothing to take back; None: there is."""
    if x.step is Step.UNSENT:
        return "canceled before the first command was sent"
    cause = "canceled before the transfer began"
    if x.step is Step.FOREIGN or _is_only_asked(x):
        return cause
    if x.method is not Way.NORDIC_DFU or x.state is not S.DISPATCHED:
        return None
    if x.step is Step.MODE:
        return f"{cause}; a device in DFU mode comes back by itself"
    return cause if x.step is Step.LOOK else None


def _is_only_asked(x: Execution) -> bool:
    """Return whether only the version was asked for in this attempt, of a device that takes part alone."""
    return x.state is S.DISPATCHED and x.step is Step.LOOK and not x.tries and x.batch is None


def explain_stop(move: Move, order: Order) -> Move:
    """Let an execution that ended with its job say why the job did, unless a user canceled it."""
    x = move.execution
    if x.state is not S.CANCELED or order.stop_cause in (None, StopCause.USER):
        return move
    cause = f"{STOP_REASONS[order.stop_cause]}: {move.cause}"
    return move._replace(execution=replace(x, reason=cause), cause=cause)


def call_off(x: Execution, now: int) -> Move:
    """It is canceled, and there is nothing to take back."""
    return finish(x, S.CANCELED, "canceled when nothing was under way", now, Code.CANCELED)


def is_beyond_recall(x: Execution) -> bool:
    """Whether nobody can take it back, so that it is followed to its end."""
    if DRIVERS[x.method].abort() is None:
        return True
    # The broadcast is over, or never began: the device is asked, and the gateway is not told again.
    own = (Step.OWN_STATE, Step.LOOK) if x.batch is not None else (Step.OWN_STATE,)
    return x.step in own and x.state in (S.DISPATCHED, S.TRANSFERRING)


def _again_or(  # noqa: PLR0913 # by name
    state: S, x: Execution, code: Code, cause: str, *, scene: Scene, now: int
) -> Move:
    order = scene.order
    may = code in RETRYABLE and x.attempt <= order.retries and not order.is_canceling
    if not may or S.QUEUED not in states.MOVES[x.state]:
        return finish(x, state, cause, now, code)
    return _again(x, code, cause, order, now)


def _again(x: Execution, code: Code, cause: str, order: Order, now: int) -> Move:
    """Wait in the queue for another attempt."""
    pause = clocks.backoff(x, order)
    again = replace(
        x,
        state=S.QUEUED,
        attempt=x.attempt + 1,
        code=code,
        reason=cause,
        waiting="battery" if code is Code.BATTERY else "back-off",
        due=now + pause,
        expires=now + pause + order.queue,
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
    return Move(again, f"{cause}; attempt {again.attempt} follows", is_evidence=True)


def _parting(x: Execution) -> Ask | None:
    """The last word to a device that may be on its way. A broadcast goes on for the others."""
    is_untouched = x.step in (Step.FOREIGN, Step.CHECK, Step.UNSENT)
    if x.state not in states.CANCELABLE or x.method is Way.NORDIC_DFU or is_untouched:
        return None
    return Download().abort()._replace(step=Step.PARTING)
