"""Clocks that are set back, and clocks that nobody believes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.acks.series import Hole, Series, complete_up_to
from meshfleet.service.acks.strays import Strays
from tests.service.acks.ground import TEMPERATURE, at
from tests.service.acks.test_series import FIRST, HOUR, MINUTE, SECOND
from tests.service.ingest.intake import DAY, NOON
from tests.service.ingest.messages import A, number, temperature
from tests.tables import each_row

if TYPE_CHECKING:
    from tests.service.acks.ground import Ground

REMEMBERED = 20_000
"""Series whose clock nobody believes."""


def ahead() -> Series:
    """A series with a sample that came nine minutes before its time, a minute after the first."""
    series = Series(FIRST, 0)
    series.go_on(FIRST + 10 * MINUTE, 1, FIRST + MINUTE)
    return series


# --- Set back ---


@pytest.mark.rule("ack-15", "ack-27")
def test_nothing_is_complete_beyond_now() -> None:
    assert complete_up_to([ahead()], FIRST + MINUTE) == FIRST + MINUTE


@pytest.mark.rule("ack-27")
def test_a_clock_that_is_set_back_goes_on_from_there() -> None:
    series, now = ahead(), FIRST + 2 * MINUTE
    assert series.is_set_back(now, 2, now)
    assert not series.go_back(now, 2, now)
    assert (series.time, series.seq, series.holes) == (now, 2, None)
    assert series.go_on(now + MINUTE, 4, now + MINUTE)
    assert series.holes == [Hole(now, now + MINUTE, now + MINUTE)]


@pytest.mark.rule("ack-27")
def test_what_is_missing_when_a_clock_is_set_back_is_missing_since_we_were_sure() -> None:
    series, now = ahead(), FIRST + 2 * MINUTE
    assert series.go_back(now, 4, now)
    assert series.holes == [Hole(FIRST, now, now)]
    assert complete_up_to([series], now) == FIRST


@pytest.mark.rule("ack-27")
def test_a_clock_that_is_set_back_beyond_what_we_are_sure_of_makes_no_hole_without_a_length() -> None:
    series = ahead()
    series.go_back(FIRST - SECOND, 4, FIRST + SECOND)
    assert (series.time, series.holes) == (FIRST - SECOND, None)


@pytest.mark.rule("ack-27")
def test_holes_ahead_of_a_clock_that_is_set_back_come_back_with_it() -> None:
    """Those before it stay as they are."""
    series, now = Series(FIRST, 0), FIRST + 2 * MINUTE
    series.go_on(FIRST + SECOND, 2, FIRST + SECOND)
    series.go_on(FIRST + 9 * MINUTE, 5, FIRST + MINUTE)
    assert series.go_back(now, 6, now)
    assert [(hole.since, hole.until) for hole in series.holes or ()] == [
        (FIRST, FIRST + SECOND),
        (FIRST + SECOND, now),
    ]


@pytest.mark.rule("ack-27")
def test_we_are_sure_of_a_clock_that_is_always_ahead_once_its_time_has_come() -> None:
    """Else all that it ever told would be looked up when it is set right."""
    series, lead = Series(FIRST, 0), 5 * MINUTE
    for count in range(1, 200):
        series.go_on(FIRST + count * MINUTE, count, FIRST + count * MINUTE - lead)
    now = FIRST + 195 * MINUTE
    assert series.go_back(now, 205, now)
    (hole,) = series.holes or []
    assert now - 3 * lead < hole.since < now


@pytest.mark.rule("ack-27")
@each_row(
    ("time", "seq", "now"),
    [
        pytest.param(FIRST + 2 * MINUTE, 1, FIRST + 2 * MINUTE, id="once more"),
        pytest.param(FIRST + 2 * MINUTE, 0, FIRST + 2 * MINUTE, id="out of order"),
        pytest.param(FIRST + 2 * MINUTE, 250, FIRST + 2 * MINUTE, id="of a backfill"),
        pytest.param(FIRST + MINUTE, 2, FIRST + 2 * MINUTE, id="not fresh"),
        pytest.param(FIRST + 9 * MINUTE, 2, FIRST + 10 * MINUTE, id="not ahead of us"),
    ],
)
def test_no_other_older_sample_means_that_a_clock_was_set_back(time: int, seq: int, now: int) -> None:
    assert not ahead().is_set_back(time, seq, now)


arrivals = st.tuples(st.integers(0, 90), st.integers(-90, 600), st.integers(0, 255))


@given(st.lists(arrivals, max_size=60))
def test_whatever_a_clock_does_holes_have_a_length_and_do_not_overlap(
    steps: list[tuple[int, int, int]],
) -> None:
    series, now = Series(FIRST, 0), FIRST
    for seconds, lead, seq in steps:
        now += seconds * SECOND
        time = now + lead * SECOND
        if time > series.time:
            series.go_on(time, seq, now)
        elif series.is_set_back(time, seq, now):
            series.go_back(time, seq, now)
        holes = series.holes or []
        assert all(hole.since < hole.until <= series.time for hole in holes)
        assert all(one.until <= other.since for one, other in pairwise(holes))
        assert (complete_up_to([series], now) or 0) <= now


@pytest.mark.anyio
@pytest.mark.rule("ack-11")
async def test_after_a_clock_is_set_back_what_is_missing_is_asked_for_at_once(in_file: Ground) -> None:
    await in_file.tell(0, 1)
    await in_file.take(temperature(at(10), seq=2))
    assert await in_file.tell(3) == [0]
    assert await in_file.tell(5) == [1]
    assert in_file.holes == [(3, 5)]
    await in_file.tell(4)
    await in_file.look()
    assert (in_file.holes, in_file.complete) == ([], 5)


@pytest.mark.anyio
@pytest.mark.rule("ack-11", "ack-24")
async def test_after_a_clock_is_set_back_an_outage_counts_as_ever(in_file: Ground) -> None:
    await in_file.tell(0, 1)
    await in_file.take(temperature(at(10), seq=2))
    in_file.acks.come_back(number(A), in_file.intake.now + 5 * SECOND)
    assert await in_file.tell(3) == [1]


# --- Not believed ---


def ask(strays: Strays, *counted: int, now: int = NOON, outage: int = NOON - DAY) -> list[bool]:
    return [strays.wants_backfill(TEMPERATURE, seq, outage, now) for seq in counted]


@pytest.mark.rule("ack-28", "ack-11", "ack-13")
def test_a_series_that_is_not_believed_begins_with_type_0_and_is_asked_for_what_was_before() -> None:
    assert ask(Strays(), 254, 255, 0, 1) == [False, True, False, False]


@pytest.mark.rule("ack-28", "ack-11", "ack-12", "ack-21")
def test_what_is_missing_in_a_series_that_is_not_believed_is_asked_for_once_a_minute() -> None:
    strays = Strays()
    assert ask(strays, 0, 1) == [False, True]
    assert ask(strays, 3, 5, now=NOON + MINUTE - 1) == [False, False]
    assert ask(strays, 4, 2, 5, now=NOON + MINUTE) == [False] * 3
    assert ask(strays, 6, 7, now=NOON + MINUTE) == [True, False]
    assert ask(strays, 8, 9, now=NOON + HOUR) == [False, False]


@pytest.mark.rule("ack-28", "ack-11", "ack-24")
def test_a_series_that_is_not_believed_is_asked_for_after_an_outage() -> None:
    strays = Strays()
    assert ask(strays, 0, 1) == [False, True]
    assert ask(strays, 2, 3, now=NOON + HOUR, outage=NOON + MINUTE) == [True, False]


def test_only_so_many_series_that_are_not_believed_are_remembered() -> None:
    strays = Strays()
    for device in range(REMEMBERED + 10):
        strays.wants_backfill((device, 1, 2), 0, 0, NOON)
    assert len(strays) == REMEMBERED
    assert not strays.wants_backfill((0, 1, 2), 7, 0, NOON)
    assert strays.wants_backfill((REMEMBERED, 1, 2), 7, 0, NOON)


@pytest.mark.anyio
@pytest.mark.rule("ack-28", "ack-11")
@pytest.mark.parametrize("wrong", [5 * HOUR, -40 * DAY], ids=["ahead", "behind"])
async def test_behind_a_gateway_whose_clock_is_wrong_what_is_missing_is_asked_for(
    in_file: Ground, wrong: int
) -> None:
    types = []
    for each in (0, 1, 2, 3, 5, 6):
        in_file.intake.now = at(each)
        types += [ack.type for ack in await in_file.take(temperature(at(each) + wrong, seq=each))]
    assert types == [0, 1, 0, 0, 1, 0]
    assert in_file.acks.series == {}
    assert in_file.complete_by_tables() is None


# --- Our own clock ---


@pytest.mark.rule("ack-12")
@pytest.mark.anyio
async def test_when_our_own_clock_is_set_back_a_hole_is_asked_for_again_as_soon_as_before(
    in_file: Ground,
) -> None:
    await in_file.tell(0)
    assert await in_file.tell(2) == [1]
    in_file.intake.now -= 5 * MINUTE
    await in_file.intake.ingest.flush()
    assert [ack.type for ack in await in_file.take(temperature(at(3), seq=3))] == [0], "not so soon"
    in_file.intake.now += 61 * SECOND
    assert [ack.type for ack in await in_file.take(temperature(at(4), seq=4))] == [1]
