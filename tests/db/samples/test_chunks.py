"""Chunks and scans: values in, values out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.db.samples import DAY, Sample
from meshfleet.db.samples.chunk import MOST, Chunk, pack, unique, unpack
from meshfleet.db.samples.head import Head
from meshfleet.db.samples.retention import expired_kinds
from meshfleet.db.samples.scan import scan
from tests.db.samples import made_up
from tests.db.samples.trial import DEVICE, NOON, OTHER, row, samples, stray, wanted
from tests.tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db.samples import Row, Wanted

some_rows = st.lists(made_up.rows, max_size=12)


def is_stray(sample: Sample) -> bool:
    return sample.more is not None and sample.more.clock is not None


# --- Chunks ---


@given(st.lists(some_rows, max_size=5))
def test_a_chunk_has_what_was_added_in_the_order_in_which_it_came(parts: list[list[Row]]) -> None:
    chunk = Chunk()
    added: list[Row] = []
    for part in parts:
        chunk.add(part)
        added += part
        assert unpack(bytes(chunk)) == samples(added)
    assert chunk.count == len(added)


@each_row("count", [0, 1, 15, 16, 255, 256, 65_535, 65_536])
def test_a_chunk_may_be_of_any_length(count: int) -> None:
    chunk = Chunk()
    chunk.add([row(time) for time in range(count)])
    assert [each.time for each in unpack(bytes(chunk))] == list(range(count))


@given(some_rows)
def test_what_is_packed_is_unpacked_the_same(rows: list[Row]) -> None:
    given_samples = samples(rows)
    assert [each for _, _, data in pack(given_samples) for each in unpack(bytes(data))] == given_samples


@each_row("count", [0, 1, MOST - 1, MOST, MOST + 1, 3 * MOST])
def test_packs_are_as_long_as_they_may_be_and_tell_their_times(count: int) -> None:
    packs = list(pack(samples(row(time) for time in range(count))))
    assert len(packs) == -(-count // MOST)
    for index, (first, last, data) in enumerate(packs):
        times = [each.time for each in unpack(bytes(data))]
        assert times == list(range(index * MOST, min(count, (index + 1) * MOST)))
        assert (first, last) == (times[0], times[-1])


@given(some_rows, st.booleans())
def test_of_several_with_one_identity_the_first_stays(rows: list[Row], newest_first: bool) -> None:  # noqa: FBT001 # drawn
    found = unique(samples(rows), newest_first=newest_first)
    firsts = {each.identity: each for each in reversed(samples(rows))}
    assert found == [firsts[identity] for identity in sorted(firsts, reverse=newest_first)]


# --- The head ---


@given(st.lists(made_up.batches, max_size=4))
def test_the_head_has_each_sample_under_its_day_and_strays_apart(batches: list[dict[int, list[Row]]]) -> None:
    head = Head()
    for number, batch in enumerate(batches, 1):
        head.add(number, batch)
    for device in {device for batch in batches for device in batch}:
        came = [each for batch in batches for each in samples(batch.get(device, ()))]
        for day, chunk in head.of(device).items():
            there = [None if is_stray(each) else each.time // DAY for each in came]
            assert unpack(chunk) == [each for each, its in zip(came, there, strict=True) if its == day]
        assert sum(len(unpack(chunk)) for chunk in head.of(device).values()) == len(came)
    assert sum(map(head.count, head.days)) == head.samples


def test_a_chunk_of_the_head_says_when_its_samples_can_be_from() -> None:
    head = Head()
    head.add(1, {DEVICE: [row(-1), row(0), row(DAY - 1), stray(made_up.FAR_TIMES[0])]})
    for day in head.days:
        for device, part, first, last, data in head.chunks(day):
            assert (device, part) == (DEVICE, 0)
            assert all(first <= each.time <= last for each in unpack(bytes(data)))
            assert day is None or (first // DAY, last // DAY) == (day, day)


def test_a_chunk_of_the_head_that_is_large_is_put_in_order_and_divided() -> None:
    head = Head()
    head.add(1, {DEVICE: [row(time) for time in range(2 * MOST, 0, -1)], OTHER: [row(2), row(1)]})
    head.add(2, {DEVICE: [row(time, 2.0) for time in range(2 * MOST + 1)]})
    chunks = {(device, part): (first, last, data) for device, part, first, last, data in head.chunks(0)}
    assert list(chunks) == [(DEVICE, 0), (DEVICE, 1), (DEVICE, 2), (OTHER, 0)]
    assert [chunks[DEVICE, part][:2] for part in range(3)] == [
        (0, MOST - 1),
        (MOST, 2 * MOST - 1),
        (2 * MOST, 2 * MOST),
    ]
    found = [each for part in range(3) for each in unpack(chunks[DEVICE, part][2])]
    assert [each.time for each in found] == list(range(2 * MOST + 1))
    assert [each.number for each in found[:2]] == [2.0, 1.0]
    assert [each.time for each in unpack(chunks[OTHER, 0][2])] == [2, 1]


# --- Scans ---


@given(some_rows, made_up.wanteds())
def test_a_scan_gives_what_is_wanted_in_order_and_once(rows: list[Row], asked: Wanted) -> None:
    came = samples(rows)
    strays = [each for each in came if is_stray(each)]
    days: dict[int, list[Sample]] = {}
    for each in came:
        if not is_stray(each):
            days.setdefault(each.time // DAY, []).append(each)
    best = {each.identity: each for each in reversed(strays)}
    best |= {each.identity: each for day in days.values() for each in reversed(day)}
    expected = [best[identity] for identity in sorted(best, reverse=asked.newest_first)]

    def ordered(some: list[Sample]) -> list[Sample]:
        return unique(filter(asked.holds, some), newest_first=asked.newest_first)

    found = scan(asked, days, lambda day: ordered(days[day]), ordered(strays))
    assert list(found) == list(filter(asked.holds, expected))


@given(made_up.rows, made_up.wanteds())
def test_what_is_wanted_is_within_the_bounds(each: Row, asked: Wanted) -> None:
    since, until = asked.bounds
    assert asked.since <= since
    assert until <= asked.until
    (sample,) = samples([each])
    assert since <= sample.time < until or not asked.holds(sample)


def test_bounds_begin_with_the_time_after_which_more_is_wanted() -> None:
    after = (50, 1, 1, 1)
    assert wanted(since=10, until=90, after=after).bounds == (50, 90)
    assert wanted(since=10, until=90, after=after, newest_first=True).bounds == (10, 51)
    assert wanted(since=60, until=90, after=after).bounds == (60, 90)
    assert wanted(since=10, until=40, after=after, newest_first=True).bounds == (10, 40)


@pytest.mark.parametrize(("newest_first", "first"), [(False, 0), (True, 9)])
def test_a_scan_loads_no_day_before_it_is_needed(newest_first: bool, first: int) -> None:  # noqa: FBT001 # a case
    loaded = []

    def load(day: int) -> Iterator[Sample]:
        loaded.append(day)
        yield Sample(*row(day * DAY))

    found = scan(wanted(newest_first=newest_first), range(10), load, ())
    assert next(found).time == first * DAY
    assert set(loaded) <= {first, abs(first - 1)}


def test_a_scan_loads_no_day_in_which_nothing_is_wanted() -> None:
    loaded = []

    def load(day: int) -> list[Sample]:
        loaded.append(day)
        return []

    assert list(scan(wanted(since=2 * DAY, until=4 * DAY), range(10), load, ())) == []
    identity = (3 * DAY, 1, 1, 1)
    assert list(scan(wanted(since=2 * DAY, until=5 * DAY, after=identity), range(10), load, ())) == []
    asked = wanted(since=2 * DAY, until=5 * DAY, after=identity, newest_first=True)
    assert list(scan(asked, range(10), load, ())) == []
    assert loaded == [2, 3, 3, 4, 3, 2]


# --- Retention ---


def test_a_kind_is_expired_from_the_moment_on_at_which_it_was_kept_long_enough() -> None:
    retention = {0: 10, 1: None, 3: 20}
    every = frozenset({0, 1, 2, 3})
    assert expired_kinds(retention, every, NOON, NOON + 9) == frozenset()
    assert expired_kinds(retention, every, NOON, NOON + 10) == {0}
    assert expired_kinds(retention, every, NOON, NOON + 20) == {0, 3}
    assert expired_kinds(retention, frozenset({1, 3}), NOON, NOON + 10**15) == {3}
