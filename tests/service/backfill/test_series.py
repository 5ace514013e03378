"""A series on its own: its gaps are the missing samples, in any order of arrival."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshfleet.db.samples import StoredSample
from meshfleet.service.backfill.series import Gap, SeriesState, TimeRange, complete_up_to, find_gaps
from tests.row_tables import each_row

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
FIRST = 1_700_000_000_000
MAX_GAPS = 32
"""Maximum number of gaps of a series."""

pytestmark = pytest.mark.rule("ack-15", "report-38")


class SeriesModel:
    """Stored samples of a series, and its state. Sample n has the seq n + `start`."""

    def __init__(self, start: int) -> None:
        self._start = start
        self.indexes: set[int] = set()
        self.first_index: int | None = None
        self.series: SeriesState | None = None
        self._flushed: SeriesState | None = None

    def add_sample(self, index: int) -> None:
        """Store a sample, and record it in the series."""
        time, seq = self._sample(index)
        self.indexes.add(index)
        if self.series is None:
            self.first_index, self.series = index, SeriesState(time, seq)
        elif time > self.series.time:
            self.series.append(time, seq, time)
        else:
            self.series.record_arrival(time, time)

    def flush(self) -> None:
        """Persist the state of the series."""
        self._flushed = deepcopy(self.series)

    def crash(self) -> None:
        """Restore the persisted state; the stored samples stay."""
        self.series = deepcopy(self._flushed)
        self.first_index = None if self.series is None else self.first_index

    def check(self, now: int = FIRST) -> None:
        """Check every gap against the stored samples until nothing changes."""
        assert self.series is not None
        stored = [self._sample(index) for index in sorted(self.indexes)]
        for _ in range(300):
            before = list_gaps(self.series)
            for gap in list(self.series.gaps or ()):
                within = [sample for sample in stored if gap.since <= sample[0] <= gap.until]
                self.series.replace_gap(gap, find_gaps_of(*within), now)
            if list_gaps(self.series) == before:
                return
        raise AssertionError("the checks do not end")

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Ranges of missing samples since the first one."""
        assert self.first_index is not None
        stored = sorted(index for index in self.indexes if index >= self.first_index)
        return [(first, second) for first, second in pairwise(stored) if second != first + 1]

    def _sample(self, index: int) -> tuple[int, int]:
        return FIRST + index * MINUTE, (self._start + index) % 256


