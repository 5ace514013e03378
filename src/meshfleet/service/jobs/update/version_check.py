"""Asks a device that reports the target version already before it is skipped (rest-219).

A report may be stale or wrong, so the version is read from the device. If it is the target, the device is
skipped. If it is another, the execution goes back to the queue and is updated in its turn. A device that does
not answer in time is skipped all the same: nothing speaks against its reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from meshfleet.service.jobs.fitness import MisfitCode
from meshfleet.service.jobs.update import clocks
from meshfleet.service.jobs.update.drivers.driver import ask_version, read_version
from meshfleet.service.jobs.update.ending import finish
from meshfleet.service.jobs.update.entering import asking, waiting
from meshfleet.service.jobs.update.events import Answered, Due, Unclear, Unsent
from meshfleet.service.jobs.update.model import Move, Step
from meshfleet.service.jobs.update.reasons import Code, unread
from meshfleet.wire.codes import Status
from meshfleet.wire.rest import ExecutionState as S

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.events import Event
    from meshfleet.service.jobs.update.model import Execution, Scene
    from meshfleet.wire.ids import Version


def begin_check(x: Execution, now: int) -> Move:
    """Read the version of a device that reports the target version."""
    x = replace(x, expires=now + clocks.CHECK, code=str(MisfitCode.ALREADY_THERE))
    return asking(x, ask_version(Step.CHECK), now, "the version is read: the device reports that it runs it")


def is_check(x: Execution) -> bool:
    """Return whether nothing but the version of the device was asked for yet."""
    return x.state is S.DISPATCHED and x.step is Step.CHECK


def advance_check(x: Execution, event: Event, scene: Scene, now: int) -> Move:
    """Decide by what came of the question, or ask again."""
    match event:
        case Answered(_, status, value):
            return _answered(replace(x, ask=None), status, value, scene=scene, now=now)
        case Unsent() | Unclear():
            return _ask_later(replace(x, ask=None, reason=event.reason), scene, now)
        case Due():
            return _look(replace(x, ask=None), scene, now)
        case _:
            return Move(x)


def skip_unasked(x: Execution, target: Version, why: str, now: int) -> Move:
    """Skip a device that could not be asked which version it runs."""
    return _skip(x, f"it reports that it runs {target} already, and could not be asked: {why}", now)


def _answered(x: Execution, status: int, value: object, *, scene: Scene, now: int) -> Move:
    version = read_version(value) if status == Status.OK else None
    target = scene.order.version
    if version is None:
        return _ask_later(replace(x, reason=unread(status)), scene, now)
    x = replace(x, from_version=str(version))
    if version == target:
        return _skip(x, f"it runs {target} already, read from the device", now)
    if scene.order.is_canceling:
        return _cancel(x, now)
    return _requeue(x, f"it reports {target}, and runs {version}", scene, now)


def _ask_later(x: Execution, scene: Scene, now: int) -> Move:
    if scene.order.is_canceling:
        return _cancel(x, now)
    return waiting(x, now + clocks.AGAIN)


def _look(x: Execution, scene: Scene, now: int) -> Move:
    if scene.order.is_canceling:
        return _cancel(x, now)
    if x.expires is not None and now >= x.expires:
        return skip_unasked(x, scene.order.version, x.reason or "no answer came", now)
    return asking(x, ask_version(Step.CHECK), now)


def _requeue(x: Execution, cause: str, scene: Scene, now: int) -> Move:
    """Let the device be updated in its turn: with the last wave, if it was in none."""
    x = replace(
        x,
        state=S.QUEUED,
        wave=scene.order.last_wave if x.wave < 0 else x.wave,
        code=Code.MISREPORTED,
        reason=cause,
        due=now,
        expires=None,
        total_until=None,
        step=None,
    )
    return Move(x, cause, is_evidence=True)


def _skip(x: Execution, cause: str, now: int) -> Move:
    move = finish(x, S.SKIPPED, cause, now)
    return move._replace(execution=replace(move.execution, code=str(MisfitCode.ALREADY_THERE)))


def _cancel(x: Execution, now: int) -> Move:
    return finish(x, S.CANCELED, "canceled before the transfer began", now, Code.CANCELED)
