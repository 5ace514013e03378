"""A series by itself: whatever comes in whatever order, its holes are what is missing in the store."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshfleet.service.backfill.series import Gap, SeriesState, complete_up_to, find_gaps
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterable

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
FIRST = 1_700_000_000_000
MOST = 32
"""Holes of a series."""

pytestmark = pytest.mark.rule("ack-15", "report-38")


class Store:
    """What is stored of a series, and the series that follows it. Sample n is counted n + `start`."""

    def __init__(self, start: int) -> None:
        self._start = start
        self.places: set[int] = set()
        self.began: int | None = None
        self.series: SeriesState | None = None
        self._kept: SeriesState | None = None

    def take(self, place: int) -> None:
        """A sample comes."""
        time, seq = self._sample(place)
        self.places.add(place)
        if self.series is None:
            self.began, self.series = place, SeriesState(time, seq)
        elif time > self.series.time:
            self.series.append(time, seq, time)
        else:
            self.series.record_arrival(time, time)

    def flush(self) -> None:
        """The series is written down."""
        self._kept = deepcopy(self.series)

    def crash(self) -> None:
        """The series is as it was written; what is stored stays."""
        self.series = deepcopy(self._kept)
        self.began = None if self.series is None else self.began

    def check(self, now: int = FIRST) -> None:
        """Look each hole up in what is stored, until nothing changes."""
        assert self.series is not None
        stored = [self._sample(each) for each in sorted(self.places)]
        for _ in range(300):
            before = shape(self.series)
            for hole in list(self.series.gaps or ()):
                left = list(find_gaps(each for each in stored if hole.since <= each[0] <= hole.until))
                self.series.replace_gap(hole, left, now)
            if shape(self.series) == before:
                return
        raise AssertionError("it does not end")

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Where samples are missing since it began, as nobody can deny."""
        assert self.began is not None
        there = sorted(each for each in self.places if each >= self.began)
        return [(a, b) for a, b in pairwise(there) if b != a + 1]

    def _sample(self, place: int) -> tuple[int, int]:
        return FIRST + place * MINUTE, (self._start + place) % 256


