"""Chunks: samples of one device as bytes.

A chunk is a MessagePack array of samples. It grows at its end while it is in memory; how many there are is
written at its front when it is read or stored.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from meshfleet.db.samples.sample import StoredSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from meshfleet.db.samples.sample import SampleRow

_ARRAY_HEADER: Final = b"\xdd\0\0\0\0"
"""An array, with its length in four bytes."""

MAX_BLOCK_SAMPLES: Final = 2048
"""Samples in a chunk that is stored for good: few enough to pass over those that are not asked for."""

_encoder = msgspec.msgpack.Encoder()
_append = _encoder.encode_into
_encode = _encoder.encode
_decode = msgspec.msgpack.Decoder(list[StoredSample]).decode


BlockRow = tuple[int, int, int, int, bytearray]
"""Device, part, the times of the first and the last sample, and the samples; as a segment has it.

As a bytearray: for bytes, SQLite's driver first looks for somebody who would make something else of them.
"""


class Block:
    """A chunk that grows."""

    __slots__ = ("_data", "count")

    def __init__(self) -> None:
        self.count = 0
        self._data = bytearray(_ARRAY_HEADER)

    def add(self, rows: Sequence[SampleRow]) -> int:
        """Add samples in the order in which they come; gives how many bytes they take."""
        data = self._data
        before = len(data)
        for row in rows:
            _append(row, data, -1)
        self.count += len(rows)
        return len(data) - before

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    @property
    def data(self) -> bytearray:
        """Itself, which may still grow."""
        self._data[1:5] = self.count.to_bytes(4)
        return self._data


def decode_block(block: bytes | bytearray) -> list[StoredSample]:
    """The samples of a chunk."""
    return _decode(block)


def encode_blocks(samples: Iterable[StoredSample]) -> Iterator[tuple[int, int, bytearray]]:
    """Chunks of samples that are in order, with the times of the first and the last of each."""
    source = iter(samples)
    while part := list(islice(source, MAX_BLOCK_SAMPLES)):
        yield part[0].time, part[-1].time, bytearray(_encode(part))


def sort_unique_samples(samples: Iterable[StoredSample], *, newest_first: bool = False) -> list[StoredSample]:
    """Samples in order, each once; of two with the same identity the first that came (report-36)."""
    found: dict[tuple[int, int, int, int], StoredSample] = {}
    for sample in samples:
        found.setdefault(sample.identity, sample)
    return [found[identity] for identity in sorted(found, reverse=newest_first)]
