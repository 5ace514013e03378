"""How an update is confirmed (firmware-34).

With the first heartbeat the version is read, so that a failure shows early; with the last one that is needed
it is read again, for a device may have gone back meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from meshfleet.service.jobs.update import clocks
from meshfleet.service.jobs.update.drivers.driver import ask_version, read_version
from meshfleet.service.jobs.update.ending import fail, finish
from meshfleet.service.jobs.update.entering import asking, waiting
from meshfleet.service.jobs.update.model import Move, Step
from meshfleet.service.jobs.update.reasons import Code, of_heartbeat, unread
from meshfleet.wire.codes import Status
from meshfleet.wire.rest import ExecutionState as S

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.events import Beat
    from meshfleet.service.jobs.update.model import Execution, Scene


def beat(x: Execution, event: Beat, scene: Scene, now: int) -> Move:
    """Count a heartbeat. A bad one resets the count, unless its status is that from before the update."""
    if x.beat_at is not None and event.at <= x.beat_at:  # another program has counted it
        return Move(x)
    bad = _bad_heartbeat(x, event.status)
    x = replace(_hurried(x, scene), beat_at=event.at, beats=0 if bad else x.beats + 1, reason=bad or x.reason)
    asked_again = x.step is Step.VERSION and now < x.due  # it did not tell a moment ago
    if x.ask is None and not asked_again and (not x.is_read or x.beats >= scene.order.heartbeats):
        move = asking(x, ask_version(Step.VERSION), now)
    else:
        move = waiting(x, x.due)
    # Those that count, and bad ones; a device may send many more before its version can be read.
    return move._replace(is_evidence=x.beats <= scene.order.heartbeats)


def _bad_heartbeat(x: Execution, status: int | None) -> str | None:
    """Name a status that speaks against the update; None: it does not."""
    return None if status in (None, 0, x.status_before) else of_heartbeat(status)


def _hurried(x: Execution, scene: Scene) -> Execution:
    """By now more may be known of how often it is heard, and so of how long it may take."""
    if x.expires is None or x.moved_at is None:
        return x
    return replace(x, expires=min(x.expires, x.moved_at + clocks.confirm(scene)))


def version_answered(x: Execution, status: int, value: Any, scene: Scene, now: int) -> Move:
    """The version was read, or not."""
    version = read_version(value) if status == Status.OK else None
    if version is None:
        return waiting(replace(x, reason=unread(status)), now + clocks.AGAIN)
    if version != scene.order.version:
        cause = f"the device runs {version} after the update, not {scene.order.version}"
        return fail(x, Code.WRONG_VERSION, cause, scene, now)
    x = replace(x, is_read=True, reason=_bad_heartbeat(x, scene.status))
    if x.beats >= scene.order.heartbeats:
        return finish(x, S.SUCCEEDED, f"the device runs {version}, and is well", now)
    return waiting(replace(x, step=None), now + clocks.GUARD)._replace(is_evidence=True)


def look_on(x: Execution, scene: Scene, now: int) -> Move:
    """Read the version, if it is time to."""
    if x.step is Step.VERSION or not scene.order.heartbeats:
        return asking(x, ask_version(Step.VERSION), now)
    return waiting(x, now + clocks.GUARD)


def missing(x: Execution, scene: Scene) -> str:
    """What was not seen in time, in a sentence."""
    if not x.is_read:
        cause = "the device did not prove that it runs the new version"
        return f"{cause}: {x.reason}" if x.reason else f"{cause}: it was not heard after the update"
    came = f"only {x.beats} of {scene.order.heartbeats} good heartbeats came in time"
    return f"{came}: {x.reason}" if x.reason else came
