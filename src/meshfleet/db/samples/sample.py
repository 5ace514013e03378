"""Stored samples, their retention, and the interface of the sample stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection

    from meshfleet.db.samples.sample_log import SampleReader


Retention: TypeAlias = Mapping[int, int | None]
"""Retention in milliseconds by sample kind; None means forever."""


def decode_kind_mask(mask: int) -> frozenset[int]:
    """Return the sample kinds whose bits are set in a bit mask (bit 0 for kind 0)."""
    return frozenset(kind for kind in range(mask.bit_length()) if mask >> kind & 1)


def find_expired_kinds(
    retention: Retention, kinds: AbstractSet[int], age_from: int, now: int
) -> frozenset[int]:
    """Return the sample kinds whose retention, counted from the time `age_from`, has ended at `now`.

    Both times are Unix times in milliseconds.
    """
    return frozenset(
        kind for kind in kinds if (kept := retention.get(kind)) is not None and age_from + kept <= now
    )


DAY_MS: Final = 86_400_000
"""Milliseconds in a day."""

NO_SEQ: Final = -1
"""Value of `seq` for a sample that was reported without `seq` (report-35)."""


class SampleKind(IntEnum):
    """Kind of a sample; samples are stored with its number."""

    PROPERTY = 0
    MEASUREMENT = 1
    MEASUREMENT_ERROR = 2
    EVENT = 3
    LINK = 4
    """Link quality between a device and its mesh parent in one minute; the identifier is the parent's MAC."""
    HEARTBEAT = 5
    """Number of a device's heartbeats in one minute."""


REPORTED_KINDS: Final = frozenset(
    {SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.MEASUREMENT_ERROR, SampleKind.EVENT}
)
"""Kinds of samples that devices reported, without the minute roll-ups."""

ALL_KINDS_MASK: Final = (1 << len(SampleKind)) - 1
"""Bit mask with the bits of all sample kinds set."""


class ClockFlag(IntEnum):
    """Why the reported time of a sample is implausible.

    Samples with a clock flag are stored apart, not under the day of their time.
    """

    FUTURE = 1
    PAST = 2
    CORRECTED = 3
    """The time was implausible as reported, and plausible after correction by the gateway's clock offset."""


class SampleExtras(Struct, array_like=True, frozen=True, gc=False):
    """Additional fields of a sample, which only few samples have."""

    text: str | None = None
    """Decoded value as JSON; None if the field `number` of the sample is the whole value."""
    ext: str | None = None
    """Extension fields of the value as JSON."""
    error: int | None = None
    error_ext: int | None = None
    clock: int | None = None
    shift: int | None = None
    """Milliseconds by which the reported time was corrected.

    None if the time was not corrected: the gateway's clock is right, or its offset is unknown.
    """

    @property
    def has_plausible_time(self) -> bool:
        """Whether the time of the sample, corrected if necessary, is plausible."""
        return self.clock is None or self.clock == ClockFlag.CORRECTED


class StoredSample(Struct, array_like=True, frozen=True, gc=False):
    """Sample of one device. The first four fields are the identity of the sample and the sort order."""

    time: int
    """Time of the sample as Unix time in milliseconds."""
    kind: int
    identifier: int
    """Identifier as a number, from `identifier_to_int`; negative for a name that is not in the catalogue."""
    seq: int
    gateway: int
    number: float | int | None
    """Numeric value; 1 and 0 for true and false; None if the value is not a number."""
    raw: bytes | None
    more: SampleExtras | None

    @property
    def identity(self) -> SampleIdentity:
        """Key that is unique among the samples of a device; a repeated sample has an equal key."""
        return self.time, self.kind, self.identifier, self.seq


SampleIdentity: TypeAlias = tuple[int, int, int, int]

SampleRow: TypeAlias = tuple[int, int, int, int, int, float | int | None, bytes | None, SampleExtras | None]
"""Fields of a `StoredSample` as a tuple: creating an object for each sample would slow down ingest."""

ROW_TIME: Final = 0
"""Index of the field `time` in a `SampleRow`."""
ROW_KIND: Final = 1
"""Index of the field `kind` in a `SampleRow`."""
ROW_GATEWAY: Final = 4
"""Index of the field `gateway` in a `SampleRow`."""
ROW_EXTRAS: Final = 7
"""Index of the field `more`, a `SampleExtras`, in a `SampleRow`."""

