"""How long things may take. Every state has a clock, so every execution comes to an end."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from meshfleet.wire.products import Way

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.jobs.update.model import Execution, Order, Scene

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

TRIES: Final = 3
"""How often an update is begun before the attempt is given up."""

ANSWER: Final = 30 * _SECOND
"""For a response to a command or a question."""

CHECK: Final = _MINUTE
"""For a device to tell its version that reports the target version already."""

UNREACHED: Final = 10 * _MINUTE
"""For such a device to be connected, so that it can be asked."""

STARTING: Final = 10 * _MINUTE
"""For all tries to begin an update."""

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


def confirm(scene: Scene) -> int:
    """How long a device has to prove that it is well: for as many heartbeats as are wanted, and some more."""
    return max(_CONFIRM, max(_INTERVALS, scene.order.heartbeats + _SPARE) * scene.rhythm)


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
    key = f"{execution.job} {execution.device} {execution.attempt}".encode()
    dice = int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "big") / 2**32
    return max(int(longer * (1 + _JITTER * (2 * dice - 1))), AGAIN)
