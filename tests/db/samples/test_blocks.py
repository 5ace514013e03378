"""Chunks and scans: values in, values out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.db.samples import DAY_MS, StoredSample
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

    from meshfleet.db.samples import SampleQuery, SampleRow

some_rows = st.lists(strategies.rows, max_size=12)


def is_stray(sample: StoredSample) -> bool:
    return sample.more is not None and sample.more.clock is not None


# --- Chunks ---


@given(st.lists(some_rows, max_size=5))
def test_a_chunk_has_what_was_added_in_the_order_in_which_it_came(parts: list[list[SampleRow]]) -> None:
    chunk = Block()
    added: list[SampleRow] = []
    for part in parts:
        chunk.add(part)
        added += part
        assert decode_block(bytes(chunk)) == to_samples(added)
    assert chunk.count == len(added)


@each_row("count", [0, 1, 15, 16, 255, 256, 65_535, 65_536])
def test_a_chunk_may_be_of_any_length(count: int) -> None:
    chunk = Block()
    chunk.add([build_row(time) for time in range(count)])
    assert [each.time for each in decode_block(bytes(chunk))] == list(range(count))


@given(some_rows)
def test_what_is_packed_is_unpacked_the_same(rows: list[SampleRow]) -> None:
    given_samples = to_samples(rows)
    assert [
        each for _, _, data in encode_blocks(given_samples) for each in decode_block(bytes(data))
    ] == given_samples


@each_row(
    "count", [0, 1, MAX_BLOCK_SAMPLES - 1, MAX_BLOCK_SAMPLES, MAX_BLOCK_SAMPLES + 1, 3 * MAX_BLOCK_SAMPLES]
)
def test_packs_are_as_long_as_they_may_be_and_tell_their_times(count: int) -> None:
    packs = list(encode_blocks(to_samples(build_row(time) for time in range(count))))
    assert len(packs) == -(-count // MAX_BLOCK_SAMPLES)
    for index, (first, last, data) in enumerate(packs):
        times = [each.time for each in decode_block(bytes(data))]
        assert times == list(range(index * MAX_BLOCK_SAMPLES, min(count, (index + 1) * MAX_BLOCK_SAMPLES)))
        assert (first, last) == (times[0], times[-1])


@given(some_rows, st.booleans())
def test_of_several_with_one_identity_the_first_stays(rows: list[SampleRow], newest_first: bool) -> None:  # noqa: FBT001 # drawn
    found = sort_unique_samples(to_samples(rows), newest_first=newest_first)
    firsts = {each.identity: each for each in reversed(to_samples(rows))}
    assert found == [firsts[identity] for identity in sorted(firsts, reverse=newest_first)]


# --- The head ---


@given(st.lists(strategies.batches, max_size=4))
def test_the_head_has_each_sample_under_its_day_and_strays_apart(
    batches: list[dict[int, list[SampleRow]]],
) -> None:
    head = Memtable()
    for number, batch in enumerate(batches, 1):
        head.add(number, batch)
    for device in {device for batch in batches for device in batch}:
        came = [each for batch in batches for each in to_samples(batch.get(device, ()))]
        for day, chunk in head.device_blocks(device).items():
            there = [None if is_stray(each) else each.time // DAY_MS for each in came]
            assert decode_block(chunk) == [each for each, its in zip(came, there, strict=True) if its == day]
        assert sum(len(decode_block(chunk)) for chunk in head.device_blocks(device).values()) == len(came)
    assert sum(map(head.count_samples, head.days)) == head.sample_count


def test_a_chunk_of_the_head_says_when_its_samples_can_be_from() -> None:
    head = Memtable()
    head.add(
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
    for day in head.days:
        for device, part, first, last, data in head.day_blocks(day):
            assert (device, part) == (DEVICE, 0)
            assert all(first <= each.time <= last for each in decode_block(bytes(data)))
            assert day is None or (first // DAY_MS, last // DAY_MS) == (day, day)


def test_a_chunk_of_the_head_that_is_large_is_put_in_order_and_divided() -> None:
    head = Memtable()
    head.add(
        1,
        {
            DEVICE: [build_row(time) for time in range(2 * MAX_BLOCK_SAMPLES, 0, -1)],
            OTHER: [build_row(2), build_row(1)],
        },
    )
    head.add(2, {DEVICE: [build_row(time, 2.0) for time in range(2 * MAX_BLOCK_SAMPLES + 1)]})
    chunks = {(device, part): (first, last, data) for device, part, first, last, data in head.day_blocks(0)}
    assert list(chunks) == [(DEVICE, 0), (DEVICE, 1), (DEVICE, 2), (OTHER, 0)]
    assert [chunks[DEVICE, part][:2] for part in range(3)] == [
        (0, MAX_BLOCK_SAMPLES - 1),
        (MAX_BLOCK_SAMPLES, 2 * MAX_BLOCK_SAMPLES - 1),
        (2 * MAX_BLOCK_SAMPLES, 2 * MAX_BLOCK_SAMPLES),
    ]
    found = [each for part in range(3) for each in decode_block(chunks[DEVICE, part][2])]
    assert [each.time for each in found] == list(range(2 * MAX_BLOCK_SAMPLES + 1))
    assert [each.number for each in found[:2]] == [2.0, 1.0]
    assert [each.time for each in decode_block(chunks[OTHER, 0][2])] == [2, 1]


# --- Scans ---


@given(some_rows, strategies.sample_queries())
def test_a_scan_gives_what_is_wanted_in_order_and_once(rows: list[SampleRow], asked: SampleQuery) -> None:
    came = to_samples(rows)
    strays = [each for each in came if is_stray(each)]
    days: dict[int, list[StoredSample]] = {}
    for each in came:
        if not is_stray(each):
            days.setdefault(each.time // DAY_MS, []).append(each)
    best = {each.identity: each for each in reversed(strays)}
    best |= {each.identity: each for day in days.values() for each in reversed(day)}
    expected = [best[identity] for identity in sorted(best, reverse=asked.newest_first)]

    def ordered(some: list[StoredSample]) -> list[StoredSample]:
        return sort_unique_samples(filter(asked.matches, some), newest_first=asked.newest_first)

    found = scan_days(asked, days, lambda day: ordered(days[day]), ordered(strays))
    assert list(found) == list(filter(asked.matches, expected))


@given(strategies.rows, strategies.sample_queries())
def test_what_is_wanted_is_within_the_bounds(each: SampleRow, asked: SampleQuery) -> None:
    since, until = asked.time_range
    assert asked.since <= since
    assert until <= asked.until
    (sample,) = to_samples([each])
    assert since <= sample.time < until or not asked.matches(sample)


def test_bounds_begin_with_the_time_after_which_more_is_wanted() -> None:
    after = (50, 1, 1, 1)
    assert build_query(since=10, until=90, after=after).time_range == (50, 90)
    assert build_query(since=10, until=90, after=after, newest_first=True).time_range == (10, 51)
    assert build_query(since=60, until=90, after=after).time_range == (60, 90)
    assert build_query(since=10, until=40, after=after, newest_first=True).time_range == (10, 40)


@pytest.mark.parametrize(("newest_first", "first"), [(False, 0), (True, 9)])
def test_a_scan_loads_no_day_before_it_is_needed(newest_first: bool, first: int) -> None:  # noqa: FBT001 # a case
    loaded = []

    def load(day: int) -> Iterator[StoredSample]:
        loaded.append(day)
        yield StoredSample(*build_row(day * DAY_MS))

    found = scan_days(build_query(newest_first=newest_first), range(10), load, ())
    assert next(found).time == first * DAY_MS
    assert set(loaded) <= {first, abs(first - 1)}


def test_a_scan_loads_no_day_in_which_nothing_is_wanted() -> None:
    loaded = []

    def load(day: int) -> list[StoredSample]:
        loaded.append(day)
        return []

    assert list(scan_days(build_query(since=2 * DAY_MS, until=4 * DAY_MS), range(10), load, ())) == []
    identity = (3 * DAY_MS, 1, 1, 1)
    assert (
        list(scan_days(build_query(since=2 * DAY_MS, until=5 * DAY_MS, after=identity), range(10), load, ()))
        == []
    )
    asked = build_query(since=2 * DAY_MS, until=5 * DAY_MS, after=identity, newest_first=True)
    assert list(scan_days(asked, range(10), load, ())) == []
    assert loaded == [2, 3, 3, 4, 3, 2]


# --- Retention ---


def test_a_kind_is_expired_from_the_moment_on_at_which_it_was_kept_long_enough() -> None:
    retention = {0: 10, 1: None, 3: 20}
    every = frozenset({0, 1, 2, 3})
    assert find_expired_kinds(retention, every, NOON, NOON + 9) == frozenset()
    assert find_expired_kinds(retention, every, NOON, NOON + 10) == {0}
    assert find_expired_kinds(retention, every, NOON, NOON + 20) == {0, 3}
    assert find_expired_kinds(retention, frozenset({1, 3}), NOON, NOON + 10**15) == {3}
