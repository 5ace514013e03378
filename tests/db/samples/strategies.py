"""Hypothesis strategies for samples and queries. There are few identities, so that duplicates occur."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from meshfleet.db.samples import NO_SEQ, SampleExtras, SampleKind, SampleQuery, SampleRow
from tests.db.samples.store_harness import ALL_TIME, DAY, DEVICE, NOON, OTHER

MIDNIGHT = NOON - NOON % DAY

TIMES = [
    *(MIDNIGHT + day * DAY + offset for day in (-1, 0, 1) for offset in (-1, 0, 1)),
    NOON,
    *(0, -1, DAY, -DAY - 1),
    -315_619_200_000,  # 1960
    4_102_444_799_999,  # the end of 2099
]
FAR_TIMES = [-62_135_596_800_000, 253_402_300_799_999]
"""First and last time that a report can have; both are implausible."""
IDENTIFIERS = [0x8800, -1, 2**48 - 1, -(2**62)]
SEQS = [NO_SEQ, 0, 255]
CLOCKS = [None, None, None, 1, 2, 3]
MORES = [
    *(None, None, None),
    SampleExtras(text='"ä\\n"'),
    SampleExtras(text="true", ext='{"a":1}'),
    SampleExtras(ext="{}"),
    SampleExtras(error=9, error_ext=-(2**53)),
    SampleExtras(error=0),
    SampleExtras(shift=-21_600_000),
]
VALUES: list[tuple[float | int | None, bytes | None]] = [
    *((21.5, None), (1, b"\1"), (None, b""), (None, None), (-0.25, b"\0\xff'\\"), (2**53, None)),
]
times = st.sampled_from(TIMES)
devices = st.sampled_from([DEVICE, OTHER, 0, 2**48 - 1])
identities = st.tuples(
    times, st.sampled_from(SampleKind), st.sampled_from(IDENTIFIERS), st.sampled_from(SEQS)
)


def _build_row(number: int) -> SampleRow:
    """Build a row from one number: drawing one number is many times faster than one for each field."""
    gateway = 0xD0CF5E000000 + number % 1009
    number, kind = divmod(number, len(SampleKind))
    number, identifier = divmod(number, len(IDENTIFIERS))
    number, seq = divmod(number, len(SEQS))
    number, value = divmod(number, len(VALUES))
    number, clock = divmod(number, len(CLOCKS))
    number, more = divmod(number, len(MORES))
    possible_times = TIMES if CLOCKS[clock] is None else TIMES + FAR_TIMES
    extras = _add_clock_flag(MORES[more], CLOCKS[clock])
    return (
        possible_times[number % len(possible_times)],
        kind,
        IDENTIFIERS[identifier],
        SEQS[seq],
        gateway,
        *VALUES[value],
        extras,
    )


def _add_clock_flag(more: SampleExtras | None, clock: int | None) -> SampleExtras | None:
    if clock is None:
        return more
    extras = more or SampleExtras()
    return SampleExtras(extras.text, extras.ext, extras.error, extras.error_ext, clock, extras.shift)


rows = st.integers(0, 2**32).map(_build_row)
"""Rows, some of them with an implausible time."""

batches = st.dictionaries(devices, st.lists(rows, min_size=1, max_size=8), max_size=3)

moments = st.sampled_from([*TIMES, *FAR_TIMES, *ALL_TIME.values()])


def sample_queries() -> st.SearchStrategy[SampleQuery]:
    """Return a strategy for any query."""
    values: dict[str, Any] = {
        "device": devices,
        "kinds": st.sampled_from([*map(frozenset, ((), (1,), (0, 3, 5))), frozenset(SampleKind)]),
        "identifier": st.none() | st.sampled_from(IDENTIFIERS),
        "since": st.just(ALL_TIME["since"]) | moments,
        "until": st.just(ALL_TIME["until"]) | moments,
        "newest_first": st.booleans(),
        "after": st.none() | identities,
    }
    return st.builds(SampleQuery, **values)
