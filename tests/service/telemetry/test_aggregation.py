"""Series: few buckets that tell the truth about many samples."""

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
from meshfleet.rest import MAX_POINTS, Bucket
from meshfleet.service.telemetry.aggregation import SeriesAggregator, TimeGrid

if TYPE_CHECKING:
    from collections.abc import Sequence

AT = 1_700_000_000_000
MINUTE = 60_000


def sample(time: int, number: float | None, more: SampleExtras | None = None, seq: int = 0) -> StoredSample:
    return StoredSample(time, SampleKind.MEASUREMENT, 0x8800, seq, 1, number, None, more)


def summed(grid: TimeGrid, samples: Sequence[StoredSample]) -> list[Bucket]:
    tally = SeriesAggregator(grid)
    tally.add(samples)
    return tally.build_buckets()


def begin(bucket: Bucket) -> int:
    return to_millis(parse_time(bucket.time))


def every(distance: int, count: int, start: int = AT) -> list[StoredSample]:
    return [sample(start + number * distance, number) for number in range(count)]


def holes(buckets: Sequence[Bucket]) -> list[int]:
    return [begin(bucket) - AT for bucket in buckets if bucket.count == 0]


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
    return grid, [sample(time, draw(numbers), seq=seq) for seq, time in enumerate(sorted(times))]


@pytest.mark.rule("rest-86", "rest-182")
@given(series())
def test_every_sample_is_in_the_bucket_of_its_time(case: tuple[TimeGrid, list[StoredSample]]) -> None:
    grid, samples = case
    buckets = summed(grid, samples)
    assert len(buckets) <= grid.parts
    beginnings = [begin(bucket) for bucket in buckets]
    assert beginnings == sorted(set(beginnings))
    for bucket in buckets:
        end = grid.part_start(grid.find_part(begin(bucket)) + 1)
        inside = [float(each.number or 0) for each in samples if begin(bucket) <= each.time < end]
        assert bucket.count == len(inside)
        if inside:
            assert (bucket.min, bucket.max, bucket.last) == (min(inside), max(inside), inside[-1])
    assert sum(bucket.count for bucket in buckets) == len(samples)


@pytest.mark.rule("rest-86")
@given(st.lists(numbers, min_size=1, max_size=200))
def test_a_mean_is_the_mean_however_large_the_numbers(values: list[float]) -> None:
    grid = TimeGrid.divide(AT, AT + 1000, parts=1)
    (bucket,) = summed(grid, [sample(AT + place, each) for place, each in enumerate(values)])
    assert bucket.min is not None
    assert bucket.mean is not None
    assert bucket.max is not None
    assert bucket.min <= bucket.mean <= bucket.max
    assert math.isfinite(bucket.mean)
    exact = sum((Fraction(float(each)) for each in values), Fraction()) / len(values)
    largest = Fraction(max(abs(float(each)) for each in values))
    # Below 1e-300 nobody measures anything: there a sum that cannot get too large loses digits.
    assert abs(Fraction(bucket.mean) - exact) <= largest / 2**50 + Fraction(1, 2**1000)


@pytest.mark.rule("rest-86", "rest-180")
def test_the_largest_numbers_have_a_mean_that_json_can_say() -> None:
    grid = TimeGrid.divide(AT, AT + 1000, parts=1)
    largest = 1.7976931348623157e308
    (bucket,) = summed(grid, [sample(AT + place, largest) for place in range(999)])
    assert (bucket.min, bucket.mean, bucket.max, bucket.last) == (largest,) * 4
    told = msgspec.json.decode(msgspec.json.encode(bucket))
    assert told["mean"] == largest


@pytest.mark.rule("rest-86")
def test_a_mean_does_not_lose_small_numbers_beside_large_ones() -> None:
    grid = TimeGrid.divide(AT, AT + 1000, parts=1)
    values = [1e18, *[1.0] * 98, -1e18]
    (bucket,) = summed(grid, [sample(AT + place, each) for place, each in enumerate(values)])
    assert bucket.mean == 0.98


@given(grids(), st.data())
def test_the_parts_of_a_grid_are_equal_and_cover_it(grid: TimeGrid, data: st.DataObject) -> None:
    assert grid.find_part(grid.since) == 0
    assert grid.find_part(grid.until - 1) == grid.parts - 1
    part = data.draw(st.integers(0, grid.parts - 1))
    beginning, end = grid.part_start(part), grid.part_start(part + 1)
    assert grid.find_part(beginning) == grid.find_part(end - 1) == part
    assert abs((end - beginning) - (grid.until - grid.since) / grid.parts) < 1


