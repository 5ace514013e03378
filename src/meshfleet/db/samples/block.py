"""Blocks: samples of one device, encoded as bytes.

A block is a MessagePack array of samples. In memory, samples are appended to the block; the number of samples
is written to the array header when the block is read or stored.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meshfleet.db.samples.sample import SampleRow, StoredSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_ARRAY_HEADER: Final = b"\xdd\0\0\0\0"
"""Header of an empty MessagePack array with a four-byte length."""

MAX_BLOCK_SAMPLES: Final = 2048
"""Maximum samples in a stored block: small enough that a reader can skip blocks outside its time range."""

_encoder = msgspec.msgpack.Encoder()
_append = _encoder.encode_into
_encode = _encoder.encode
_decode = msgspec.msgpack.Decoder(list[StoredSample]).decode


class BlockRow(NamedTuple):
    """Row of a segment: one block with the encoded samples of a device."""

    device: int
    part: int
    """Index of the block among the blocks of the device in the segment."""
    first: int
    """Inclusive lower bound of the sample times, as Unix time in milliseconds."""
    last: int
    """Inclusive upper bound of the sample times, as Unix time in milliseconds."""
    samples: bytearray
    """Encoded samples; a bytearray, because for bytes SQLite's driver first searches for an adapter."""


class Block:
    """Encoded samples of one device in memory, to which new samples are appended."""

    __slots__ = ("_data", "count")

    def __init__(self) -> None:
        self.count = 0
        self._data = bytearray(_ARRAY_HEADER)

    def add(self, rows: Sequence[SampleRow]) -> int:
        """Append samples to the block, in the order of `rows`. Return the number of bytes added."""
        data = self._data
        old_size = len(data)
        for row in rows:
            _append(row, data, -1)
        self.count += len(rows)
        return len(data) - old_size

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    @property
    def data(self) -> bytearray:
        """Encoded samples. The bytearray is the internal buffer, to which `add` appends, not a copy."""
        self._data[1:5] = self.count.to_bytes(4)
        return self._data


def decode_block(block: bytes | bytearray) -> list[StoredSample]:
    """Decode the samples of a block."""
    return _decode(block)


def encode_blocks(device: int, samples: Iterable[StoredSample]) -> Iterator[BlockRow]:
    """Encode the sorted samples of a device as blocks of at most `MAX_BLOCK_SAMPLES`."""
    source = iter(samples)
    for part in count():
        block = list(islice(source, MAX_BLOCK_SAMPLES))
        if not block:
            return
        yield BlockRow(device, part, block[0].time, block[-1].time, bytearray(_encode(block)))


def sort_unique_samples(samples: Iterable[StoredSample], *, newest_first: bool = False) -> list[StoredSample]:
    """Sort samples by identity. Of samples with equal identity, keep only the first received (report-36)."""
    by_identity: dict[tuple[int, int, int, int], StoredSample] = {}
    for sample in samples:
        by_identity.setdefault(sample.identity, sample)
    return [by_identity[identity] for identity in sorted(by_identity, reverse=newest_first)]