def shape(series: SeriesState) -> list[tuple[int, int]]:
    """The holes of a series, by the places of samples."""
    return [((each.since - FIRST) // MINUTE, (each.until - FIRST) // MINUTE) for each in series.gaps or ()]


def complete(series: SeriesState, now: int = FIRST + 1000 * HOUR) -> int | None:
    return complete_up_to([series], now)


def see(store: Store) -> None:
    """The ledger says what is missing, and no more."""
    series, missing = store.series, store.missing
    assert series is not None
    surplus = max(0, len(missing) - MOST)
    folded = [(missing[0][0], missing[surplus][1]), *missing[surplus + 1 :]] if missing else []
    assert shape(series) == folded
    until = missing[0][0] if missing else max(store.places)
    assert complete(series) == FIRST + until * MINUTE


arrivals = st.lists(st.integers(0, 120), min_size=1, max_size=80)


@given(st.integers(0, 255), arrivals)
@example(255, [0, 1, 2])
@example(0, [5, 9, 7, 3, 8, 6])
@example(0, list(range(0, 100, 2)))
def test_holes_are_what_is_missing_whatever_comes_in_whatever_order(start: int, places: list[int]) -> None:
    store = Store(start)
    for place in places:
        store.take(place)
    store.check()
    see(store)


@given(st.integers(0, 255), st.lists(arrivals, min_size=1, max_size=5))
def test_holes_are_what_is_missing_however_often_they_are_looked_up(
    start: int, rounds: list[list[int]]
) -> None:
    store = Store(start)
    for places in rounds:
        for place in places:
            store.take(place)
        store.check()
        see(store)


deeds = st.one_of(st.integers(0, 120), st.sampled_from(["flush", "crash", "check"]))


@given(st.integers(0, 255), st.lists(deeds, max_size=80))
@example(0, [0, "flush", 1, 2, 3, "crash"])
@example(0, [0, 2, "flush", 1, "check", "crash"])
def test_a_ledger_that_lags_behind_the_samples_is_right_again_after_the_next(
    start: int, steps: list[int | str]
) -> None:
    store = Store(start)
    store.take(0)
    store.flush()
    for step in steps:
        if isinstance(step, int):
            store.take(step)
        elif step == "check":
            store.check()
        elif step == "flush":
            store.flush()
        else:
            store.crash()
    store.take(121)
    store.check()
    see(store)


@given(st.integers(0, 255), st.sets(st.integers(1, 199)), st.randoms(use_true_random=False))
def test_a_series_that_gets_all_in_the_end_has_no_holes_and_is_trusted(
    start: int, late: set[int], chance: object
) -> None:
    store = Store(start)
    for place in sorted(set(range(201)) - late):
        store.take(place)
    store.check()
    see(store)
    rest = sorted(late)
    chance.shuffle(rest)  # type: ignore[attr-defined] # a Random
    for place in rest:
        store.take(place)
    store.check()
    assert store.series is not None
    assert (store.series.gaps, store.series.unfilled) == (None, 0)
    assert complete(store.series) == FIRST + 200 * MINUTE


def test_after_255_comes_0() -> None:
    series = SeriesState(FIRST, 255)
    assert not series.append(FIRST + 1, 0, FIRST)
    assert series.gaps is None


@each_row("seq", [0, 1, 5, 7, 255])
def test_any_other_number_than_the_next_shows_a_hole(seq: int) -> None:
    series = SeriesState(FIRST, 5)
    assert series.append(FIRST + MINUTE, seq, FIRST)
    assert series.gaps == [Gap(FIRST, FIRST + MINUTE, FIRST)]
    assert complete(series) == FIRST


def test_256_samples_that_are_missing_in_a_row_cannot_be_seen() -> None:
    """Known, and no worse than that."""
    store = Store(0)
    store.take(0)
    store.take(257)
    assert store.series is not None
    assert store.series.gaps is None


# --- What never comes ---


def lose(series: SeriesState, now: int) -> None:
    """Let an hour pass in which nothing of what is missing comes."""
    for hole in list(series.gaps or ()):
        series.replace_gap(hole, [(hole.since, hole.until)], now)


@pytest.mark.rule("ack-16", "ack-26")
def test_a_hole_is_lost_when_an_hour_brings_nothing() -> None:
    series = SeriesState(FIRST, 0)
    series.append(FIRST + MINUTE, 2, FIRST)
    lose(series, FIRST + HOUR - 1)
    assert [hole.lost_at for hole in series.gaps or ()] == [None]
    assert series.expects_samples
    lose(series, FIRST + HOUR)
    assert [hole.lost_at for hole in series.gaps or ()] == [FIRST + HOUR]
    assert (series.expects_samples, series.unfilled) == (False, 1)
    assert complete(series) == FIRST  # it is missing all the same


@pytest.mark.rule("ack-16")
def test_a_hole_is_lost_once_and_not_again_and_again() -> None:
    series = SeriesState(FIRST, 0)
    series.append(FIRST + MINUTE, 2, FIRST)
    for hours in range(1, 10):
        lose(series, FIRST + hours * HOUR)
    assert [hole.lost_at for hole in series.gaps or ()] == [FIRST + HOUR]
    assert (series.unfilled, series.is_gap_checked) == (1, True)


@pytest.mark.rule("ack-16")
def test_an_hour_begins_anew_with_whatever_comes() -> None:
    series = SeriesState(FIRST, 0)
    series.append(FIRST + 9 * MINUTE, 9, FIRST)
    assert series.record_arrival(FIRST + 5 * MINUTE, FIRST + HOUR - 1)
    lose(series, FIRST + HOUR)
    assert series.expects_samples
    lose(series, FIRST + 2 * HOUR)
    assert not series.expects_samples


def unbelieved() -> SeriesState:
    """A series with three holes in turn that never filled."""
    series = SeriesState(FIRST, 0)
    for turn in range(1, 4):
        assert series.is_gap_checked
        assert complete(series) is not None
        series.append(FIRST + turn * HOUR, 2 * turn, FIRST + turn * HOUR)
        lose(series, FIRST + (turn + 1) * HOUR)
    return series


@pytest.mark.rule("ack-16", "ack-26")
def test_a_series_with_three_lost_holes_in_turn_is_not_gap_checked() -> None:
    series = unbelieved()
    assert (series.unfilled, series.is_gap_checked, complete(series)) == (3, False, None)
    assert not series.append(FIRST + 5 * HOUR, 100, FIRST + 5 * HOUR)
    assert len(series.gaps or ()) == 3
    series.record_request(FIRST)
    assert not series.needs_backfill(FIRST - 1, FIRST + 100 * HOUR)


@pytest.mark.rule("ack-16")
def test_a_hole_that_fills_between_lost_ones_keeps_the_trust() -> None:
    series = SeriesState(FIRST, 0)
    for turn in range(1, 6):
        series.append(FIRST + turn * HOUR, 3 * turn, FIRST + turn * HOUR)
        newest = (series.gaps or [])[-1]
        if turn % 2:
            series.replace_gap(newest, [], FIRST + turn * HOUR)
        lose(series, FIRST + (turn + 1) * HOUR)
    assert series.is_gap_checked
    assert len(series.gaps or ()) == 2


@pytest.mark.rule("ack-16")
def test_a_late_fill_brings_the_trust_back() -> None:
    series = unbelieved()
    first = (series.gaps or [])[0]
    series.replace_gap(first, [], FIRST + 9 * HOUR)
    assert series.is_gap_checked
    assert complete(series) == FIRST + HOUR


@pytest.mark.rule("ack-16", "ack-15")
def test_what_came_while_nobody_believed_a_series_has_to_be_looked_at_before_it_counts_as_complete() -> None:
    series = unbelieved()
    series.append(FIRST + 9 * HOUR, 77, FIRST + 9 * HOUR)
    for hole in list(series.gaps or ()):
        series.replace_gap(hole, [], FIRST + 9 * HOUR)
    assert [(each.since, each.until) for each in series.gaps or ()] == [(FIRST + 3 * HOUR, FIRST + 9 * HOUR)]
    assert complete(series) == FIRST + 3 * HOUR


@pytest.mark.rule("ack-16", "ack-26")
def test_a_series_is_trusted_again_when_its_last_hole_is_forgotten_and_claims_nothing_of_before() -> None:
    series, now = unbelieved(), FIRST + 9 * HOUR
    series.append(now, 77, now)
    first, *others = series.gaps or []
    series.drop_gap(first, now)
    assert not series.is_gap_checked
    for hole in others:
        series.drop_gap(hole, now)
    assert series.gaps == [Gap(FIRST + 3 * HOUR, now, now, lost_at=now)]
    assert (series.unfilled, complete(series)) == (0, FIRST + 3 * HOUR)
    assert series.append(now + HOUR, 79, now + HOUR)


@pytest.mark.rule("ack-16", "ack-26")
def test_a_series_that_is_in_order_for_a_cycle_is_trusted_again_and_claims_nothing_of_before() -> None:
    series, now = unbelieved(), FIRST + 9 * HOUR
    series.append(now, 100, now)  # nobody sees that some are missing here
    healed = False
    for count in range(1, 257):
        assert not series.is_gap_checked
        healed = series.regain_trust((100 + count) % 256, now + count)
        series.append(now + count, (100 + count) % 256, now + count)
    assert healed
    assert (series.is_gap_checked, series.unfilled) == (True, 0)
    assert (series.gaps or [])[-1] == Gap(FIRST + 3 * HOUR, now + 255, now + 256, lost_at=now + 256)
    assert complete(series) == FIRST
    assert series.append(now + HOUR, 7, now + HOUR)


@pytest.mark.rule("ack-26")
def test_one_that_is_not_in_order_lets_a_series_begin_anew_to_be_trusted() -> None:
    series = unbelieved()
    for count in range(1, 600):
        seq = 7 * count % 256 if count % 255 == 0 else (series.seq + 1) % 256
        assert not series.regain_trust(seq, FIRST)
        series.append(series.time + SECOND, seq, FIRST)
    assert not series.is_gap_checked


# --- Too many ---


def test_a_series_has_at_most_32_holes_and_forgets_none_of_them() -> None:
    series = SeriesState(FIRST, 0)
    for turn in range(1, 101):
        series.append(FIRST + turn * MINUTE, 2 * turn % 256, FIRST + turn * MINUTE)
        assert len(series.gaps or ()) == min(turn, MOST)
    assert complete(series) == FIRST
    assert shape(series)[0] == (0, 69)
    assert shape(series)[1:] == [(each, each + 1) for each in range(69, 100)]


def test_a_hole_that_falls_into_many_is_not_forgotten() -> None:
    store = Store(0)
    store.take(0)
    store.take(100)
    for place in range(2, 100, 2):
        store.take(place)
    store.check()
    assert store.series is not None
    assert len(shape(store.series)) == MOST
    assert complete(store.series) == FIRST


@pytest.mark.parametrize("lost", [{0}, {1}, {0, 1}], ids=["the first", "the second", "both"])
def test_two_holes_that_are_taken_for_one_are_lost_only_if_both_are(lost: set[int]) -> None:
    holes = [Gap(FIRST + each, FIRST + each + 1, FIRST, lost_at=FIRST) for each in range(MOST)]
    for each in {0, 1} - lost:
        holes[each].lost_at = None
    series = SeriesState(FIRST + MINUTE, 0, gaps=holes)
    assert series.append(FIRST + HOUR, 7, FIRST + HOUR)
    first = (series.gaps or [])[0]
    assert (first.since, first.until) == (FIRST, FIRST + 2)
    assert (first.lost_at is None) == (len(lost) == 1)


def test_holes_that_are_taken_for_one_after_a_look_are_not_looked_at_at_once_again() -> None:
    """Else a large hole would be read every second, for ever."""
    series, now = SeriesState(FIRST, 0), FIRST + 10 * MINUTE
    series.append(FIRST + 200 * MINUTE, 200, FIRST)
    assert series.gaps is not None
    (hole,) = series.gaps
    series.replace_gap(
        hole, [(FIRST + each * MINUTE, FIRST + (each + 2) * MINUTE) for each in range(0, 200, 2)], now
    )
    assert len(series.gaps or ()) == MOST
    assert not any(each.is_due(now + SECOND) for each in series.gaps or ())


# --- Gaps ---


def test_gaps_of_nothing_and_of_one_are_none() -> None:
    assert holes_of() == holes_of((1, 1)) == []
    assert holes_of((1, 254), (2, 255), (3, 0), (9, 2)) == [(3, 9)]
    assert holes_of((1, 7), (2, 7)) == [(1, 2)]


def holes_of(*samples: tuple[int, int]) -> Iterable[tuple[int, int]]:
    return list(find_gaps(samples))