def list_gaps(series: SeriesState) -> list[tuple[int, int]]:
    """Return the gaps of a series, by the indexes of samples."""
    return [((gap.since - FIRST) // MINUTE, (gap.until - FIRST) // MINUTE) for gap in series.gaps or ()]


def complete_until(series: SeriesState, now: int = FIRST + 1000 * HOUR) -> int | None:
    return complete_up_to([series], now)


def assert_gaps_match(model: SeriesModel) -> None:
    """Check that the gaps are exactly the missing ranges, merged beyond the limit."""
    series, missing = model.series, model.missing
    assert series is not None
    surplus = max(0, len(missing) - MAX_GAPS)
    expected = [(missing[0][0], missing[surplus][1]), *missing[surplus + 1 :]] if missing else []
    assert list_gaps(series) == expected
    until = missing[0][0] if missing else max(model.indexes)
    assert complete_until(series) == FIRST + until * MINUTE


arrivals = st.lists(st.integers(0, 120), min_size=1, max_size=80)


@given(st.integers(0, 255), arrivals)
@example(255, [0, 1, 2])
@example(0, [5, 9, 7, 3, 8, 6])
@example(0, list(range(0, 100, 2)))
def test_gaps_are_the_missing_samples_in_any_order_of_arrival(start: int, indexes: list[int]) -> None:
    model = SeriesModel(start)
    for index in indexes:
        model.add_sample(index)
    model.check()
    assert_gaps_match(model)


@given(st.integers(0, 255), st.lists(arrivals, min_size=1, max_size=5))
def test_gaps_are_the_missing_samples_however_often_they_are_checked(
    start: int, rounds: list[list[int]]
) -> None:
    model = SeriesModel(start)
    for indexes in rounds:
        for index in indexes:
            model.add_sample(index)
        model.check()
        assert_gaps_match(model)


actions = st.one_of(st.integers(0, 120), st.sampled_from(["flush", "crash", "check"]))


@given(st.integers(0, 255), st.lists(actions, max_size=80))
@example(0, [0, "flush", 1, 2, 3, "crash"])
@example(0, [0, 2, "flush", 1, "check", "crash"])
def test_a_series_that_lags_behind_the_samples_is_correct_after_the_next_one(
    start: int, steps: list[int | str]
) -> None:
    model = SeriesModel(start)
    model.add_sample(0)
    model.flush()
    for step in steps:
        if isinstance(step, int):
            model.add_sample(step)
        elif step == "check":
            model.check()
        elif step == "flush":
            model.flush()
        else:
            model.crash()
    model.add_sample(121)
    model.check()
    assert_gaps_match(model)


@given(st.integers(0, 255), st.sets(st.integers(1, 199)), st.randoms(use_true_random=False))
def test_a_series_that_becomes_complete_has_no_gaps_and_is_gap_checked(
    start: int, late: set[int], rng: object
) -> None:
    model = SeriesModel(start)
    for index in sorted(set(range(201)) - late):
        model.add_sample(index)
    model.check()
    assert_gaps_match(model)
    remaining = sorted(late)
    rng.shuffle(remaining)  # type: ignore[attr-defined] # a Random
    for index in remaining:
        model.add_sample(index)
    model.check()
    assert model.series is not None
    assert (model.series.gaps, model.series.unfilled) == (None, 0)
    assert complete_until(model.series) == FIRST + 200 * MINUTE


def test_seq_wraps_from_255_to_0() -> None:
    series = SeriesState(FIRST, 255)
    assert not series.append(FIRST + 1, 0, FIRST)
    assert series.gaps is None


@each_row("seq", [0, 1, 5, 7, 255])
def test_a_seq_that_is_not_the_next_shows_a_gap(seq: int) -> None:
    series = SeriesState(FIRST, 5)
    assert series.append(FIRST + MINUTE, seq, FIRST)
    assert series.gaps == [Gap(FIRST, FIRST + MINUTE, FIRST)]
    assert complete_until(series) == FIRST


def test_256_consecutive_missing_samples_are_not_detected() -> None:
    """Document a known limit of `seq`."""
    model = SeriesModel(0)
    model.add_sample(0)
    model.add_sample(257)
    assert model.series is not None
    assert model.series.gaps is None


# --- Lost gaps ---


def recheck_gaps(series: SeriesState, now: int) -> None:
    """Check all gaps at a time at which nothing of them has arrived."""
    for gap in list(series.gaps or ()):
        series.replace_gap(gap, [TimeRange(gap.since, gap.until)], now)


@pytest.mark.rule("ack-16", "ack-26")
def test_a_gap_is_lost_after_an_hour_without_arrivals() -> None:
    series = SeriesState(FIRST, 0)
    series.append(FIRST + MINUTE, 2, FIRST)
    recheck_gaps(series, FIRST + HOUR - 1)
    assert [gap.lost_at for gap in series.gaps or ()] == [None]
    assert series.expects_samples
    recheck_gaps(series, FIRST + HOUR)
    assert [gap.lost_at for gap in series.gaps or ()] == [FIRST + HOUR]
    assert (series.expects_samples, series.unfilled) == (False, 1)
    assert complete_until(series) == FIRST  # its samples are still missing


@pytest.mark.rule("ack-16")
def test_a_gap_is_lost_only_once() -> None:
    series = SeriesState(FIRST, 0)
    series.append(FIRST + MINUTE, 2, FIRST)
    for hours in range(1, 10):
        recheck_gaps(series, FIRST + hours * HOUR)
    assert [gap.lost_at for gap in series.gaps or ()] == [FIRST + HOUR]
    assert (series.unfilled, series.is_gap_checked) == (1, True)


@pytest.mark.rule("ack-16")
def test_an_arrival_restarts_the_hour() -> None:
    series = SeriesState(FIRST, 0)
    series.append(FIRST + 9 * MINUTE, 9, FIRST)
    assert series.record_arrival(FIRST + 5 * MINUTE, FIRST + HOUR - 1)
    recheck_gaps(series, FIRST + HOUR)
    assert series.expects_samples
    recheck_gaps(series, FIRST + 2 * HOUR)
    assert not series.expects_samples


def build_unchecked_series() -> SeriesState:
    """Build a series with three consecutive gaps that were never filled."""
    series = SeriesState(FIRST, 0)
    for turn in range(1, 4):
        assert series.is_gap_checked
        assert complete_until(series) is not None
        series.append(FIRST + turn * HOUR, 2 * turn, FIRST + turn * HOUR)
        recheck_gaps(series, FIRST + (turn + 1) * HOUR)
    return series


@pytest.mark.rule("ack-16", "ack-26")
def test_a_series_with_three_consecutive_lost_gaps_is_not_gap_checked() -> None:
    series = build_unchecked_series()
    assert (series.unfilled, series.is_gap_checked, complete_until(series)) == (3, False, None)
    assert not series.append(FIRST + 5 * HOUR, 100, FIRST + 5 * HOUR)
    assert len(series.gaps or ()) == 3
    series.record_request(FIRST)
    assert not series.needs_backfill(FIRST - 1, FIRST + 100 * HOUR)


@pytest.mark.rule("ack-16")
def test_a_filled_gap_between_lost_ones_keeps_the_series_gap_checked() -> None:
    series = SeriesState(FIRST, 0)
    for turn in range(1, 6):
        series.append(FIRST + turn * HOUR, 3 * turn, FIRST + turn * HOUR)
        newest = (series.gaps or [])[-1]
        if turn % 2:
            series.replace_gap(newest, [], FIRST + turn * HOUR)
        recheck_gaps(series, FIRST + (turn + 1) * HOUR)
    assert series.is_gap_checked
    assert len(series.gaps or ()) == 2


@pytest.mark.rule("ack-16")
def test_a_gap_that_is_filled_late_restores_gap_checks() -> None:
    series = build_unchecked_series()
    first = (series.gaps or [])[0]
    series.replace_gap(first, [], FIRST + 9 * HOUR)
    assert series.is_gap_checked
    assert complete_until(series) == FIRST + HOUR


@pytest.mark.rule("ack-16", "ack-15")
def test_the_unchecked_range_is_a_gap_until_it_was_checked() -> None:
    series = build_unchecked_series()
    series.append(FIRST + 9 * HOUR, 77, FIRST + 9 * HOUR)
    for gap in list(series.gaps or ()):
        series.replace_gap(gap, [], FIRST + 9 * HOUR)
    assert [(gap.since, gap.until) for gap in series.gaps or ()] == [(FIRST + 3 * HOUR, FIRST + 9 * HOUR)]
    assert complete_until(series) == FIRST + 3 * HOUR


@pytest.mark.rule("ack-16", "ack-26")
def test_gap_checks_start_again_when_the_last_gap_expires_and_the_unchecked_range_is_lost() -> None:
    series, now = build_unchecked_series(), FIRST + 9 * HOUR
    series.append(now, 77, now)
    first, *others = series.gaps or []
    series.drop_gap(first, now)
    assert not series.is_gap_checked
    for gap in others:
        series.drop_gap(gap, now)
    assert series.gaps == [Gap(FIRST + 3 * HOUR, now, now, lost_at=now)]
    assert (series.unfilled, complete_until(series)) == (0, FIRST + 3 * HOUR)
    assert series.append(now + HOUR, 79, now + HOUR)


@pytest.mark.rule("ack-16", "ack-26")
def test_gap_checks_start_again_after_a_consecutive_cycle_and_the_unchecked_range_is_lost() -> None:
    series, now = build_unchecked_series(), FIRST + 9 * HOUR
    series.append(now, 100, now)  # missing samples are not detected here
    is_trusted_again = False
    for count in range(1, 257):
        assert not series.is_gap_checked
        is_trusted_again = series.regain_trust((100 + count) % 256, now + count)
        series.append(now + count, (100 + count) % 256, now + count)
    assert is_trusted_again
    assert (series.is_gap_checked, series.unfilled) == (True, 0)
    assert (series.gaps or [])[-1] == Gap(FIRST + 3 * HOUR, now + 255, now + 256, lost_at=now + 256)
    assert complete_until(series) == FIRST
    assert series.append(now + HOUR, 7, now + HOUR)


@pytest.mark.rule("ack-26")
def test_a_seq_out_of_order_restarts_the_consecutive_cycle() -> None:
    series = build_unchecked_series()
    for count in range(1, 600):
        seq = 7 * count % 256 if count % 255 == 0 else (series.seq + 1) % 256
        assert not series.regain_trust(seq, FIRST)
        series.append(series.time + SECOND, seq, FIRST)
    assert not series.is_gap_checked


# --- Maximum number of gaps ---


def test_a_series_has_at_most_32_gaps_and_loses_none() -> None:
    series = SeriesState(FIRST, 0)
    for turn in range(1, 101):
        series.append(FIRST + turn * MINUTE, 2 * turn % 256, FIRST + turn * MINUTE)
        assert len(series.gaps or ()) == min(turn, MAX_GAPS)
    assert complete_until(series) == FIRST
    assert list_gaps(series)[0] == (0, 69)
    assert list_gaps(series)[1:] == [(index, index + 1) for index in range(69, 100)]


def test_a_gap_that_splits_into_many_is_not_lost() -> None:
    model = SeriesModel(0)
    model.add_sample(0)
    model.add_sample(100)
    for index in range(2, 100, 2):
        model.add_sample(index)
    model.check()
    assert model.series is not None
    assert len(list_gaps(model.series)) == MAX_GAPS
    assert complete_until(model.series) == FIRST


@pytest.mark.parametrize("lost", [{0}, {1}, {0, 1}], ids=["the first", "the second", "both"])
def test_merged_gaps_are_lost_only_if_both_are(lost: set[int]) -> None:
    gaps = [Gap(FIRST + offset, FIRST + offset + 1, FIRST, lost_at=FIRST) for offset in range(MAX_GAPS)]
    for index in {0, 1} - lost:
        gaps[index].lost_at = None
    series = SeriesState(FIRST + MINUTE, 0, gaps=gaps)
    assert series.append(FIRST + HOUR, 7, FIRST + HOUR)
    first = (series.gaps or [])[0]
    assert (first.since, first.until) == (FIRST, FIRST + 2)
    assert (first.lost_at is None) == (len(lost) == 1)


def test_gaps_merged_after_a_check_are_not_checked_again_at_once() -> None:
    """Check the next time: otherwise a large gap would be read every second forever."""
    series, now = SeriesState(FIRST, 0), FIRST + 10 * MINUTE
    series.append(FIRST + 200 * MINUTE, 200, FIRST)
    assert series.gaps is not None
    (gap,) = series.gaps
    minutes = range(0, 200, 2)
    ranges = [TimeRange(FIRST + start * MINUTE, FIRST + (start + 2) * MINUTE) for start in minutes]
    series.replace_gap(gap, ranges, now)
    assert len(series.gaps or ()) == MAX_GAPS
    assert not any(gap.is_due(now + SECOND) for gap in series.gaps or ())


# --- find_gaps ---


def test_find_gaps_returns_the_ranges_between_nonconsecutive_samples() -> None:
    assert find_gaps_of() == find_gaps_of((1, 1)) == []
    assert find_gaps_of((1, 254), (2, 255), (3, 0), (9, 2)) == [(3, 9)]
    assert find_gaps_of((1, 7), (2, 7)) == [(1, 2)]


def find_gaps_of(*samples: tuple[int, int]) -> list[TimeRange]:
    """Find the gaps between samples, each given by its time and seq."""
    return list(find_gaps(StoredSample(time, 1, 0x8800, seq, 0, None, None, None) for time, seq in samples))