@pytest.mark.rule("rest-184")
@given(series())
def test_a_hole_is_where_samples_are_much_farther_apart_than_usual(
    case: tuple[TimeGrid, list[StoredSample]],
) -> None:
    grid, samples = case
    distances = [after.time - before.time for before, after in pairwise(samples)]
    usual = median([each for each in distances if each] or [0])
    expected = [
        grid.part_start(grid.find_part(before.time) + 1)
        for before, after in pairwise(samples)
        if after.time - before.time > 3 * usual
        and grid.find_part(after.time) - grid.find_part(before.time) > 1
    ]
    empty = [bucket for bucket in summed(grid, samples) if bucket.count == 0]
    assert [begin(bucket) for bucket in empty] == expected
    assert all(
        (bucket.min, bucket.mean, bucket.max, bucket.last) == (None, None, None, None) for bucket in empty
    )


@pytest.mark.rule("rest-184")
def test_samples_that_are_rarer_than_buckets_make_no_hole() -> None:
    grid = TimeGrid.divide(AT, AT + 600 * MINUTE, parts=600)
    buckets = summed(grid, every(20 * MINUTE, 30))
    assert [bucket.count for bucket in buckets] == [1] * 30


@pytest.mark.rule("rest-184")
def test_an_outage_is_one_empty_bucket_behind_the_last_sample() -> None:
    grid = TimeGrid.divide(AT, AT + 120 * MINUTE, parts=120)
    buckets = summed(grid, [*every(MINUTE, 30), *every(MINUTE, 30, AT + 90 * MINUTE)])
    assert holes(buckets) == [30 * MINUTE]
    assert len(buckets) == 61


@pytest.mark.rule("rest-184")
def test_an_outage_shorter_than_a_bucket_is_none() -> None:
    grid = TimeGrid.divide(AT, AT + 120 * MINUTE, parts=4)
    buckets = summed(grid, [*every(MINUTE, 30), *every(MINUTE, 30, AT + 60 * MINUTE - 1)])
    assert holes(buckets) == []
    assert sum(bucket.count for bucket in buckets) == 60


@pytest.mark.rule("rest-184")
def test_three_times_the_usual_distance_is_no_hole_yet() -> None:
    grid = TimeGrid.divide(AT, AT + 120 * MINUTE, parts=120)
    first = every(MINUTE, 10)
    assert holes(summed(grid, [*first, *every(MINUTE, 10, AT + 12 * MINUTE)])) == []
    assert holes(summed(grid, [*first, *every(MINUTE, 10, AT + 12 * MINUTE + 1)])) == [10 * MINUTE]


@pytest.mark.rule("rest-184")
def test_two_samples_of_one_moment_do_not_make_every_other_distance_a_hole() -> None:
    grid = TimeGrid.divide(AT, AT + 120 * MINUTE, parts=120)
    twice = [sample(AT + place // 3 * 5 * MINUTE, 1.0, seq=place) for place in range(60)]
    assert holes(summed(grid, twice)) == []


@pytest.mark.rule("rest-184")
def test_the_usual_distance_of_very_many_samples_is_that_of_all() -> None:
    """They are faster in the beginning: it alone would make holes of all that follows."""
    fast = every(1000, 12_000)
    slow = every(10 * MINUTE, 60_000, AT + 12_000_000)
    grid = TimeGrid.divide(AT, AT + 12_000_000 + 60_000 * 10 * MINUTE, parts=MAX_POINTS)
    assert holes(summed(grid, [*fast, *slow])) == []
    fine = TimeGrid.divide(AT, grid.until, parts=40_000_000)
    assert holes(summed(fine, [*fast, *slow])) == []


@pytest.mark.rule("rest-182")
def test_only_believed_numbers_count() -> None:
    grid = TimeGrid.divide(AT, AT + 1000, parts=1)
    samples = [
        sample(AT, 1.0),
        sample(AT + 1, None, SampleExtras(text='"open"')),
        sample(AT + 2, 50.0, SampleExtras(clock=ClockFlag.FUTURE)),
        sample(AT + 3, 60.0, SampleExtras(clock=ClockFlag.PAST)),
        sample(AT + 4, math.inf),
        sample(AT + 5, math.nan),
        sample(AT + 6, 0, SampleExtras(text="false")),
        sample(AT + 7, 2.0, SampleExtras(ext='{"a":1}')),
    ]
    (bucket,) = summed(grid, samples)
    assert (bucket.count, bucket.min, bucket.mean, bucket.max, bucket.last) == (3, 0, 1, 2, 2)


def test_no_samples_are_no_buckets() -> None:
    assert summed(TimeGrid.divide(AT, AT + 1, parts=MAX_POINTS), []) == []


@given(series(), st.integers(1, 7))
def test_it_does_not_matter_in_how_many_calls_samples_come(
    case: tuple[TimeGrid, list[StoredSample]], size: int
) -> None:
    grid, samples = case
    tally = SeriesAggregator(grid)
    for start in range(0, len(samples), size):
        tally.add(samples[start : start + size])
    assert tally.build_buckets() == summed(grid, samples)
