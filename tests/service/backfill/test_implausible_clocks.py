"""Clocks that are set back, and clocks that nobody believes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.backfill.acknowledger import ImplausibleClocks
from meshfleet.service.backfill.series import Gap, SeriesState, complete_up_to
from tests.row_tables import each_row
from tests.service.backfill.ack_harness import TEMPERATURE, sample_time
from tests.service.backfill.test_series import FIRST, HOUR, MINUTE, SECOND
from tests.service.ingest.ingest_harness import DAY, NOON
from tests.service.ingest.messages import A, mac_to_number, temperature

if TYPE_CHECKING:
    from tests.service.backfill.ack_harness import AckHarness

REMEMBERED = 20_000
"""Series whose clock nobody believes."""


def ahead() -> SeriesState:
    """A series with a sample that came nine minutes before its time, a minute after the first."""
    series = SeriesState(FIRST, 0)
    series.append(FIRST + 10 * MINUTE, 1, FIRST + MINUTE)
    return series


# --- Set back ---


@pytest.mark.rule("ack-15", "ack-27")
def test_nothing_is_complete_beyond_now() -> None:
    assert complete_up_to([ahead()], FIRST + MINUTE) == FIRST + MINUTE


@pytest.mark.rule("ack-27")
def test_a_clock_that_is_set_back_goes_on_from_there() -> None:
    series, now = ahead(), FIRST + 2 * MINUTE
    assert series.is_clock_reset(now, 2, now)
    assert not series.append_after_reset(now, 2, now)
    assert (series.time, series.seq, series.gaps) == (now, 2, None)
    assert series.append(now + MINUTE, 4, now + MINUTE)
    assert series.gaps == [Gap(now, now + MINUTE, now + MINUTE)]


@pytest.mark.rule("ack-27")
def test_what_is_missing_when_a_clock_is_set_back_is_missing_since_we_were_sure() -> None:
    series, now = ahead(), FIRST + 2 * MINUTE
    assert series.append_after_reset(now, 4, now)
    assert series.gaps == [Gap(FIRST, now, now)]
    assert complete_up_to([series], now) == FIRST


@pytest.mark.rule("ack-27")
def test_a_clock_that_is_set_back_beyond_what_we_are_sure_of_makes_no_hole_without_a_length() -> None:
    series = ahead()
    series.append_after_reset(FIRST - SECOND, 4, FIRST + SECOND)
    assert (series.time, series.gaps) == (FIRST - SECOND, None)


@pytest.mark.rule("ack-27")
def test_holes_ahead_of_a_clock_that_is_set_back_come_back_with_it() -> None:
    """Those before it stay as they are."""
    series, now = SeriesState(FIRST, 0), FIRST + 2 * MINUTE
    series.append(FIRST + SECOND, 2, FIRST + SECOND)
    series.append(FIRST + 9 * MINUTE, 5, FIRST + MINUTE)
    assert series.append_after_reset(now, 6, now)
    assert [(hole.since, hole.until) for hole in series.gaps or ()] == [
        (FIRST, FIRST + SECOND),
        (FIRST + SECOND, now),
    ]


@pytest.mark.rule("ack-27")
def test_we_are_sure_of_a_clock_that_is_always_ahead_once_its_time_has_come() -> None:
    """Else all that it ever told would be looked up when it is set right."""
    series, lead = SeriesState(FIRST, 0), 5 * MINUTE
    for count in range(1, 200):
        series.append(FIRST + count * MINUTE, count, FIRST + count * MINUTE - lead)
    now = FIRST + 195 * MINUTE
    assert series.append_after_reset(now, 205, now)
    (hole,) = series.gaps or []
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
    assert not ahead().is_clock_reset(time, seq, now)


arrivals = st.tuples(st.integers(0, 90), st.integers(-90, 600), st.integers(0, 255))


@given(st.lists(arrivals, max_size=60))
def test_whatever_a_clock_does_holes_have_a_length_and_do_not_overlap(
    steps: list[tuple[int, int, int]],
) -> None:
    series, now = SeriesState(FIRST, 0), FIRST
    for seconds, lead, seq in steps:
        now += seconds * SECOND
        time = now + lead * SECOND
        if time > series.time:
            series.append(time, seq, now)
        elif series.is_clock_reset(time, seq, now):
            series.append_after_reset(time, seq, now)
        holes = series.gaps or []
        assert all(hole.since < hole.until <= series.time for hole in holes)
        assert all(one.until <= other.since for one, other in pairwise(holes))
        assert (complete_up_to([series], now) or 0) <= now


@pytest.mark.anyio
@pytest.mark.rule("ack-11")
async def test_after_a_clock_is_set_back_what_is_missing_is_asked_for_at_once(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 1)
    await in_file.commit(temperature(sample_time(10), seq=2))
    assert await in_file.commit_samples(3) == [0]
    assert await in_file.commit_samples(5) == [1]
    assert in_file.gaps == [(3, 5)]
    await in_file.commit_samples(4)
    await in_file.check_gaps()
    assert (in_file.gaps, in_file.complete_up_to) == ([], 5)


@pytest.mark.anyio
@pytest.mark.rule("ack-11", "ack-24")
async def test_after_a_clock_is_set_back_an_outage_counts_as_ever(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 1)
    await in_file.commit(temperature(sample_time(10), seq=2))
    in_file.acknowledger.gateway_reconnected(mac_to_number(A), in_file.ingest_harness.now + 5 * SECOND)
    assert await in_file.commit_samples(3) == [1]


# --- Not believed ---


def ask(strays: ImplausibleClocks, *counted: int, now: int = NOON, outage: int = NOON - DAY) -> list[bool]:
    return [strays.needs_backfill(TEMPERATURE, seq, outage, now) for seq in counted]


@pytest.mark.rule("ack-28", "ack-11", "ack-13")
def test_a_series_that_is_not_believed_begins_with_type_0_and_is_asked_for_what_was_before() -> None:
    assert ask(ImplausibleClocks(), 254, 255, 0, 1) == [False, True, False, False]


@pytest.mark.rule("ack-28", "ack-11", "ack-12", "ack-21")
def test_what_is_missing_in_a_series_that_is_not_believed_is_asked_for_once_a_minute() -> None:
    strays = ImplausibleClocks()
    assert ask(strays, 0, 1) == [False, True]
    assert ask(strays, 3, 5, now=NOON + MINUTE - 1) == [False, False]
    assert ask(strays, 4, 2, 5, now=NOON + MINUTE) == [False] * 3
    assert ask(strays, 6, 7, now=NOON + MINUTE) == [True, False]
    assert ask(strays, 8, 9, now=NOON + HOUR) == [False, False]


@pytest.mark.rule("ack-28", "ack-11", "ack-24")
def test_a_series_that_is_not_believed_is_asked_for_after_an_outage() -> None:
    strays = ImplausibleClocks()
    assert ask(strays, 0, 1) == [False, True]
    assert ask(strays, 2, 3, now=NOON + HOUR, outage=NOON + MINUTE) == [True, False]


def test_only_so_many_series_that_are_not_believed_are_remembered() -> None:
    strays = ImplausibleClocks()
    for device in range(REMEMBERED + 10):
        strays.needs_backfill((device, 1, 2), 0, 0, NOON)
    assert len(strays) == REMEMBERED
    assert not strays.needs_backfill((0, 1, 2), 7, 0, NOON)
    assert strays.needs_backfill((REMEMBERED, 1, 2), 7, 0, NOON)


@pytest.mark.anyio
@pytest.mark.rule("ack-28", "ack-11")
@pytest.mark.parametrize("wrong", [5 * HOUR, -40 * DAY], ids=["ahead", "behind"])
async def test_behind_a_gateway_whose_clock_is_wrong_what_is_missing_is_asked_for(
    in_file: AckHarness, wrong: int
) -> None:
    types = []
    for each in (0, 1, 2, 3, 5, 6):
        in_file.ingest_harness.now = sample_time(each)
        types += [ack.type for ack in await in_file.commit(temperature(sample_time(each) + wrong, seq=each))]
    assert types == [0, 1, 0, 0, 1, 0]
    assert in_file.acknowledger.series == {}
    assert in_file.stored_complete_up_to() is None


# --- Our own clock ---


@pytest.mark.rule("ack-12")
@pytest.mark.anyio
async def test_when_our_own_clock_is_set_back_a_hole_is_asked_for_again_as_soon_as_before(
    in_file: AckHarness,
) -> None:
    await in_file.commit_samples(0)
    assert await in_file.commit_samples(2) == [1]
    in_file.ingest_harness.now -= 5 * MINUTE
    await in_file.ingest_harness.ingest.flush()
    assert [ack.type for ack in await in_file.commit(temperature(sample_time(3), seq=3))] == [0], (
        "not so soon"
    )
    in_file.ingest_harness.now += 61 * SECOND
    assert [ack.type for ack in await in_file.commit(temperature(sample_time(4), seq=4))] == [1]
