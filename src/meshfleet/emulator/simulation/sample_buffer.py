"""Samples that a device keeps until somebody acknowledges them (ack-18).

A device has some dozen bytes for each: thousands of emulated ones share a process.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLE_CAPACITY: Final = 512
"""Samples of one identifier that a device has room for; the oldest give way."""

_SEQ_BITS: Final = 8


class DeviceSample(NamedTuple):
    """What was measured or happened, and when."""

    millis: int
    seq: int
    value: bytes | None
    """None: an event that says nothing more."""


class SampleBuffer:
    """The samples of one series, from the oldest to the newest."""

    __slots__ = ("_keys", "_values", "is_backfilling")

    def __init__(self) -> None:
        self._keys = array("q")
        """Time and seq in one number, ascending."""
        self._values: list[bytes | None] = []
        self.is_backfilling = False
        """Whether older samples are on their way: a second wish for them starts nothing (ack-22)."""

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[DeviceSample]:
        return map(self._sample, range(len(self)))

    def add(self, sample: DeviceSample) -> None:
        """Keep a sample; it is the newest, unless somebody has set the clock back."""
        if len(self._keys) >= SAMPLE_CAPACITY:
            del self._keys[0], self._values[0]
        key = sample.millis << _SEQ_BITS | sample.seq
        at = len(self._keys)
        if at and key < self._keys[-1]:
            at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._values.insert(at, sample.value)

    def remove(self, millis: int) -> bool:
        """Forget the sample of this time; whether there was one."""
        at = bisect_left(self._keys, millis << _SEQ_BITS)
        if at == len(self._keys) or self._keys[at] >> _SEQ_BITS != millis:
            return False
        del self._keys[at], self._values[at]
        return True

    def newest_before(self, millis: int, seq: int = 0) -> DeviceSample | None:
        """The sample that a backfill brings next. In a fast world several have the same time."""
        at = bisect_left(self._keys, millis << _SEQ_BITS | seq)
        return self._sample(at - 1) if at else None

    def clear(self) -> None:
        """Forget them all (ack-23)."""
        del self._keys[:], self._values[:]

    def _sample(self, at: int) -> DeviceSample:
        key = self._keys[at]
        return DeviceSample(key >> _SEQ_BITS, key & (1 << _SEQ_BITS) - 1, self._values[at])