SampleRows: TypeAlias = Mapping[int, Sequence[SampleRow]]
"""New samples, by device id (the MAC as a number)."""


class SampleQuery(Struct, frozen=True, kw_only=True):
    """Filter and sort order for reading the samples of one device. A sample must match all given fields."""

    device: int
    kinds: frozenset[int]
    identifier: int | None = None
    since: int
    """Inclusive start of the sample times, as Unix time in milliseconds."""
    until: int
    """Exclusive end of the sample times, as Unix time in milliseconds."""
    newest_first: bool = False
    after: SampleIdentity | None = None
    """Identity of the last sample of the previous page; only later samples in the sort order match."""

    @property
    def time_range(self) -> tuple[int, int]:
        """Start (inclusive) and end (exclusive) of the sample times that can match, considering `after`."""
        if self.after is None:
            return self.since, self.until
        after_time, *_ = self.after
        if self.newest_first:
            return self.since, min(self.until, after_time + 1)
        return max(self.since, after_time), self.until

    def matches(self, sample: StoredSample) -> bool:
        """Return whether a sample matches the filter of this query."""
        if not self.since <= sample.time < self.until or sample.kind not in self.kinds:
            return False
        if self.identifier is not None and sample.identifier != self.identifier:
            return False
        if self.after is None:
            return True
        return sample.identity < self.after if self.newest_first else sample.identity > self.after


class WindowQuery(Struct, frozen=True, kw_only=True):
    """Filter for reading the samples of many devices in a short time range."""

    devices: Sequence[int]
    kinds: frozenset[int]
    since: int
    """Inclusive start of the sample times, as Unix time in milliseconds."""
    until: int
    """Exclusive end of the sample times, as Unix time in milliseconds."""

    def matches(self, sample: StoredSample) -> bool:
        """Return whether a sample matches the kinds and the time range of this query."""
        return self.since <= sample.time < self.until and sample.kind in self.kinds


Result = TypeVar("Result")


SampleConsumer: TypeAlias = Callable[[Iterator[StoredSample]], Result]
"""Function that takes an iterator over the samples of a query and computes a result; runs in a worker thread.

The samples are in the requested order, without duplicates. If a segment is replaced while the function reads,
the function is called again with a new iterator.
"""


DeviceSample: TypeAlias = tuple[int, StoredSample]
"""Sample with its device."""

WindowConsumer: TypeAlias = Callable[[Iterator[DeviceSample]], Result]
"""Function that takes the samples of a `WindowQuery` and computes a result; runs in a worker thread.

The samples have no order, and a repeated sample may be among them. If a segment is replaced while the
function reads, the function is called again with a new iterator.
"""


class SampleStore(Protocol):
    """Interface of the sample stores on SQLite and PostgreSQL, which hold the samples of all devices.

    The parameter `now` of its methods is the Unix time in milliseconds.
    """

    retention: Retention
    """How long samples are kept. It may be replaced at any time."""

    def write(self, transaction: Connection, rows: SampleRows, now: int) -> int:
        """Write a batch of samples within the transaction. Samples that exist already do not change.

        Return the batch number to pass to `publish_committed` after the commit. Before that call, no other
        batch may be written.
        """

    def publish_committed(self, batch_number: int, rows: SampleRows) -> None:
        """Make a batch of samples visible to readers, after its transaction was committed."""

    async def wait_for_capacity(self) -> None:
        """Wait while too many samples are in memory, because samples arrive faster than they are flushed."""

    async def read(self, query: SampleQuery, consume: SampleConsumer[Result]) -> Result:
        """Call `consume` with the samples that match `query`. Return the result of `consume`."""

    async def read_window(self, query: WindowQuery, consume: WindowConsumer[Result]) -> Result:
        """Call `consume` with the samples of many devices in a time range. Return the result of `consume`.

        Samples with an implausible time are left out.
        """

    async def open_reader(self, name: str) -> SampleReader:
        """Open the reader of all samples with this name. A new reader begins with the next batch."""

    async def remove_other_readers(self, names: Collection[str]) -> list[str]:
        """Forget the positions of all readers except those with these names. Return the forgotten names."""

    async def ensure_capacity(self, now: int) -> None:
        """Make space for new samples, so that writers do not wait; this is the urgent part of `maintain`."""

    async def maintain(self, now: int) -> None:
        """Flush samples from memory, merge segment files, and delete samples whose retention has ended."""

    def close(self) -> None:
        """Wait for running reads and compactions, then release all resources."""
