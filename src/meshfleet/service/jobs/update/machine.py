"""What becomes of an execution: a pure function of what it is, what happened, and the time.

Nothing is assumed that was not seen. A command whose fate is unclear is not sent again before the state was
read; an update that nobody can follow ends with its clock; and success needs the version, read back from the
device, and good heartbeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from meshfleet.service.jobs.update import clocks, confirming, starting, states
from meshfleet.service.jobs.update.checking import advance_check, is_check
from meshfleet.service.jobs.update.drivers import DRIVERS
from meshfleet.service.jobs.update.drivers.driver import read_version
from meshfleet.service.jobs.update.ending import (
    CANCELING,
    cancel,
    fail,
    finish,
    give_up,
    is_beyond_recall,
    remove,
)
from meshfleet.service.jobs.update.entering import apply, asking, enter, may_apply, waiting
from meshfleet.service.jobs.update.events import Answered, Beat, Due, Gone, InDfu, Unclear, Unsent
from meshfleet.service.jobs.update.following import ask_itself, follow
from meshfleet.service.jobs.update.model import Move, Step
from meshfleet.service.jobs.update.reasons import STOPPED, Code, unread
from meshfleet.wire.codes import Status
from meshfleet.wire.rest import ExecutionState as S

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.events import Event
    from meshfleet.service.jobs.update.model import Execution, Scene


def advance(x: Execution, event: Event, scene: Scene, now: int) -> Move:  # noqa: PLR0911 # one for each
    """What becomes of an active execution."""
    match event:
        case Gone():
            return remove(x, now)
        case _ if is_check(x):
            return advance_check(x, event, scene, now)
        case Due():
            return _look(_without_lost(x), scene, now)
        case Beat():
            return confirming.beat(x, event, scene, now) if x.state is S.CONFIRMING else Move(x)
        case InDfu():
            return _in_dfu(x, event, scene, now)
        case Answered():
            move = _answered(replace(x, ask=None, reason=None), event, scene, now)
            return _in_time(x, move, scene, now)
        case Unsent():
            return _unsent(replace(x, ask=None, reason=event.reason), event, now)
        case Unclear():
            move = _unclear(replace(x, ask=None, reason=event.reason), event, scene, now)
            return _in_time(x, move, scene, now)


def _in_time(x: Execution, move: Move, scene: Scene, now: int) -> Move:
    """An answer that only leads to the next question outlives no clock, and no word that it is to end."""
    if move.ask is None or move.execution.state is not x.state:
        return move
    ends = (x.expires, None if x.state is S.STAGED else x.total_until)
    is_late = any(each is not None and now >= each for each in ends)
    is_unwanted = scene.order.is_canceling and x.state in states.CANCELABLE and x.waiting != CANCELING
    return _look(replace(move.execution, ask=None), scene, now) if is_late or is_unwanted else move


def _without_lost(x: Execution) -> Execution:
    """Nobody told what became of its request: then a command is not sent again without a look."""
    if x.ask is None:
        return x
    return replace(x, ask=None, step=Step.STATE if x.step is Step.START else x.step)


def _look(x: Execution, scene: Scene, now: int) -> Move:
    """A clock may have run out; if not, something is to be asked."""
    if scene.order.is_canceling and x.state in states.CANCELABLE:
        move = cancel(x, scene, now)
        if move.execution.state is not x.state or not is_beyond_recall(x):
            return move
        x = move.execution
    if x.total_until is not None and now >= x.total_until and x.state is not S.STAGED:
        return give_up(x, Code.TOO_LONG, "the update took longer than it may", scene, now)
    if x.expires is not None and now >= x.expires:
        return _expire(x, scene, now)
    return _ask_on(x, scene, now)


def _expire(x: Execution, scene: Scene, now: int) -> Move:
    """The clock of its state ran out."""
    match x.state:
        case S.DISPATCHED:
            return starting.not_started(x, scene, now)
        case S.STAGED if may_apply(scene):
            return give_up(x, Code.NOT_APPLIED, "the device did not start what it has got", scene, now)
        case S.STAGED:
            return give_up(x, Code.NOT_STAGED, "nobody installed what the device has got", scene, now)
        case S.APPLYING:
            return give_up(
                x, Code.NOT_APPLIED, "the device did not come back with the new version", scene, now
            )
        case S.CONFIRMING:
            return finish(x, S.FAILED, confirming.missing(x, scene), now, Code.NOT_CONFIRMED)
        case _:
            return give_up(x, Code.STALLED, f"nothing has moved for too long, at {x.progress} %", scene, now)


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
    """Nobody tells how far it is. Who has not even shown that it began is not asked for ever."""
    if x.state is not S.DISPATCHED or x.waiting == CANCELING:
        return waiting(x, now + max(clocks.poll(scene), clocks.AGAIN))
    if x.tries >= clocks.TRIES:
        return starting.not_started(x, scene, now)
    return waiting(replace(x, tries=x.tries + 1), now + clocks.AGAIN)


def _unsent(x: Execution, event: Unsent, now: int) -> Move:
    """It did not leave, so it was not tried: its clock alone decides how often it may be."""
    if event.step is Step.START or event.step is Step.MODE:
        x = replace(x, tries=max(x.tries - 1, 0))
    return waiting(x, now + clocks.AGAIN)


def _unclear(x: Execution, event: Unclear, scene: Scene, now: int) -> Move:
    """Nobody knows what was carried out: look before anything is done again."""
    if event.step is Step.START and x.state is S.DISPATCHED:
        return asking(x, DRIVERS[x.method].state(x), now)
    if event.step is Step.MODE:  # if it has come through, the device shows up
        return waiting(x, now + clocks.DFU)
    return _not_told(x, scene, now)
