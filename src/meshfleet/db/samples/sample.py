"""Stored samples, their retention, and the interface of the sample stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from sqlalchemy import Connection


Retention: TypeAlias = Mapping[int, int | None]
"""Retention in milliseconds by sample kind; None means forever."""


def decode_kind_mask(mask: int) -> frozenset[int]:
    """Return the sample kinds whose bits are set."""
    return frozenset(kind for kind in range(mask.bit_length()) if mask >> kind & 1)


def find_expired_kinds(
    retention: Retention, kinds: AbstractSet[int], age_from: int, now: int
) -> frozenset[int]:
    """Return the kinds whose retention has ended at `now`, counted from `age_from`."""
    return frozenset(
        kind for kind in kinds if (kept := retention.get(kind)) is not None and age_from + kept <= now
    )


DAY_MS: Final = 86_400_000
"""Milliseconds in a day."""

NO_SEQ: Final = -1
"""Placeholder for the `seq` of a sample without one (report-35)."""


class SampleKind(IntEnum):
    """Kind of a sample, as stored."""

    PROPERTY = 0
    MEASUREMENT = 1
    MEASUREMENT_ERROR = 2
    EVENT = 3
    LINK = 4
    """Link quality between a device and its parent in one minute; the identifier is the MAC of the parent."""
    HEARTBEAT = 5
    """Number of heartbeats in one minute."""


ALL_KINDS_MASK: Final = (1 << len(SampleKind)) - 1
"""Bit mask of all kinds."""


class ClockFlag(IntEnum):
    """Reason why a sample is not stored under the day of its time: that time is implausible."""

    FUTURE = 1
    PAST = 2
    CORRECTED = 3
    """Implausible as reported, but plausible after correction by the offset of the gateway's clock."""


class SampleExtras(Struct, array_like=True, frozen=True, gc=False):
    """Fields that only few samples have."""

    text: str | None = None
    """Value as JSON, unless it is just a number."""
    ext: str | None = None
    """Extension fields as JSON."""
    error: int | None = None
    error_ext: int | None = None
    clock: int | None = None
    shift: int | None = None
    """Correction of the time in milliseconds; None: the gateway's clock is right, or its offset unknown."""

    @property
    def has_plausible_time(self) -> bool:
        """Whether the time, corrected if necessary, is plausible."""
        return self.clock is None or self.clock == ClockFlag.CORRECTED


class StoredSample(Struct, array_like=True, frozen=True, gc=False):
    """Sample of one device. The first four fields are its identity and sort order."""

    time: int
    """Milliseconds since 1970."""
    kind: int
    identifier: int
    """Hex identifier as a number; negative for a name that is not in the catalogue."""
    seq: int
    gateway: int
    number: float | int | None
    """Numeric value; 1 and 0 for true and false; None if the value is not a number."""
    raw: bytes | None
    more: SampleExtras | None

    @property
    def identity(self) -> SampleIdentity:
        """Key by which a repeated sample is recognized."""
        return self.time, self.kind, self.identifier, self.seq


SampleIdentity: TypeAlias = tuple[int, int, int, int]

SampleRow: TypeAlias = tuple[int, int, int, int, int, float | int | None, bytes | None, SampleExtras | None]
"""Fields of a `StoredSample` as a tuple. On the ingest path there are too many rows for objects."""

SampleRows: TypeAlias = Mapping[int, Sequence[SampleRow]]
"""New samples by device."""


class SampleQuery(Struct, frozen=True, kw_only=True):
    """Filter for the samples of one device; a sample must match every given field."""

    device: int
    kinds: frozenset[int]
    identifier: int | None = None
    since: int
    """Start in milliseconds, inclusive."""
    until: int
    """End in milliseconds, exclusive."""
    newest_first: bool = False
    after: SampleIdentity | None = None
    """Only samples after this one in the requested order."""

    @property
    def time_range(self) -> tuple[int, int]:
        """Start and end of the query, narrowed by `after`."""
        if self.after is None:
            return self.since, self.until
        if self.newest_first:
            return self.since, min(self.until, self.after[0] + 1)
        return max(self.since, self.after[0]), self.until

    def matches(self, sample: StoredSample) -> bool:
        """Return whether a sample matches the filter."""
        if not self.since <= sample.time < self.until or sample.kind not in self.kinds:
            return False
        if self.identifier is not None and sample.identifier != self.identifier:
            return False
        if self.after is None:
            return True
        return sample.identity < self.after if self.newest_first else sample.identity > self.after


Result = TypeVar("Result")


SampleConsumer: TypeAlias = Callable[[Iterator[StoredSample]], Result]
"""Function that reads a query's samples in a worker thread: in the requested order, without duplicates.

It may be called again from the start if a segment was replaced while it was reading.
"""


class SampleStore(Protocol):
    """Store for the samples of all devices."""

    def write(self, transaction: Connection, rows: SampleRows, now: int) -> int:
        """Write samples within the transaction; samples that exist already are unchanged.

        Return the number to pass to `publish_committed` after the commit. No other batch may be written in
        between.
        """

    def publish_committed(self, number: int, rows: SampleRows) -> None:
        """Make a batch visible to readers after its transaction was committed."""

    async def wait_for_capacity(self) -> None:
        """Wait until more samples may be written, while flushing lags behind."""

    async def read(self, query: SampleQuery, consume: SampleConsumer[Result]) -> Result:
        """Call `consume` with the samples that match `query`. Return its result."""

    async def ensure_capacity(self, now: int) -> None:
        """Run the part of `maintain` that writers may soon have to wait for."""

    async def maintain(self, now: int) -> None:
        """Flush and compact what was written, and delete samples whose retention has ended."""

    def close(self) -> None:
        """Wait for running work, then release all resources."""
