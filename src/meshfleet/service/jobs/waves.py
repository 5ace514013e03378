"""Waves: groups of devices of a job that are updated one group after another.

Connected devices come first, because a first wave of offline devices would delay the later waves (rest-208).
Apart from that, the order depends only on the random seed of the job: equal seeds give equal waves.
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

    from meshfleet.rest.job_requests import Wave

_MASK: Final = 2**64 - 1
# Constants of splitmix64, a hash that maps different 64-bit integers to different hashes.
_MIX_INCREMENT: Final = 0x9E3779B97F4A7C15
_MIX_FACTOR_1: Final = 0xBF58476D1CE4E5B9
_MIX_FACTOR_2: Final = 0x94D049BB133111EB

_PERCENT: Final = 100


class PlannedWave(NamedTuple):
    """Planned wave of a job: name, and number of devices."""

    name: str | None
    size: int


class WavePosition(NamedTuple):
    """Position of a device in the update order of a job."""

    wave: int
    """Index of the wave, from 0."""
    rank: int
    """Position in the update order of the whole job, from 0."""


class WaveAssignment:
    """Assigns the devices of a job to waves, in an order that depends on a random seed."""

    def __init__(
        self, seed: int, devices: Iterable[int], requested: Sequence[Wave], deferred: Iterable[int] = ()
    ) -> None:
        """Plan the waves of a job. Devices in `deferred` come after all `devices`.

        `requested` are the waves of the job request; `find_wave_faults` must have found no fault in them.
        """
        self._start = _splitmix64(seed & _MASK)
        self._keys = self._sort_keys(devices)
        self._deferred_keys = self._sort_keys(deferred)
        self.planned = list(_plan_waves(requested, len(self._keys) + len(self._deferred_keys)))
        self._ends = list(accumulate(each.size for each in self.planned))

    def find_position(self, device: int) -> WavePosition:
        """Return the wave and rank of a device, which must have been passed to the constructor."""
        key = _splitmix64(self._start ^ device)
        rank = bisect_left(self._keys, key)
        if rank == len(self._keys) or self._keys[rank] != key:
            rank = len(self._keys) + bisect_left(self._deferred_keys, key)
        return WavePosition(bisect_right(self._ends, rank), rank)

    def _sort_keys(self, devices: Iterable[int]) -> array[int]:
        """Return the sorted keys of devices, which determine their order of update."""
        return array("Q", sorted(_splitmix64(self._start ^ each) for each in devices))


def find_wave_faults(waves: Sequence[Wave]) -> Iterator[Fault]:
    """Find the faults in the waves of a job request (rest-123)."""
    reached = 0.0
    for index, wave in enumerate(waves):
        if (wave.count is None) is (wave.percent is None):
            yield Fault(f"waves[{index}]", "must have either count or percent")
        elif wave.percent is not None:
            if wave.percent <= reached:
                yield Fault(
                    f"waves[{index}]",
                    f"percent is cumulative and must be more than {reached:g}, not {wave.percent:g}",
                )
            reached = max(reached, wave.percent)


def _plan_waves(requested: Sequence[Wave], devices: int) -> Iterator[PlannedWave]:
    """Plan the sizes of waves. Omit empty waves; put remaining devices into an additional last wave."""
    planned = 0
    for wave in requested:
        end = _count_share(wave.percent, devices) if wave.percent is not None else planned + (wave.count or 0)
        size = min(end, devices) - planned
        if size > 0:
            yield PlannedWave(wave.name, size)
            planned += size
    if planned < devices:
        yield PlannedWave(None, devices - planned)


def _count_share(percent: float, devices: int) -> int:
    """Return `percent` % of a number of devices, rounded up."""
    return math.ceil(round(devices * percent / _PERCENT, 6))


def _splitmix64(number: int) -> int:
    """Return the splitmix64 hash of a 64-bit integer. Different integers always have different hashes."""
    number = (number + _MIX_INCREMENT) & _MASK
    number = ((number ^ (number >> 30)) * _MIX_FACTOR_1) & _MASK
    number = ((number ^ (number >> 27)) * _MIX_FACTOR_2) & _MASK
    return number ^ (number >> 31)
