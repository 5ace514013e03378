"""Sorted merge: equal to sorting all samples at once, without loading unneeded blocks."""

from __future__ import annotations

from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.db.samples import SampleRow, StoredSample, segments
from meshfleet.db.samples.block import MAX_BLOCK_SAMPLES, decode_block, sort_unique_samples
from meshfleet.db.samples.sorted_merge import BlockSource, merge_sources
from meshfleet.db.samples.sqlite_store import CompactionLimits
from tests.db.samples import strategies
from tests.db.samples.store_harness import DEVICE, NOON, SMALL_LIMITS, build_query, build_row, to_samples

if TYPE_CHECKING:
    from tests.db.samples.store_harness import StoreHarness

sample_lists = st.lists(st.lists(strategies.rows, max_size=8).map(to_samples), max_size=6)
slacks = st.lists(st.integers(0, 2**40), min_size=6, max_size=6)


def build_source(samples: list[StoredSample], slack: int = 0) -> BlockSource:
    """Build a source whose time range is wider than its samples by `slack`."""
    times = [sample.time for sample in samples] or [0]
    return BlockSource(min(times) - slack, max(times) + slack, lambda: samples)


@given(sample_lists, slacks, st.booleans())
def test_a_merge_equals_sorting_all_samples(
    sample_lists: list[list[StoredSample]],
    slacks: list[int],
    newest_first: bool,  # noqa: FBT001 # drawn by Hypothesis
) -> None:
    sources = [build_source(samples, slack) for samples, slack in zip(sample_lists, slacks, strict=False)]
    expected = sort_unique_samples(chain.from_iterable(sample_lists), newest_first=newest_first)
    assert list(merge_sources(sources, newest_first=newest_first)) == expected


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_merge_loads_a_source_only_when_its_time_is_reached(*, newest_first: bool) -> None:
    loaded: list[int] = []

    def load_source(number: int) -> list[StoredSample]:
        loaded.append(number)
        return to_samples([build_row(number * 10), build_row(number * 10 + 9)])

    sources = [
        BlockSource(number * 10, number * 10 + 9, partial(load_source, number)) for number in range(100)
    ]
    merged = merge_sources(sources, newest_first=newest_first)
    assert loaded == []
    order = list(range(99, -1, -1)) if newest_first else list(range(100))
    for count in range(1, 101):
        assert len(list(islice(merged, 2))) == 2
        assert loaded == order[:count]


def test_of_two_sources_with_the_same_start_the_first_one_wins() -> None:
    early, late = to_samples([build_row(5, 1.0)]), to_samples([build_row(5, 2.0)])
    for newest_first in (False, True):
        assert (
            list(merge_sources([build_source(early), build_source(late)], newest_first=newest_first)) == early
        )
        assert (
            list(merge_sources([build_source(late), build_source(early)], newest_first=newest_first)) == late
        )


# --- Days with many samples ---

MANY = 10 * MAX_BLOCK_SAMPLES


def build_large_day() -> list[SampleRow]:
    """Build the rows of a day in no particular order."""
    return [build_row(NOON + (step * 7919) % MANY) for step in range(MANY)]


@pytest.fixture
def decoded_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of samples of each decoded block of a segment."""
    counts: list[int] = []

    def decode_and_count(data: bytes) -> list[StoredSample]:
        samples = decode_block(data)
        counts.append(len(samples))
        return samples

    monkeypatch.setattr(segments, "decode_block", decode_and_count)
    return counts


@pytest.mark.anyio
@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_page_of_a_large_day_decodes_few_blocks(
    sqlite_harness: StoreHarness, decoded_counts: list[int], *, newest_first: bool
) -> None:
    sqlite_harness.commit({DEVICE: build_large_day()})
    await sqlite_harness.maintain()
    assert decoded_counts == []
    query = build_query(newest_first=newest_first)
    first = await sqlite_harness.store.read(query, next)
    assert (first.time, decoded_counts) == (NOON + MANY - 1 if newest_first else NOON, [MAX_BLOCK_SAMPLES])
    decoded_counts.clear()
    middle = (NOON + MANY // 2 + 5, first.kind, first.identifier, first.seq)
    following = await sqlite_harness.store.read(build_query(newest_first=newest_first, after=middle), next)
    assert (following.time, len(decoded_counts)) == (middle[0] + (-1 if newest_first else 1), 1)
    decoded_counts.clear()
    assert await sqlite_harness.times(newest_first=newest_first) == sorted(
        range(NOON, NOON + MANY), reverse=newest_first
    )
    assert decoded_counts == [MAX_BLOCK_SAMPLES] * 10


@pytest.mark.anyio
async def test_merging_large_days_does_not_change_them(
    sqlite_harness: StoreHarness, decoded_counts: list[int]
) -> None:
    rows = build_large_day()
    for part in (
        rows[: MANY // 2],
        rows[MANY // 3 :],
        [build_row(NOON + step, 7.0) for step in range(-3, 3)],
    ):
        sqlite_harness.commit({DEVICE: part})
        await sqlite_harness.maintain()
    before = await sqlite_harness.read()
    sqlite_harness.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=3))
    await sqlite_harness.maintain()
    assert len(sqlite_harness.segment_files) == 1
    sqlite_harness.reopen(limits=SMALL_LIMITS)
    assert await sqlite_harness.read() == before
    assert [sample.number for sample in before[:5]] == [7.0, 7.0, 7.0, 1.0, 1.0]
    assert [sample.time for sample in before] == list(range(NOON - 3, NOON + MANY))
    decoded_counts.clear()
    await sqlite_harness.store.read(build_query(since=NOON + MANY - 2), list)
    assert len(decoded_counts) == 1
