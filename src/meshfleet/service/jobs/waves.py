"""Waves: who is updated before whom.

Who can begin goes first: a first wave of devices that are away would keep all others waiting (rest-208).
Apart from that, the same seed gives the same waves, on every machine.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from meshfleet.rest import Wave

_MASK: Final = 2**64 - 1
_MIX_INCREMENT: Final = 0x9E3779B97F4A7C15
_MIX_FACTOR_1: Final = 0xBF58476D1CE4E5B9
_MIX_FACTOR_2: Final = 0x94D049BB133111EB
"""Of splitmix64, which turns any two numbers into two that have nothing in common."""

_PERCENT: Final = 100


class PlannedWave(NamedTuple):
    """A wave as it fell: with at least one device."""

    name: str | None
    size: int


class WavePosition(NamedTuple):
    """Where a device stands."""

    wave: int
    rank: int
    """Among the devices of all waves."""


class WaveAssignment:
    """The devices of a job in their order, which follows from the seed and from who comes later."""

    def __init__(
        self, seed: int, devices: Iterable[int], requested: Sequence[Wave], deferred: Iterable[int] = ()
    ) -> None:
        """`wanted` must be without faults; those in `later` come behind all others."""
        self._start = _splitmix64(seed & _MASK)
        self._keys = self._in_order(devices)
        self._deferred_keys = self._in_order(deferred)
        self.planned = list(_plan_waves(requested, len(self._keys) + len(self._deferred_keys)))
        self._ends = list(accumulate(each.size for each in self.planned))

    def find_position(self, device: int) -> WavePosition:
        """Where one of the devices stands."""
        key = _splitmix64(self._start ^ device)
        turn = bisect_left(self._keys, key)
        if turn == len(self._keys) or self._keys[turn] != key:
            turn = len(self._keys) + bisect_left(self._deferred_keys, key)
        return WavePosition(bisect_right(self._ends, turn), turn)

    def _in_order(self, devices: Iterable[int]) -> array[int]:
        return array("Q", sorted(_splitmix64(self._start ^ each) for each in devices))


def find_wave_faults(waves: Sequence[Wave]) -> Iterator[Fault]:
    """What is wrong with waves that somebody wants (rest-123)."""
    reached = 0.0
    for place, wave in enumerate(waves):
        if (wave.count is None) is (wave.percent is None):
            yield Fault(f"waves[{place}]", "needs one of count and percent")
        elif wave.percent is not None:
            if wave.percent <= reached:
                yield Fault(
                    f"waves[{place}]", f"has {wave.percent:g} percent of all, and {reached:g} come before"
                )
            reached = max(reached, wave.percent)


def _plan_waves(requested: Sequence[Wave], devices: int) -> Iterator[PlannedWave]:
    """How many devices get into which wave. One without any is left out, what is left over is a last one."""
    taken = 0
    for wave in requested:
        end = _share(wave.percent, devices) if wave.percent is not None else taken + (wave.count or 0)
        size = min(end, devices) - taken
        if size > 0:
            yield PlannedWave(wave.name, size)
            taken += size
    if taken < devices:
        yield PlannedWave(None, devices - taken)


def _share(percent: float, devices: int) -> int:
    """So many devices at least; a share of a few is one of them, not none."""
    return math.ceil(round(devices * percent / _PERCENT, 6))


def _splitmix64(number: int) -> int:
    """Another number for each number: no two devices ever share a place."""
    number = (number + _MIX_INCREMENT) & _MASK
    number = ((number ^ (number >> 30)) * _MIX_FACTOR_1) & _MASK
    number = ((number ^ (number >> 27)) * _MIX_FACTOR_2) & _MASK
    return number ^ (number >> 31)
