"""How an update is followed: from what device or gateway tell of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.service.jobs.update import clocks, reasons, states
from meshfleet.service.jobs.update.drivers.download import Download
from meshfleet.service.jobs.update.drivers.driver import ask_version
from meshfleet.service.jobs.update.ending import CANCELING, call_off, fail, finish
from meshfleet.service.jobs.update.entering import asking, enter, may_apply, waiting
from meshfleet.service.jobs.update.model import Step
from meshfleet.service.jobs.update.reasons import Code
from meshfleet.service.jobs.update.starting import begin_again
from meshfleet.wire.products import Way
from meshfleet.wire.rest import ExecutionState as S
from meshfleet.wire.updates import UpdateError, UpdateState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.jobs.update.drivers.driver import Told
    from meshfleet.service.jobs.update.model import Execution, Move, Scene

_STATES: Final[Mapping[UpdateState, S]] = {
    UpdateState.FETCHING: S.TRANSFERRING,
    UpdateState.TRANSFERRING: S.TRANSFERRING,
    UpdateState.VERIFYING: S.VERIFYING,
    UpdateState.STAGED: S.STAGED,
    UpdateState.APPLYING: S.APPLYING,
    UpdateState.DONE: S.CONFIRMING,
}

_CAUSES: Final[Mapping[S, str]] = {
    S.TRANSFERRING: "the image is being transferred",
    S.VERIFYING: "the image has arrived and is being checked",
    S.STAGED: "the device has the image and waits to be told to start it",
    S.APPLYING: "the device starts the new version",
    S.CONFIRMING: "the device says that it is done",
}

_ORDER: Final = tuple(_CAUSES)

_AT_REST: Final = frozenset({UpdateState.IDLE, UpdateState.DONE, UpdateState.FAILED})
"""What a device shows before an update of ours begins: nothing, or what became of the one before."""


def follow(x: Execution, told: Told, scene: Scene, now: int, *, is_shared: bool) -> Move:
    """Go on with what was told of the update."""
    if x.state is S.DISPATCHED:
        return _adopt(x, told, scene, now, is_shared=is_shared)
    if not told.is_ours or told.state is UpdateState.IDLE:
        return _lost(x, told, scene, now, is_shared=is_shared)
    if told.state is UpdateState.FAILED:
        return _failed(x, told, scene, now)
    if (
        _is_for_all(x)
        and told.state is not UpdateState.FETCHING
        and told.state is not UpdateState.TRANSFERRING
    ):
        return ask_itself(x, scene, now)
    return _go_on(x, told, scene, now, is_shared=is_shared)


def _adopt(x: Execution, told: Told, scene: Scene, now: int, *, is_shared: bool) -> Move:
    """Whether our command has come through, of which nobody heard."""
    if scene.order.is_canceling and told.state in (UpdateState.IDLE, UpdateState.FAILED):
        return call_off(x, now)
    if _is_for_all(x) and told.is_ours and told.state not in (UpdateState.IDLE, UpdateState.FAILED):
        return enter(x, S.TRANSFERRING, _CAUSES[S.TRANSFERRING], scene, now)
    is_unknown = told.state is UpdateState.IDLE or (told.state is UpdateState.DONE and told.is_ours)
    if is_unknown or (_is_for_all(x) and told.state is UpdateState.FAILED):
        return _look_itself(x, scene, now)  # idle is also who has done it, and restarted since
    if told.state in (UpdateState.FAILED, UpdateState.DONE):
        x = replace(x, step=Step.START)
        return waiting(x, now + clocks.OTHERS) if is_shared else begin_again(x, scene, now)
    if not told.is_ours:
        busy = "it is busy with another update"
        return waiting(replace(x, step=Step.FOREIGN, reason=busy), now + clocks.AGAIN)
    return enter(x, _STATES[told.state], _CAUSES[_STATES[told.state]], scene, now)


def _may_still_begin(x: Execution, scene: Scene, now: int) -> bool:
    """Return whether a device that has accepted the start and shows no progress may be about to begin."""
    if x.state is not S.TRANSFERRING or x.progress or x.final_until is not None:
        return False
    return x.moved_at is not None and now < x.moved_at + clocks.begin(scene.order)


def _lost(x: Execution, told: Told, scene: Scene, now: int, *, is_shared: bool) -> Move:
    """Go on when device or gateway do not know of our update: not yet, or not any more."""
    if x.state is S.APPLYING and told.state is UpdateState.IDLE:
        return enter(x, S.CONFIRMING, "the device has restarted", scene, now)
    if told.state in _AT_REST and _may_still_begin(x, scene, now):
        return waiting(x, now + clocks.SOON + (clocks.OTHERS if is_shared else 0))
    if told.state is UpdateState.IDLE:  # it may have restarted, with the new version or without
        return asking(x, ask_version(Step.LOOK), now)
    return fail(x, Code.OVERRIDDEN, "another update has taken the place of this one", scene, now)


def _failed(x: Execution, told: Told, scene: Scene, now: int) -> Move:
    if told.error == UpdateError.ABORTED and scene.order.is_canceling and x.state in states.CANCELABLE:
        return finish(x, S.CANCELED, reasons.STOPPED, now, Code.CANCELED)
    if _is_for_all(x):
        return ask_itself(x, scene, now)
    code, cause = reasons.of_error(told.error, told.percent)
    return fail(x, code, cause, scene, now)


def _look_itself(x: Execution, scene: Scene, now: int) -> Move:
    """Nothing is begun before the device has told its version; in a broadcast not all in one moment."""
    if not scene.batch or x.final_until is not None:
        return asking(x, ask_version(Step.LOOK), now)
    return waiting(replace(x, step=Step.LOOK), now + _turn(x, scene))


def _is_for_all(x: Execution) -> bool:
    """Whether what is told is told of a whole broadcast."""
    return x.method is Way.BROADCAST and x.step is not Step.OWN_STATE


def ask_itself(x: Execution, scene: Scene, now: int) -> Move:
    """The broadcast is out: from now on the device tells for itself, not all of them in one moment."""
    return waiting(replace(x, step=Step.OWN_STATE), now + _turn(x, scene))


def _turn(x: Execution, scene: Scene) -> int:
    """How long one of a broadcast waits while others are asked."""
    return scene.batch.index(x.device) * clocks.TURN if x.device in scene.batch else 0


def _go_on(x: Execution, told: Told, scene: Scene, now: int, *, is_shared: bool) -> Move:
    state = _STATES[told.state]
    if state is x.state:
        return _stay(x, told, scene, now, is_shared=is_shared)
    has_missed_it = x.state is S.APPLYING and state is S.STAGED
    if has_missed_it and may_apply(scene):  # of a broadcast, it is told by itself
        return asking(x, Download().apply(), now)
    if _ORDER.index(state) < _ORDER.index(x.state):  # an old answer, or one of a device that restarts
        return waiting(x, now + clocks.SOON)
    return enter(x, state, _CAUSES[state], scene, now)


def _stay(x: Execution, told: Told, scene: Scene, now: int, *, is_shared: bool) -> Move:
    if x.state is S.STAGED:  # it was told to start, and has not: it is told again in a while
        return waiting(replace(x, step=Step.APPLY), now + clocks.LATER)
    if x.state is not S.TRANSFERRING:
        return waiting(x, now + clocks.SOON)
    if told.percent > x.progress:
        x = replace(x, progress=told.percent)
        if x.waiting != CANCELING:
            x = replace(x, expires=now + scene.order.step)
    return waiting(x, now + clocks.poll(scene) + (clocks.OTHERS if is_shared else 0))
