"""How long things may take. Every state has a clock, so every execution comes to an end."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from meshfleet.service.presence.rhythm import UNKNOWN
from meshfleet.wire.products import Way

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.jobs.update.model import Execution, Order, Scene

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

ANSWER: Final = 30 * _SECOND
"""For a response to a command or a question."""

CHECK: Final = _MINUTE
"""For a device to tell its version that reports the target version already."""

UNREACHED: Final = 10 * _MINUTE
"""For such a device to be connected, so that it can be asked."""

STARTING: Final = 10 * _MINUTE
"""For all tries to begin an update."""

_BEGIN: Final = 2 * _MINUTE
"""For a device that has accepted the start to show progress: its gateway fetches the image first."""

FINAL: Final = 90 * _SECOND
"""For an answer to the last question before an update is given up: time for three tries."""

GUARD: Final = 5 * _MINUTE
"""After which a request counts as lost whose fate nobody told."""

SOON: Final = 5 * _SECOND
AGAIN: Final = 5 * _SECOND
"""Before a command is sent again that did not come through."""

LATER: Final = 30 * _SECOND
"""Before a device is told again to start what it has."""

DFU: Final = 2 * _MINUTE
"""For a device to show up in DFU mode."""

APPLY: Final = 15 * _MINUTE
CANCEL: Final = 2 * _MINUTE
_CONFIRM: Final = 15 * _MINUTE
_INTERVALS: Final = 5
_SPARE: Final = 2
"""Heartbeats that may get lost, of those that are waited for."""
_LONGEST: Final = 7 * 24 * _HOUR
_ESTIMATES: Final = 4

OTHERS: Final = _MINUTE
"""So much later than the one that asks for all, the others of a broadcast ask themselves."""

TURN: Final = 500
"""Between two devices of a broadcast that are asked one after the other."""

_POLLS: Final = 20
"""So often an update is asked how far it is, if it takes as long as it seems to need."""
_FASTEST, _SLOWEST = 2 * _SECOND, 30 * _SECOND

_QUESTIONS: Final = 40
"""So many of these questions a job asks in a second: with more devices each of them rests longer."""
_IN_STEP: Final = 3
"""So often at least a transfer is asked before it counts as stuck."""

_LONGEST_PAUSE: Final = _MINUTE
_LATEST_RETRY: Final = 6 * _HOUR
_JITTER: Final = 0.2

RATES: Final[Mapping[Way, float]] = {Way.DOWNLOAD: 300.0, Way.BROADCAST: 200.0, Way.NORDIC_DFU: 2000.0}
"""Bytes per second that are expected of a gateway that was never measured."""


def estimate(size: int, rate: float) -> int:
    """How long the transfer of an image seems to take."""
    return int(size / max(rate, 1.0) * _SECOND)


def poll(scene: Scene) -> int:
    """How long to wait before the next question how far a transfer is."""
    usual = min(max(estimate(scene.order.size, scene.rate) // _POLLS, _FASTEST), _SLOWEST)
    turns = scene.order.transferring * _SECOND // _QUESTIONS
    return max(usual, min(turns, scene.order.step // _IN_STEP))


def begin(order: Order) -> int:
    """Return how long a device that has accepted the start may be idle before it counts as lost."""
    return min(_BEGIN, order.step)


def confirm(scene: Scene) -> int:
    """Return how long a device has to prove that it is well: time for its heartbeats, and some more.

    If its heartbeat interval is not known, the job's own clock for the whole update decides, if it has one.
    """
    if scene.rhythm is None and scene.order.total is not None:
        return scene.order.total
    heartbeats = max(_INTERVALS, scene.order.heartbeats + _SPARE)
    return max(_CONFIRM, heartbeats * (UNKNOWN if scene.rhythm is None else scene.rhythm))


def total(scene: Scene) -> int:
    """How long an update may take from its first command to its end, but for the time that it is staged."""
    if scene.order.total is not None:
        return scene.order.total
    transfer = _ESTIMATES * estimate(scene.order.size, scene.rate)
    return min(transfer + 2 * DFU + APPLY + confirm(scene), _LONGEST)


def backoff(execution: Execution, order: Order) -> int:
    """How long to wait before the next attempt: longer each time, not for all alike, and never at once.

    The last word to the attempt before must not reach the next one.
    """
    longer = min(order.backoff * 2 ** (execution.attempt - 1), _LATEST_RETRY)
    return max(_with_jitter(longer, f"{execution.job} {execution.device} {execution.attempt}"), AGAIN)


def pause(execution: Execution) -> int:
    """Return how long to wait before the next try to begin, within one attempt: longer after each try."""
    longer = min(AGAIN * 2 ** min(max(execution.tries - 1, 0), 10), _LONGEST_PAUSE)
    key = f"{execution.job} {execution.device} {execution.attempt} {execution.tries}"
    return _with_jitter(longer, key)


def _with_jitter(millis: int, key: str) -> int:
    """Spread a pause by 20 % in either direction. The same key always gives the same pause."""
    dice = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big") / 2**32
    return int(millis * (1 + _JITTER * (2 * dice - 1)))
