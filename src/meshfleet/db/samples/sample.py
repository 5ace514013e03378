"""What is kept of a report: plain values, the same in every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from sqlalchemy import Connection


# How long samples are kept.

Retention: TypeAlias = Mapping[int, int | None]
"""Milliseconds for each kind; None: for ever."""


def decode_kind_mask(mask: int) -> frozenset[int]:
    """Kinds that are given as bits."""
    return frozenset(kind for kind in range(mask.bit_length()) if mask >> kind & 1)


def find_expired_kinds(
    retention: Retention, kinds: AbstractSet[int], age_from: int, now: int
) -> frozenset[int]:
    """Which of some kinds nobody wants any more."""
    return frozenset(
        kind for kind in kinds if (kept := retention.get(kind)) is not None and age_from + kept <= now
    )


DAY_MS: Final = 86_400_000
"""Milliseconds."""

NO_SEQ: Final = -1
"""Stands for the `seq` of a sample that came without one (report-35)."""


class SampleKind(IntEnum):
    """The kinds of samples, as they are stored."""

    PROPERTY = 0
    MEASUREMENT = 1
    MEASUREMENT_ERROR = 2
    EVENT = 3
    LINK = 4
    """How well a parent heard a device in one minute; its identifier is the parent's MAC."""
    HEARTBEAT = 5
    """The heartbeats of one minute."""


ALL_KINDS_MASK: Final = (1 << len(SampleKind)) - 1
"""A bit for each."""


class ClockFlag(IntEnum):
    """Why a sample is not stored by the day of its time: that time cannot be right."""

    FUTURE = 1
    PAST = 2
    CORRECTED = 3
    """It cannot be right, but corrected by the offset of the gateway's clock it is believed."""


class SampleExtras(Struct, array_like=True, frozen=True, gc=False):
    """What few samples have."""

    text: str | None = None
    """The value as JSON, where it is no number, or not only one."""
    ext: str | None = None
    """As JSON."""
    error: int | None = None
    error_ext: int | None = None
    clock: int | None = None
    shift: int | None = None
    """Milliseconds that correct the time; None: the clock of the gateway was right, or not known."""

    @property
    def has_plausible_time(self) -> bool:
        """Whether the time, corrected if need be, can be right."""
        return self.clock is None or self.clock == ClockFlag.CORRECTED


class StoredSample(Struct, array_like=True, frozen=True, gc=False):
    """A sample of one device. The first four fields are its identity, and sort it."""

    time: int
    """Milliseconds since 1970."""
    kind: int
    identifier: int
    """The hex identifier as a number; a name that no catalogue knows is a negative one."""
    seq: int
    gateway: int
    number: float | int | None
    """The value, if it is a number; true and false are 1 and 0."""
    raw: bytes | None
    more: SampleExtras | None

    @property
    def identity(self) -> SampleIdentity:
        """By what it is recognised when it comes again."""
        return self.time, self.kind, self.identifier, self.seq


SampleIdentity: TypeAlias = tuple[int, int, int, int]

SampleRow: TypeAlias = tuple[int, int, int, int, int, float | int | None, bytes | None, SampleExtras | None]
"""A `Sample` as a tuple of its fields. On the way in there are too many of them for anything more."""

SampleRows: TypeAlias = Mapping[int, Sequence[SampleRow]]
"""New samples by device."""


class SampleQuery(Struct, frozen=True, kw_only=True):
    """Which samples of a device are asked for; all that is given must hold."""

    device: int
    kinds: frozenset[int]
    identifier: int | None = None
    since: int
    """Milliseconds; a sample of this very moment is among them."""
    until: int
    """Milliseconds; a sample of this very moment is not."""
    newest_first: bool = False
    after: SampleIdentity | None = None
    """Only those that follow this one in the order that is asked for."""

    @property
    def time_range(self) -> tuple[int, int]:
        """`since` and `until`, without what lies before `after` in the order that is asked for."""
        if self.after is None:
            return self.since, self.until
        if self.newest_first:
            return self.since, min(self.until, self.after[0] + 1)
        return max(self.since, self.after[0]), self.until

    def matches(self, sample: StoredSample) -> bool:
        """Whether a sample is among them."""
        if not self.since <= sample.time < self.until or sample.kind not in self.kinds:
            return False
        if self.identifier is not None and sample.identifier != self.identifier:
            return False
        if self.after is None:
            return True
        return sample.identity < self.after if self.newest_first else sample.identity > self.after


Result = TypeVar("Result")


SampleConsumer: TypeAlias = Callable[[Iterator[StoredSample]], Result]
"""What is done with samples, in a thread. They come one by one, in order, each once.

It may be done again from the beginning, when something moved while it was done.
"""


class SampleStore(Protocol):
    """Where samples are."""

    def write(self, transaction: Connection, rows: SampleRows, now: int) -> int:
        """Store samples with the transaction; those that are there already stay as they are.

        Gives a number for `committed`. Nothing else may be written between the two.
        """

    def publish_committed(self, number: int, rows: SampleRows) -> None:
        """Let readers see what was written, now that it is committed."""

    async def wait_for_capacity(self) -> None:
        """Wait until more may be written: what is written must be put in order at some time."""

    async def read(self, query: SampleQuery, consume: SampleConsumer[Result]) -> Result:
        """Go through the samples that are wanted."""

    async def ensure_capacity(self, now: int) -> None:
        """Do what soon will be waited for: that part of `tend` that must not wait for the rest of it."""

    async def maintain(self, now: int) -> None:
        """Put in order what was written, and remove what nobody wants any more."""

    def close(self) -> None:
        """Let running work end."""
