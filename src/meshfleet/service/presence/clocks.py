"""How far the clocks of gateways are off (report-48).

A clock is measured when its gateway answers us: the answer carries the time there. Between answers reports
tell whether it still goes as it did. A report that looks old may be old; but when all that a gateway brings
for a while is off by the same amount, then it is the clock: what is played again catches up, or falls behind.
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

_EXACT: Final = 5_000
"""Milliseconds that are not worth a correction."""


class _Doubt(NamedTuple):
    since: int
    off: int


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

    def is_fresh(self, gateway: int, time: int, now: int) -> bool:
        """Whether a report of this moment was made less than a minute ago."""
        if -FRESH < now - time - self.off.get(gateway, 0) < FRESH:
            self.doubts.pop(gateway, None)
            return True
        self._doubt(gateway, now - time, now)
        return False

    def doubtful(self) -> frozenset[int]:
        """Gateways whose clocks had better be measured."""
        return frozenset(self.doubts)

    def _doubt(self, gateway: int, off: int, now: int) -> None:
        doubt = self.doubts.get(gateway)
        if doubt is None or abs(off - doubt.off) > _ALIKE:
            self.doubts[gateway] = _Doubt(now, off)
        elif now - doubt.since >= _CERTAIN:
            self._set(gateway, min(off, doubt.off))

    def _set(self, gateway: int, off: int) -> None:
        self.doubts.pop(gateway, None)
        if abs(off) <= _EXACT:
            self.off.pop(gateway, None)
        else:
            self.off[gateway] = off
