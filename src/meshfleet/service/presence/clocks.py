"""How far the clocks of gateways are off (report-48).

A clock is measured when its gateway answers us: the answer carries the time there. Between answers reports
tell whether it still goes as it did. A report that looks old may be old; but when all that a gateway brings
for a while is off by the same amount, then it is the clock: what is played again catches up, or falls behind.
Some devices have clocks of their own, so one of many is not believed as soon as several.
"""

from __future__ import annotations

from typing import Final, NamedTuple

FRESH: Final = 60_000
"""Milliseconds after which a report is no sign of life any more."""

_ALIKE: Final = 20_000
"""Milliseconds by which reports of one clock differ in how long they travel."""

_CERTAIN: Final = 60_000
"""Milliseconds for which all reports must agree. A device is silent after three times that at the earliest,
so nobody seems silent because a clock was set."""

_ALONE: Final = 30 * 60_000
"""The same when only one of several devices says so. Most of the others are heard once in that time."""

_EXACT: Final = 5_000
"""Milliseconds that are not worth a correction."""


class _Doubt(NamedTuple):
    since: int
    off: int
    witness: int
    """The only device that says so; 0: several do, or it is the only one there."""


class Clocks:
    """Knows no clock itself: every call brings the time."""

    def __init__(self) -> None:
        self.off: dict[int, int] = {}
        """Milliseconds to add to the times of gateways whose clocks are wrong."""
        self.doubts: dict[int, _Doubt] = {}
        """Gateways of whose last reports none was fresh."""

    def measure(self, gateway: int, sent: int, received: int, time: int) -> None:
        """A gateway answered at a time of its own, somewhere between two moments of ours."""
        self._set(gateway, (sent + received) // 2 - time)

    def is_fresh(self, gateway: int, time: int, now: int, witness: int = 0) -> bool:
        """Whether a report of this moment was made less than a minute ago.

        `witness` is the device that sent it, if others behind the gateway could tell as well.
        """
        if -FRESH < now - time - self.off.get(gateway, 0) < FRESH:
            self.doubts.pop(gateway, None)
            return True
        self._doubt(gateway, _Doubt(now, now - time, witness))
        return False

    def doubtful(self) -> frozenset[int]:
        """Gateways whose clocks had better be measured."""
        return frozenset(self.doubts)

    def _doubt(self, gateway: int, new: _Doubt) -> None:
        doubt = self.doubts.get(gateway)
        if doubt is None or abs(new.off - doubt.off) > _ALIKE:
            self.doubts[gateway] = new
            return
        witness = doubt.witness if doubt.witness == new.witness else 0
        self.doubts[gateway] = doubt._replace(witness=witness)
        if new.since - doubt.since >= (_ALONE if witness else _CERTAIN):
            self._set(gateway, min(new.off, doubt.off))

    def _set(self, gateway: int, off: int) -> None:
        self.doubts.pop(gateway, None)
        if abs(off) <= _EXACT:
            self.off.pop(gateway, None)
        else:
            self.off[gateway] = off
