"""Buffer of the samples that a device keeps until they are acknowledged (ack-18).

The buffer needs only some dozen bytes per sample, because thousands of emulated devices share a process.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLE_CAPACITY: Final = 512
"""Maximum number of samples of one identifier that a device keeps; the oldest are dropped."""

_SEQ_BITS: Final = 8


class DeviceSample(NamedTuple):
    """Measurement or event of a simulated device."""

    millis: int
    """Unix time in milliseconds."""
    seq: int
    """Sequence number, 0 to 255."""
    value: bytes | None
    """Raw value; None for an event without a value."""


class SampleBuffer:
    """Unacknowledged samples of one kind and identifier of a device, from the oldest to the newest."""

    __slots__ = ("_keys", "_values", "is_backfilling")

    def __init__(self) -> None:
        self._keys = array("q")
        """Time and sequence number of each sample, combined in one integer, in ascending order."""
        self._values: list[bytes | None] = []
        self.is_backfilling = False
        """Whether a backfill is running, so that another request does not start a second one (ack-22)."""

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[DeviceSample]:
        return map(self._get_sample, range(len(self)))

    def add(self, sample: DeviceSample) -> None:
        """Add a sample in the order of time; drop the oldest sample if the buffer is full."""
        if len(self._keys) >= SAMPLE_CAPACITY:
            del self._keys[0], self._values[0]
        key = sample.millis << _SEQ_BITS | sample.seq
        index = len(self._keys)
        if index and key < self._keys[-1]:
            index = bisect_left(self._keys, key)
        self._keys.insert(index, key)
        self._values.insert(index, sample.value)

    def remove(self, millis: int) -> bool:
        """Delete the first sample with this Unix time in milliseconds. Return whether it was found."""
        index = bisect_left(self._keys, millis << _SEQ_BITS)
        if index == len(self._keys) or self._keys[index] >> _SEQ_BITS != millis:
            return False
        del self._keys[index], self._values[index]
        return True

    def find_newest_before(self, millis: int, seq: int = 0) -> DeviceSample | None:
        """Return the newest sample before a time and sequence number, or None if there is none.

        The sequence number is needed because samples of a fast simulation may have the same time.
        """
        index = bisect_left(self._keys, millis << _SEQ_BITS | seq)
        return self._get_sample(index - 1) if index else None

    def clear(self) -> None:
        """Delete all samples (ack-23)."""
        del self._keys[:], self._values[:]

    def _get_sample(self, index: int) -> DeviceSample:
        key = self._keys[index]
        return DeviceSample(key >> _SEQ_BITS, key & (1 << _SEQ_BITS) - 1, self._values[index])
