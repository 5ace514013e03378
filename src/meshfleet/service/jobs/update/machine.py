"""What becomes of an execution: a pure function of what it is, what happened, and the time.

Nothing is assumed that was not seen. A command whose fate is unclear is not sent again before the state was
read; an update is given up only after a last question, and clocks stand still while nothing can be asked; and
success needs the version, read back from the device, and good heartbeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.service.jobs.update import clocks, confirming, starting, states
from meshfleet.service.jobs.update.drivers import DRIVERS
from meshfleet.service.jobs.update.drivers.driver import ask_version, read_version
from meshfleet.service.jobs.update.ending import (
    CANCELING,
    cancel,
    fail,
    finish,
    give_up,
    is_beyond_recall,
    remove,
)
from meshfleet.service.jobs.update.entering import apply, asking, clock_ends, enter, may_apply, waiting
from meshfleet.service.jobs.update.events import (
    Answered,
    Beat,
    Due,
    GatewayAway,
    GatewayBack,
    Gone,
    InDfu,
    Unclear,
    Unsent,
)
from meshfleet.service.jobs.update.following import ask_itself, follow
from meshfleet.service.jobs.update.model import FIRST, Move, Step
from meshfleet.service.jobs.update.outages import (
    OFFLINE,
    gateway_away,
    resume,
    suspend,
    suspended_until,
)
from meshfleet.service.jobs.update.reasons import STOPPED, Code, unread
from meshfleet.service.jobs.update.version_check import advance_check, is_check
from meshfleet.wire.codes import Status
from meshfleet.wire.products import Way
from meshfleet.wire.rest import ExecutionState as S

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.events import Event
    from meshfleet.service.jobs.update.model import Ask, Execution, Scene

_QUESTIONS: Final = frozenset({Step.STATE, Step.OWN_STATE, Step.LOOK, Step.VERSION})
"""Requests that change nothing."""


def advance(x: Execution, event: Event, scene: Scene, now: int) -> Move:  # noqa: C901, PLR0911 # one for each
    """Return what becomes of an active execution."""
    match event:
        case Gone():
            return remove(x, now)
        case _ if is_check(x):
            return advance_check(x, event, scene, now)
        case Due():
            return _look(_without_lost(x), scene, now)
        case Beat() if x.state is S.CONFIRMING:
            return confirming.beat(resume(x, scene, now), event, scene, now)
        case Beat():
            return Move(x)
        case InDfu():
            return _in_dfu(x, event, scene, now)
        case GatewayAway():
            return gateway_away(x, scene, now)
        case GatewayBack():
            return _gateway_back(x, scene, now)
        case Answered():
            x = resume(x, scene, now)
            move = _answered(replace(x, ask=None, reason=_lasting_reason(x)), event, scene, now)
            return _in_time(x, move, scene, now, decides=event.status == Status.OK)
        case Unsent():
            return _unsent(replace(x, ask=None, reason=event.reason), event, scene, now)
        case Unclear():
            x = x if event.is_cut else resume(x, scene, now)
            move = _unclear(replace(x, ask=None, reason=event.reason), event, scene, now)
            return _in_time(x, move, scene, now, decides=False)


def _lasting_reason(x: Execution) -> str | None:
    """Return what an answer does not take back: why the last start failed, or a bad heartbeat."""
    return x.reason if x.state in (S.DISPATCHED, S.CONFIRMING) else None


def _in_time(x: Execution, move: Move, scene: Scene, now: int, *, decides: bool) -> Move:
    """Hold a move that an answer led to against the clocks, and against a cancel.

    An answer that only leads to the next question outlives neither. The answer to the last question
    `decides`, if it tells anything: what it does not save is given up.
    """
    after = move.execution
    if after.state is not x.state:
        return move
    is_unwanted = scene.order.is_canceling and x.state in states.CANCELABLE and x.waiting != CANCELING
    if move.ask is not None and is_unwanted:
        return _look(replace(after, ask=None), scene, now)
    if not _has_expired(after, now):
        return move._replace(execution=replace(after, final_until=None))
    if x.final_until is None:
        return move if move.ask is None else _look(replace(after, ask=None), scene, now)
    if move.ask is not None:
        return move if move.ask.step in _QUESTIONS else _give_up(after, scene, now)
    return _give_up(after, scene, now) if decides else move


def _has_expired(x: Execution, now: int) -> bool:
    return x.suspended_at is None and any(now >= each for each in clock_ends(x))


def _without_lost(x: Execution) -> Execution:
    """Nobody told what became of its request: then a command is not sent again without a look."""
    if x.ask is None:
        return x
    return replace(x, ask=None, step=Step.STATE if x.step is Step.START else x.step)


def _look(x: Execution, scene: Scene, now: int) -> Move:
    """A clock may have run out; if not, something is to be asked."""
    if scene.order.is_canceling and x.state in states.CANCELABLE:
        x = resume(x, scene, now)
        move = cancel(x, scene, now)
        if move.execution.state is not x.state or not is_beyond_recall(x):
            return move
        x = move.execution
    if x.suspended_at is not None:
        return _look_suspended(x, scene, now)
    return _ask_finally(x, scene, now) if _has_expired(x, now) else _ask_on(x, scene, now)


def _look_suspended(x: Execution, scene: Scene, now: int) -> Move:
    """Ask again whether something can be sent by now; a gateway that is away is waited for."""
    until = suspended_until(x, scene)
    if now >= until or (x.state is S.STAGED and not may_apply(scene)):
        return _look(resume(x, scene, now), scene, now)
    return Move(replace(x, due=until)) if x.waiting == OFFLINE else _ask_on(x, scene, now)


def _gateway_back(x: Execution, scene: Scene, now: int) -> Move:
    """Ask the device first: it may have finished meanwhile."""
    x = resume(x, scene, now)
    return Move(x) if x.ask is not None else _look(x, scene, now)


def _ask_finally(x: Execution, scene: Scene, now: int) -> Move:
    """Ask one last question before an update is given up whose clock ran out (firmware-40)."""
    if not _is_worth_asking(x, scene):
        return _give_up(x, scene, now)
    if x.final_until is None:
        x = replace(x, final_until=now + clocks.FINAL)
    elif now >= x.final_until:
        return _give_up(x, scene, now)
    return asking(x, _final_question(x), now)


def _is_worth_asking(x: Execution, scene: Scene) -> bool:
    """Return whether an answer could change anything."""
    match x.state:
        case S.DISPATCHED:
            return x.step is not Step.UNSENT
        case S.STAGED:
            return may_apply(scene)
        case S.CONFIRMING:  # after the version was read, only heartbeats could help
            return not x.is_read or x.beats >= scene.order.heartbeats
        case _:
            return True


def _final_question(x: Execution) -> Ask:
    """Ask each device of a broadcast for itself, and one that was to go into DFU mode for its version."""
    if x.state is S.CONFIRMING:
        return ask_version(Step.VERSION)
    if x.step in (Step.LOOK, Step.MODE):
        return ask_version(Step.LOOK)
    own = replace(x, step=Step.OWN_STATE) if x.method is Way.BROADCAST else x
    return DRIVERS[x.method].state(own)


def _give_up(x: Execution, scene: Scene, now: int) -> Move:
    """End an execution whose clock ran out."""
    if x.total_until is not None and now >= x.total_until and x.state is not S.STAGED:
        cause = "the update took longer than it may"
        if x.state is S.CONFIRMING:
            return give_up(x, Code.TOO_LONG, f"{cause}: {confirming.missing(x, scene)}", scene, now)
        return give_up(x, Code.TOO_LONG, _with_reason(cause, x), scene, now)
    return _expire(x, scene, now)


def _with_reason(cause: str, x: Execution) -> str:
    """Add why the last question brought nothing, if it is known."""
    return f"{cause}; the last question: {x.reason}" if x.reason else cause


def _expire(x: Execution, scene: Scene, now: int) -> Move:
    """The clock of its state ran out."""
    match x.state:
        case S.DISPATCHED:
            return starting.not_started(x, scene, now)
        case S.STAGED if may_apply(scene):
            cause = _with_reason("the device did not start what it has got", x)
            return give_up(x, Code.NOT_APPLIED, cause, scene, now)
        case S.STAGED:
            return give_up(x, Code.NOT_STAGED, "nobody installed what the device has got", scene, now)
        case S.APPLYING:
            cause = _with_reason("the device did not come back with the new version", x)
            return give_up(x, Code.NOT_APPLIED, cause, scene, now)
        case S.CONFIRMING:
            return finish(x, S.FAILED, confirming.missing(x, scene), now, Code.NOT_CONFIRMED)
        case _:
            cause = _with_reason(f"nothing has moved for too long, at {x.progress} %", x)
            return give_up(x, Code.STALLED, cause, scene, now)


def _ask_on(x: Execution, scene: Scene, now: int) -> Move:
    match x.state:
        case S.DISPATCHED:
            return starting.look_on(x, scene, now)
        case S.STAGED if x.step is not Step.OWN_STATE:
            return apply(x, scene, now)
        case S.TRANSFERRING if x.step is not Step.OWN_STATE and not scene.leads(x.device):
            return waiting(x, now + clocks.OTHERS)
        case S.CONFIRMING:
            return confirming.look_on(x, scene, now)
        case _:
            return asking(x, DRIVERS[x.method].state(x), now)


def _in_dfu(x: Execution, event: InDfu, scene: Scene, now: int) -> Move:
    """The device waits for its image: begin, unless that was done already."""
    if x.state is not S.DISPATCHED or x.step not in (Step.MODE, Step.LOOK) or x.ask is not None:
        return Move(x)
    if scene.order.is_canceling:
        return cancel(x, scene, now)
    if not event.has_room:
        return _wait_for_room(x, now)
    # Only who hears it can send to it.
    x = resume(x, scene, now)
    heard = replace(x, step=Step.START, gateway=event.gateway or x.gateway)
    if x.step is Step.MODE:
        heard = replace(heard, tries=0)
    return starting.begin_again(heard, scene, now)._replace(is_evidence=True)


def _wait_for_room(x: Execution, now: int) -> Move:
    """It is not sent into DFU mode again while it is there."""
    if x.due - now > clocks.DFU // 2:
        return Move(x)
    return waiting(replace(x, reason="the gateway that hears it is busy"), now + clocks.DFU)


def _answered(x: Execution, event: Answered, scene: Scene, now: int) -> Move:  # noqa: PLR0911 # one for each
    match event.step:
        case Step.LOOK:
            return _looked(x, event, scene, now)
        case Step.MODE:
            return starting.mode_answered(x, event.status, now)
        case Step.START:
            return starting.start_answered(x, event.status, scene, now, is_shared=event.is_shared)
        case Step.APPLY:
            return _applied(x, event, scene, now)
        case Step.ABORT:
            return _aborted(x, event.status, now)
        case Step.VERSION:
            return confirming.version_answered(x, event.status, event.value, scene, now)
        case _:
            return _told(x, event, scene, now)


def _looked(x: Execution, event: Answered, scene: Scene, now: int) -> Move:
    """Whether the device has the version already."""
    version = read_version(event.value) if event.status == Status.OK else None
    if version is None:  # all that is known says that it does: it is not updated again for want of an answer
        return _not_told(replace(x, reason=unread(event.status)), scene, now)
    if version == scene.order.version:
        return enter(x, S.CONFIRMING, f"the device runs {version} already", scene, now)
    if x.state is S.TRANSFERRING and x.progress == 0:
        cause = "the device accepted the start, and is idle with nothing of the image"
        return give_up(x, Code.NOT_STARTED, cause, scene, now)
    if x.state is not S.DISPATCHED:
        cause = f"the device has lost what it had got, {x.progress} % of the image"
        return fail(x, Code.TRANSFER_LOST, cause, scene, now)
    return starting.ready(x, scene, now)


def _applied(x: Execution, event: Answered, scene: Scene, now: int) -> Move:
    if event.status == Status.OK and x.state is S.STAGED:
        return enter(x, S.APPLYING, "the device was told to start the new version", scene, now)
    if event.status == Status.OK:  # it was told by itself
        return waiting(replace(x, step=Step.OWN_STATE), now + clocks.LATER)
    if event.is_shared:
        return ask_itself(x, scene, now)
    return asking(x, DRIVERS[x.method].state(x), now)  # it may do so already, or have forgotten


def _aborted(x: Execution, status: int, now: int) -> Move:
    if status == Status.OK:
        return finish(x, S.CANCELED, STOPPED, now, Code.CANCELED)
    if status in (Status.BUSY, Status.FAILED):  # it is too late, or there is nothing to abort, or no longer
        return asking(x, DRIVERS[x.method].state(x), now)
    return waiting(x, now + clocks.AGAIN)


def _told(x: Execution, event: Answered, scene: Scene, now: int) -> Move:
    told = DRIVERS[x.method].read(event.value, scene.order, x) if event.status == Status.OK else None
    if told is None:
        return _not_told(replace(x, reason=unread(event.status)), scene, now)
    return follow(x, told, scene, now, is_shared=event.is_shared)


def _not_told(x: Execution, scene: Scene, now: int) -> Move:
    """Ask again later how far it is. Tries to begin are further apart each time."""
    if x.state is not S.DISPATCHED or x.waiting == CANCELING:
        return waiting(x, now + max(clocks.poll(scene), clocks.AGAIN))
    x = replace(x, tries=x.tries + 1)
    return waiting(x, now + clocks.pause(x))


def _unsent(x: Execution, event: Unsent, scene: Scene, now: int) -> Move:
    """Stop the clocks until something can be sent again: a try that did not leave is none."""
    if event.step in FIRST:
        x = replace(x, tries=max(x.tries - 1, 0))
    if _never_left(x, event.step):
        x = replace(x, step=Step.UNSENT)
    if scene.order.is_canceling and event.step in FIRST:
        return _look(x, scene, now)
    return waiting(suspend(x, scene, now), now + clocks.AGAIN)


def _never_left(x: Execution, step: Step) -> bool:
    """Return whether no command that begins the update has left in this attempt."""
    if x.state is not S.DISPATCHED or x.tries or x.waiting == CANCELING:
        return False
    if x.method is Way.NORDIC_DFU:  # which counts its tries from the DFU mode on
        return step is Step.MODE
    # One of a broadcast that asks for the state does not know what the others have sent.
    return step is Step.START or (step is Step.STATE and x.batch is None)


def _unclear(x: Execution, event: Unclear, scene: Scene, now: int) -> Move:
    """Look before anything is done again: it is not known what was carried out."""
    if event.step is Step.START and x.state is S.DISPATCHED:
        return asking(x, DRIVERS[x.method].state(x), now)
    if event.step is Step.MODE:  # if it has come through, the device shows up
        return waiting(x, now + clocks.DFU)
    return _not_told(x, scene, now)
