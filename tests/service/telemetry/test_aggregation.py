"""Aggregation of samples into buckets."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.db.samples.sample import ClockFlag, SampleExtras, SampleKind, StoredSample
from meshfleet.protocol.times import parse_time, to_millis
from meshfleet.rest.telemetry import MAX_POINTS, Bucket
from meshfleet.service.telemetry.aggregation import SeriesAggregator, TimeGrid

if TYPE_CHECKING:
    from collections.abc import Sequence

AT = 1_700_000_000_000
MINUTE = 60_000


def build_sample(
    time: int, number: float | None, more: SampleExtras | None = None, seq: int = 0
) -> StoredSample:
    return StoredSample(time, SampleKind.MEASUREMENT, 0x8800, seq, 1, number, None, more)


def aggregate(grid: TimeGrid, samples: Sequence[StoredSample]) -> list[Bucket]:
    aggregator = SeriesAggregator(grid)
    aggregator.add(samples)
    return aggregator.build_buckets()


def start_of(bucket: Bucket) -> int:
    return to_millis(parse_time(bucket.time))


def build_samples(distance: int, count: int, start: int = AT) -> list[StoredSample]:
    return [build_sample(start + number * distance, number) for number in range(count)]


def list_gaps(buckets: Sequence[Bucket]) -> list[int]:
    return [start_of(bucket) - AT for bucket in buckets if bucket.count == 0]


numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**63))


@st.composite
def grids(draw: st.DrawFn) -> TimeGrid:
    since = draw(st.integers(AT, AT + 10))
    length = draw(st.one_of(st.integers(1, 300), st.integers(1, 10**13)))
    return TimeGrid.divide(since, since + length, parts=draw(st.integers(1, MAX_POINTS)))


@st.composite
def series(draw: st.DrawFn) -> tuple[TimeGrid, list[StoredSample]]:
    grid = draw(grids())
    times = draw(st.lists(st.integers(grid.since, grid.until - 1), max_size=60))
    return grid, [build_sample(time, draw(numbers), seq=seq) for seq, time in enumerate(sorted(times))]


@pytest.mark.rule("rest-86", "rest-182")
@given(series())
def test_every_sample_is_in_the_bucket_of_its_time(case: tuple[TimeGrid, list[StoredSample]]) -> None:
    grid, samples = case
    buckets = aggregate(grid, samples)
    assert len(buckets) <= grid.parts
    starts = [start_of(bucket) for bucket in buckets]
    assert starts == sorted(set(starts))
    for bucket in buckets:
        end = grid.part_start(grid.find_part(start_of(bucket)) + 1)
        inside = [float(sample.number or 0) for sample in samples if start_of(bucket) <= sample.time < end]
        assert bucket.count == len(inside)
        if inside:
            assert (bucket.min, bucket.max, bucket.last) == (min(inside), max(inside), inside[-1])
    assert sum(bucket.count for bucket in buckets) == len(samples)


@pytest.mark.rule("rest-86")
@given(st.lists(numbers, min_size=1, max_size=200))
def test_the_mean_is_correct_however_large_the_numbers_are(values: list[float]) -> None:
    grid = TimeGrid.divide(AT, AT + 1000, parts=1)
    (bucket,) = aggregate(grid, [build_sample(AT + index, value) for index, value in enumerate(values)])
    assert bucket.min is not None
    assert bucket.mean is not None
    assert bucket.max is not None
    assert bucket.min <= bucket.mean <= bucket.max
    assert math.isfinite(bucket.mean)
    exact = sum((Fraction(float(value)) for value in values), Fraction()) / len(values)
    largest = Fraction(max(abs(float(value)) for value in values))
    # Below 1e-300, which is never measured, the scaled sum loses digits.
    assert abs(Fraction(bucket.mean) - exact) <= largest / 2**50 + Fraction(1, 2**1000)


@pytest.mark.rule("rest-86", "rest-180")
def test_the_mean_of_the_largest_numbers_can_be_encoded_as_json() -> None:
    grid = TimeGrid.divide(AT, AT + 1000, parts=1)
    largest = 1.7976931348623157e308
    (bucket,) = aggregate(grid, [build_sample(AT + index, largest) for index in range(999)])
    assert (bucket.min, bucket.mean, bucket.max, bucket.last) == (largest,) * 4
    decoded = msgspec.json.decode(msgspec.json.encode(bucket))
    assert decoded["mean"] == largest


@pytest.mark.rule("rest-86")
def test_the_mean_does_not_lose_small_numbers_next_to_large_ones() -> None:
    grid = TimeGrid.divide(AT, AT + 1000, parts=1)
    values = [1e18, *[1.0] * 98, -1e18]
    (bucket,) = aggregate(grid, [build_sample(AT + index, value) for index, value in enumerate(values)])
    assert bucket.mean == 0.98


@given(grids(), st.data())
def test_the_parts_of_a_grid_are_equal_and_cover_it(grid: TimeGrid, data: st.DataObject) -> None:
    assert grid.find_part(grid.since) == 0
    assert grid.find_part(grid.until - 1) == grid.parts - 1
    part = data.draw(st.integers(0, grid.parts - 1))
    start, end = grid.part_start(part), grid.part_start(part + 1)
    assert grid.find_part(start) == grid.find_part(end - 1) == part
    assert abs((end - start) - (grid.until - grid.since) / grid.parts) < 1


@pytest.mark.rule("rest-184")
@given(series())
def test_a_gap_is_where_samples_are_much_farther_apart_than_usual(
    case: tuple[TimeGrid, list[StoredSample]],
) -> None:
    grid, samples = case
    distances = [later.time - earlier.time for earlier, later in pairwise(samples)]
    typical = median([distance for distance in distances if distance] or [0])
    expected = [
        grid.part_start(grid.find_part(earlier.time) + 1)
        for earlier, later in pairwise(samples)
        if later.time - earlier.time > 3 * typical
        and grid.find_part(later.time) - grid.find_part(earlier.time) > 1
    ]
    empty = [bucket for bucket in aggregate(grid, samples) if bucket.count == 0]
    assert [start_of(bucket) for bucket in empty] == expected
    assert all(
        (bucket.min, bucket.mean, bucket.max, bucket.last) == (None, None, None, None) for bucket in empty
    )


@pytest.mark.rule("rest-184")
def test_samples_that_are_rarer_than_buckets_make_no_gap() -> None:
    grid = TimeGrid.divide(AT, AT + 600 * MINUTE, parts=600)
    buckets = aggregate(grid, build_samples(20 * MINUTE, 30))
    assert [bucket.count for bucket in buckets] == [1] * 30


@pytest.mark.rule("rest-184")
def test_an_outage_is_one_empty_bucket_after_the_last_sample() -> None:
    grid = TimeGrid.divide(AT, AT + 120 * MINUTE, parts=120)
    buckets = aggregate(grid, [*build_samples(MINUTE, 30), *build_samples(MINUTE, 30, AT + 90 * MINUTE)])
    assert list_gaps(buckets) == [30 * MINUTE]
    assert len(buckets) == 61


@pytest.mark.rule("rest-184")
def test_an_outage_shorter_than_a_bucket_makes_no_gap() -> None:
    grid = TimeGrid.divide(AT, AT + 120 * MINUTE, parts=4)
    buckets = aggregate(grid, [*build_samples(MINUTE, 30), *build_samples(MINUTE, 30, AT + 60 * MINUTE - 1)])
    assert list_gaps(buckets) == []
    assert sum(bucket.count for bucket in buckets) == 60


@pytest.mark.rule("rest-184")
def test_three_times_the_typical_distance_is_not_a_gap() -> None:
    grid = TimeGrid.divide(AT, AT + 120 * MINUTE, parts=120)
    first = build_samples(MINUTE, 10)
    assert list_gaps(aggregate(grid, [*first, *build_samples(MINUTE, 10, AT + 12 * MINUTE)])) == []
    assert list_gaps(aggregate(grid, [*first, *build_samples(MINUTE, 10, AT + 12 * MINUTE + 1)])) == [
        10 * MINUTE
    ]


@pytest.mark.rule("rest-184")
def test_samples_of_the_same_time_do_not_make_other_distances_gaps() -> None:
    grid = TimeGrid.divide(AT, AT + 120 * MINUTE, parts=120)
    samples = [build_sample(AT + index // 3 * 5 * MINUTE, 1.0, seq=index) for index in range(60)]
    assert list_gaps(aggregate(grid, samples)) == []


@pytest.mark.rule("rest-184")
def test_the_typical_distance_of_very_many_samples_is_estimated_from_all() -> None:
    """Start with fast samples: if only these counted, all later distances would be gaps."""
    fast = build_samples(1000, 12_000)
    slow = build_samples(10 * MINUTE, 60_000, AT + 12_000_000)
    grid = TimeGrid.divide(AT, AT + 12_000_000 + 60_000 * 10 * MINUTE, parts=MAX_POINTS)
    assert list_gaps(aggregate(grid, [*fast, *slow])) == []
    fine = TimeGrid.divide(AT, grid.until, parts=40_000_000)
    assert list_gaps(aggregate(fine, [*fast, *slow])) == []


@pytest.mark.rule("rest-182")
def test_only_finite_numbers_with_plausible_times_count() -> None:
    grid = TimeGrid.divide(AT, AT + 1000, parts=1)
    samples = [
        build_sample(AT, 1.0),
        build_sample(AT + 1, None, SampleExtras(text='"open"')),
        build_sample(AT + 2, 50.0, SampleExtras(clock=ClockFlag.FUTURE)),
        build_sample(AT + 3, 60.0, SampleExtras(clock=ClockFlag.PAST)),
        build_sample(AT + 4, math.inf),
        build_sample(AT + 5, math.nan),
        build_sample(AT + 6, 0, SampleExtras(text="false")),
        build_sample(AT + 7, 2.0, SampleExtras(ext='{"a":1}')),
    ]
    (bucket,) = aggregate(grid, samples)
    assert (bucket.count, bucket.min, bucket.mean, bucket.max, bucket.last) == (3, 0, 1, 2, 2)


def test_no_samples_give_no_buckets() -> None:
    assert aggregate(TimeGrid.divide(AT, AT + 1, parts=MAX_POINTS), []) == []


@given(series(), st.integers(1, 7))
def test_samples_may_be_added_in_any_number_of_calls(
    case: tuple[TimeGrid, list[StoredSample]], size: int
) -> None:
    grid, samples = case
    aggregator = SeriesAggregator(grid)
    for start in range(0, len(samples), size):
        aggregator.add(samples[start : start + size])
    assert aggregator.build_buckets() == aggregate(grid, samples)
