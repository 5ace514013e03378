"""How an update begins: with growing pauses between tries, and never twice without a look in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from meshfleet.service.jobs.update import clocks
from meshfleet.service.jobs.update.drivers import DRIVERS
from meshfleet.service.jobs.update.drivers.driver import ask_version
from meshfleet.service.jobs.update.drivers.nordic import Nordic
from meshfleet.service.jobs.update.ending import call_off, finish, give_up, refuse
from meshfleet.service.jobs.update.entering import asking, enter, waiting
from meshfleet.service.jobs.update.model import Move, Step
from meshfleet.service.jobs.update.reasons import Code, of_status
from meshfleet.service.jobs.update.version_check import begin_check
from meshfleet.wire.codes import Status
from meshfleet.wire.products import Way
from meshfleet.wire.rest import ExecutionState as S

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.model import Execution, Scene

_PASSING = frozenset({Status.FAILED, Status.BUSY, Status.TIMEOUT, Status.UNREACHABLE})
"""Answers that may be others in a moment."""


def dispatch(  # noqa: PLR0913 # by name
    x: Execution,
    scene: Scene,
    now: int,
    *,
    leads: bool = True,
    is_there: bool = False,
    is_reported: bool = False,
) -> Move:
    """Begin with an execution whose turn it is.

    Of a broadcast only one `leads`. `is_there`: the device may have the version already, which an attempt
    before this one may have brought about. `is_reported`: it reports the version, and nothing was begun.
    """
    x = replace(
        x,
        state=S.DISPATCHED,
        gateway=scene.gateway,
        total_until=now + clocks.total(scene),
        expires=now + clocks.STARTING,
        moved_at=now,
        status_before=scene.status if x.attempt == 1 else x.status_before,  # before any of our updates
        beat_at=scene.beat_at,
        waiting=None,
        code=None,
        reason=None,
        tries=0,
        suspended_at=None,
        outage_left=None,
        final_until=None,
    )
    if is_reported:
        return begin_check(x, now)
    if is_there:
        return asking(x, ask_version(Step.LOOK), now, "the version is read: it may be there already")
    if not leads:
        turn = scene.batch.index(x.device) if x.device in scene.batch else 0
        x = replace(x, step=Step.START, due=now + clocks.OTHERS + turn * clocks.TURN)
        return Move(x, "its turn has come, together with others of a broadcast")
    # Nothing has left yet: it may turn out that nothing can be sent.
    return begin(x, scene, now)._replace(cause="its turn has come, and the first command is to be sent")


def begin(x: Execution, scene: Scene, now: int) -> Move:
    """Send the first command."""
    driver = DRIVERS[x.method]
    if isinstance(driver, Nordic):
        return asking(replace(x, tries=x.tries + 1), driver.mode(scene.order, x), now)
    return start(x, scene, now)


def start(x: Execution, scene: Scene, now: int) -> Move:
    """Begin the transfer."""
    return asking(replace(x, tries=x.tries + 1), DRIVERS[x.method].start(scene, x), now)


def begin_again(x: Execution, scene: Scene, now: int) -> Move:
    """Send the first command once more."""
    if scene.order.is_canceling:
        return finish(x, S.CANCELED, "canceled before the transfer began", now, Code.CANCELED)
    if x.step is Step.MODE or x.step is Step.LOOK:
        return begin(x, scene, now)
    return start(x, scene, now)


def not_started(x: Execution, scene: Scene, now: int) -> Move:
    """Give up what could not be begun, and tell why as far as it is known."""
    cause = "the update could not be begun"
    return give_up(x, Code.NOT_STARTED, f"{cause}: {x.reason}" if x.reason else cause, scene, now)


def look_on(x: Execution, scene: Scene, now: int) -> Move:
    """Nothing is known of the beginning: ask, or begin once more."""
    if x.step is Step.LOOK:
        return asking(x, ask_version(Step.LOOK), now)
    if x.step is Step.UNSENT and x.method is Way.NORDIC_DFU:
        return begin_again(replace(x, step=Step.MODE), scene, now)
    if not scene.leads(x.device):  # it hears what comes of it; if it has to speak some day, it asks first
        step = x.step if x.step is Step.UNSENT else Step.STATE
        return waiting(replace(x, step=step), now + clocks.OTHERS)
    if not scene.is_assembled:
        return waiting(x, now + clocks.AGAIN)
    if x.step in (Step.STATE, Step.FOREIGN, Step.UNSENT) or (x.step is Step.START and not x.tries):
        return asking(x, DRIVERS[x.method].state(x), now)
    return begin_again(x, scene, now)


def mode_answered(x: Execution, status: int, now: int) -> Move:
    """The device is on its way into DFU mode, or not."""
    if status == Status.OK:
        return waiting(replace(x, reason="the device is not heard in DFU mode"), now + clocks.DFU)
    if status in _PASSING:
        return _try_later(x, status, now)
    return refuse(x, f"the device was not sent into DFU mode: {of_status(status)}", now)


def ready(x: Execution, scene: Scene, now: int) -> Move:
    """The device does not run the version: begin with it, in a broadcast with all others like it."""
    if not scene.batch:
        return begin_again(x, scene, now)
    if scene.order.is_canceling:
        return call_off(x, now)
    step = Step.START if scene.leads(x.device) else Step.STATE
    return waiting(replace(x, step=step, tries=max(x.tries, 1)), now + clocks.AGAIN)


def start_answered(x: Execution, status: int, scene: Scene, now: int, *, is_shared: bool) -> Move:
    """The transfer begins, or not."""
    if status == Status.OK:
        return enter(x, S.TRANSFERRING, "the gateway has taken the order", scene, now)
    if is_shared and status in _PASSING:  # who asked goes on for all
        x = replace(x, step=Step.STATE, reason=of_status(status), tries=x.tries + 1)
        return waiting(x, now + clocks.OTHERS)
    if status in (Status.BUSY, Status.TIMEOUT):  # perhaps with what we told it before
        return _try_later(replace(x, step=Step.STATE), status, now)
    if status in _PASSING:
        return _try_later(x, status, now)
    return refuse(x, f"the update was refused: {of_status(status)}", now)


def _try_later(x: Execution, status: int, now: int) -> Move:
    """Try again after a pause that grows with each try; the answer is kept as evidence and as the reason."""
    move = waiting(replace(x, reason=of_status(status)), now + clocks.pause(x))
    return move._replace(is_evidence=True)
