"""Blocks, the memtable and scans without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.db.samples import DAY_MS, SampleQuery, SampleRow, StoredSample
from meshfleet.db.samples.block import (
    MAX_BLOCK_SAMPLES,
    Block,
    decode_block,
    encode_blocks,
    sort_unique_samples,
)
from meshfleet.db.samples.memtable import Memtable
from meshfleet.db.samples.sample import find_expired_kinds
from meshfleet.db.samples.sorted_merge import scan_days
from tests.db.samples import strategies
from tests.db.samples.store_harness import (
    DEVICE,
    NOON,
    OTHER,
    build_query,
    build_row,
    build_stray_row,
    to_samples,
)
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator


row_lists = st.lists(strategies.rows, max_size=12)


def is_stray(sample: StoredSample) -> bool:
    return sample.more is not None and sample.more.clock is not None


# --- Blocks ---


@given(st.lists(row_lists, max_size=5))
def test_a_block_keeps_the_added_samples_in_order(parts: list[list[SampleRow]]) -> None:
    block = Block()
    added: list[SampleRow] = []
    for part in parts:
        block.add(part)
        added += part
        assert decode_block(bytes(block)) == to_samples(added)
    assert block.count == len(added)


@each_row("count", [0, 1, 15, 16, 255, 256, 65_535, 65_536])
def test_a_block_may_have_any_length(count: int) -> None:
    block = Block()
    block.add([build_row(time) for time in range(count)])
    assert [sample.time for sample in decode_block(bytes(block))] == list(range(count))


@given(row_lists)
def test_encoded_blocks_are_decoded_unchanged(rows: list[SampleRow]) -> None:
    samples = to_samples(rows)
    assert [
        sample for row in encode_blocks(1, samples) for sample in decode_block(bytes(row.samples))
    ] == samples


@each_row(
    "count", [0, 1, MAX_BLOCK_SAMPLES - 1, MAX_BLOCK_SAMPLES, MAX_BLOCK_SAMPLES + 1, 3 * MAX_BLOCK_SAMPLES]
)
def test_encoded_blocks_have_the_maximum_length_and_their_time_range(count: int) -> None:
    blocks = list(encode_blocks(1, to_samples(build_row(time) for time in range(count))))
    assert len(blocks) == -(-count // MAX_BLOCK_SAMPLES)
    assert [(block.device, block.part) for block in blocks] == [(1, part) for part in range(len(blocks))]
    for index, block in enumerate(blocks):
        times = [sample.time for sample in decode_block(bytes(block.samples))]
        assert times == list(range(index * MAX_BLOCK_SAMPLES, min(count, (index + 1) * MAX_BLOCK_SAMPLES)))
        assert (block.first, block.last) == (times[0], times[-1])


@given(row_lists, st.booleans())
def test_the_first_sample_of_an_identity_is_kept(rows: list[SampleRow], newest_first: bool) -> None:  # noqa: FBT001 # drawn by Hypothesis
    kept = sort_unique_samples(to_samples(rows), newest_first=newest_first)
    first_by_identity = {sample.identity: sample for sample in reversed(to_samples(rows))}
    assert kept == [
        first_by_identity[identity] for identity in sorted(first_by_identity, reverse=newest_first)
    ]


# --- Memtable ---


@given(st.lists(strategies.batches, max_size=4))
def test_the_memtable_stores_samples_by_day_and_strays_separately(
    batches: list[dict[int, list[SampleRow]]],
) -> None:
    memtable = Memtable()
    for number, batch in enumerate(batches, 1):
        memtable.add(number, batch)
    for device in {device for batch in batches for device in batch}:
        received = [sample for batch in batches for sample in to_samples(batch.get(device, ()))]
        for day, block in memtable.copy_device_blocks(device).items():
            days = [None if is_stray(sample) else sample.time // DAY_MS for sample in received]
            assert decode_block(block) == [
                sample for sample, its_day in zip(received, days, strict=True) if its_day == day
            ]
        assert sum(len(decode_block(block)) for block in memtable.copy_device_blocks(device).values()) == len(
            received
        )
    assert sum(map(memtable.count_samples, memtable.days)) == memtable.sample_count


def test_blocks_of_the_memtable_have_the_time_range_of_their_day() -> None:
    memtable = Memtable()
    memtable.add(
        1,
        {
            DEVICE: [
                build_row(-1),
                build_row(0),
                build_row(DAY_MS - 1),
                build_stray_row(strategies.FAR_TIMES[0]),
            ]
        },
    )
    for day in memtable.days:
        for block in memtable.build_day_rows(day):
            assert (block.device, block.part) == (DEVICE, 0)
            times = [sample.time for sample in decode_block(bytes(block.samples))]
            assert block.first <= min(times) <= max(times) <= block.last
            assert day is None or (block.first // DAY_MS, block.last // DAY_MS) == (day, day)


def test_a_large_block_of_the_memtable_is_sorted_and_split() -> None:
    memtable = Memtable()
    memtable.add(
        1,
        {
            DEVICE: [build_row(time) for time in range(2 * MAX_BLOCK_SAMPLES, 0, -1)],
            OTHER: [build_row(2), build_row(1)],
        },
    )
    memtable.add(2, {DEVICE: [build_row(time, 2.0) for time in range(2 * MAX_BLOCK_SAMPLES + 1)]})
    blocks = list(memtable.build_day_rows(0))
    assert [block[:2] for block in blocks] == [(DEVICE, 0), (DEVICE, 1), (DEVICE, 2), (OTHER, 0)]
    assert [(block.first, block.last) for block in blocks[:3]] == [
        (0, MAX_BLOCK_SAMPLES - 1),
        (MAX_BLOCK_SAMPLES, 2 * MAX_BLOCK_SAMPLES - 1),
        (2 * MAX_BLOCK_SAMPLES, 2 * MAX_BLOCK_SAMPLES),
    ]
    samples = [sample for block in blocks[:3] for sample in decode_block(block.samples)]
    assert [sample.time for sample in samples] == list(range(2 * MAX_BLOCK_SAMPLES + 1))
    assert [sample.number for sample in samples[:2]] == [2.0, 1.0]
    assert [sample.time for sample in decode_block(blocks[3].samples)] == [2, 1]


# --- Scans ---


@given(row_lists, strategies.sample_queries())
def test_a_scan_returns_matching_samples_in_order_without_duplicates(
    rows: list[SampleRow], query: SampleQuery
) -> None:
    received = to_samples(rows)
    strays = [sample for sample in received if is_stray(sample)]
    days: dict[int, list[StoredSample]] = {}
    for sample in received:
        if not is_stray(sample):
            days.setdefault(sample.time // DAY_MS, []).append(sample)
    expected_by_identity = {sample.identity: sample for sample in reversed(strays)}
    expected_by_identity |= {sample.identity: sample for day in days.values() for sample in reversed(day)}
    expected = [
        expected_by_identity[identity]
        for identity in sorted(expected_by_identity, reverse=query.newest_first)
    ]

    def filter_and_sort(samples: list[StoredSample]) -> list[StoredSample]:
        return sort_unique_samples(filter(query.matches, samples), newest_first=query.newest_first)

    scanned = scan_days(query, days, lambda day: filter_and_sort(days[day]), filter_and_sort(strays))
    assert list(scanned) == list(filter(query.matches, expected))


@given(strategies.rows, strategies.sample_queries())
def test_matching_samples_are_within_the_time_range(row: SampleRow, query: SampleQuery) -> None:
    since, until = query.time_range
    assert query.since <= since
    assert until <= query.until
    (sample,) = to_samples([row])
    assert since <= sample.time < until or not query.matches(sample)


def test_the_time_range_starts_at_the_last_sample_of_the_previous_page() -> None:
    after = (50, 1, 1, 1)
    assert build_query(since=10, until=90, after=after).time_range == (50, 90)
    assert build_query(since=10, until=90, after=after, newest_first=True).time_range == (10, 51)
    assert build_query(since=60, until=90, after=after).time_range == (60, 90)
    assert build_query(since=10, until=40, after=after, newest_first=True).time_range == (10, 40)


@pytest.mark.parametrize(("newest_first", "first_day"), [(False, 0), (True, 9)])
def test_a_scan_loads_no_day_before_it_is_needed(newest_first: bool, first_day: int) -> None:  # noqa: FBT001 # a parameter
    loaded = []

    def load_day(day: int) -> Iterator[StoredSample]:
        loaded.append(day)
        yield StoredSample(*build_row(day * DAY_MS))

    scanned = scan_days(build_query(newest_first=newest_first), range(10), load_day, ())
    assert next(scanned).time == first_day * DAY_MS
    assert set(loaded) <= {first_day, abs(first_day - 1)}


def test_a_scan_loads_no_day_outside_the_time_range() -> None:
    loaded = []

    def load_day(day: int) -> list[StoredSample]:
        loaded.append(day)
        return []

    assert list(scan_days(build_query(since=2 * DAY_MS, until=4 * DAY_MS), range(10), load_day, ())) == []
    identity = (3 * DAY_MS, 1, 1, 1)
    assert (
        list(
            scan_days(
                build_query(since=2 * DAY_MS, until=5 * DAY_MS, after=identity), range(10), load_day, ()
            )
        )
        == []
    )
    query = build_query(since=2 * DAY_MS, until=5 * DAY_MS, after=identity, newest_first=True)
    assert list(scan_days(query, range(10), load_day, ())) == []
    assert loaded == [2, 3, 3, 4, 3, 2]


# --- Retention ---


def test_a_kind_expires_at_the_end_of_its_retention() -> None:
    retention = {0: 10, 1: None, 3: 20}
    all_kinds = frozenset({0, 1, 2, 3})
    assert find_expired_kinds(retention, all_kinds, NOON, NOON + 9) == frozenset()
    assert find_expired_kinds(retention, all_kinds, NOON, NOON + 10) == {0}
    assert find_expired_kinds(retention, all_kinds, NOON, NOON + 20) == {0, 3}
    assert find_expired_kinds(retention, frozenset({1, 3}), NOON, NOON + 10**15) == {3}
