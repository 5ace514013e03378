"""Sweeps: the same comes out as from all pieces at once, and none is loaded in vain."""

from __future__ import annotations

from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.db.samples import segments
from meshfleet.db.samples.block import MAX_BLOCK_SAMPLES, decode_block, sort_unique_samples
from meshfleet.db.samples.sorted_merge import BlockSource, merge_sources
from meshfleet.db.samples.sqlite_store import CompactionLimits
from tests.db.samples import strategies
from tests.db.samples.store_harness import DEVICE, NOON, SMALL_LIMITS, build_query, build_row, to_samples

if TYPE_CHECKING:
    from meshfleet.db.samples import SampleRow, StoredSample
    from tests.db.samples.store_harness import StoreHarness

loads = st.lists(st.lists(strategies.rows, max_size=8).map(to_samples), max_size=6)
slacks = st.lists(st.integers(0, 2**40), min_size=6, max_size=6)


def piece(load: list[StoredSample], slack: int = 0) -> BlockSource:
    """A piece whose times are told with that much to spare."""
    times = [each.time for each in load] or [0]
    return BlockSource(min(times) - slack, max(times) + slack, lambda: load)


@given(loads, slacks, st.booleans())
def test_a_sweep_gives_the_same_as_sorting_everything(
    loads: list[list[StoredSample]],
    slacks: list[int],
    newest_first: bool,  # noqa: FBT001 # drawn
) -> None:
    pieces = [piece(load, slack) for load, slack in zip(loads, slacks, strict=False)]
    expected = sort_unique_samples(chain.from_iterable(loads), newest_first=newest_first)
    assert list(merge_sources(pieces, newest_first=newest_first)) == expected


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_sweep_loads_a_piece_only_when_its_time_has_come(*, newest_first: bool) -> None:
    loaded: list[int] = []

    def load(number: int) -> list[StoredSample]:
        loaded.append(number)
        return to_samples([build_row(number * 10), build_row(number * 10 + 9)])

    pieces = [BlockSource(number * 10, number * 10 + 9, partial(load, number)) for number in range(100)]
    found = merge_sources(pieces, newest_first=newest_first)
    assert loaded == []
    order = list(range(99, -1, -1)) if newest_first else list(range(100))
    for count in range(1, 101):
        assert len(list(islice(found, 2))) == 2
        assert loaded == order[:count]


def test_of_two_pieces_that_begin_at_one_moment_both_are_loaded_and_the_earlier_counts() -> None:
    early, late = to_samples([build_row(5, 1.0)]), to_samples([build_row(5, 2.0)])
    for newest_first in (False, True):
        assert list(merge_sources([piece(early), piece(late)], newest_first=newest_first)) == early
        assert list(merge_sources([piece(late), piece(early)], newest_first=newest_first)) == late


# --- Days of many samples ---

MANY = 10 * MAX_BLOCK_SAMPLES


def rows_of_a_large_day() -> list[SampleRow]:
    """In no order, as they may come."""
    return [build_row(NOON + (step * 7919) % MANY) for step in range(MANY)]


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each chunk of a file had that was unpacked."""
    counts: list[int] = []

    def count(data: bytes) -> list[StoredSample]:
        found = decode_block(data)
        counts.append(len(found))
        return found

    monkeypatch.setattr(segments, "decode_block", count)
    return counts


@pytest.mark.anyio
@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_page_of_a_large_day_needs_few_chunks(
    files: StoreHarness, unpacked: list[int], *, newest_first: bool
) -> None:
    files.commit({DEVICE: rows_of_a_large_day()})
    await files.maintain()
    assert unpacked == []
    asked = build_query(newest_first=newest_first)
    first = await files.store.read(asked, next)
    assert (first.time, unpacked) == (NOON + MANY - 1 if newest_first else NOON, [MAX_BLOCK_SAMPLES])
    unpacked.clear()
    middle = (NOON + MANY // 2 + 5, first.kind, first.identifier, first.seq)
    following = await files.store.read(build_query(newest_first=newest_first, after=middle), next)
    assert (following.time, len(unpacked)) == (middle[0] + (-1 if newest_first else 1), 1)
    unpacked.clear()
    assert await files.times(newest_first=newest_first) == sorted(
        range(NOON, NOON + MANY), reverse=newest_first
    )
    assert unpacked == [MAX_BLOCK_SAMPLES] * 10


@pytest.mark.anyio
async def test_large_days_that_are_merged_are_the_same_as_before(
    files: StoreHarness, unpacked: list[int]
) -> None:
    rows = rows_of_a_large_day()
    for part in (
        rows[: MANY // 2],
        rows[MANY // 3 :],
        [build_row(NOON + step, 7.0) for step in range(-3, 3)],
    ):
        files.commit({DEVICE: part})
        await files.maintain()
    before = await files.read()
    files.reopen(limits=CompactionLimits(memtable_samples=1, merge_count=3))
    await files.maintain()
    assert len(files.segment_files) == 1
    files.reopen(limits=SMALL_LIMITS)
    assert await files.read() == before
    assert [each.number for each in before[:5]] == [7.0, 7.0, 7.0, 1.0, 1.0]
    assert [each.time for each in before] == list(range(NOON - 3, NOON + MANY))
    unpacked.clear()
    await files.store.read(build_query(since=NOON + MANY - 2), list)
    assert len(unpacked) == 1
