"""How often a device is heard: its usual interval, from its heartbeats."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.presence.rhythm import Rhythm
from tests.service.presence.scene import DAY, HOUR, MINUTE, NOON, SECOND
from tests.tables import each_row

A, B, C = 1, 2, 3
TWENTY = 20 * MINUTE


def rhythm() -> Rhythm:
    return Rhythm(NOON, A, connected=True)


def beaten(*gaps: int) -> Rhythm:
    """Of a device whose heartbeats have these gaps."""
    made, at = rhythm(), NOON
    made.beat(A, at)
    for gap in gaps:
        at += gap
        made.beat(A, at)
    return made


@pytest.mark.rule("rest-52")
@each_row("gaps", [(), (MINUTE,), (MINUTE, MINUTE)])
def test_until_three_gaps_are_known_it_is_twenty_minutes(gaps: tuple[int, ...]) -> None:
    assert beaten(*gaps).interval == TWENTY
    assert beaten(*gaps).patience == HOUR


@pytest.mark.rule("rest-52")
def test_what_was_known_before_counts_until_three_gaps_are_known() -> None:
    made = beaten(MINUTE, MINUTE)
    made.usual = 2 * MINUTE
    assert made.interval == 2 * MINUTE
    made.beat(A, made.beat_at + MINUTE)
    assert made.interval == MINUTE


@pytest.mark.rule("rest-52")
def test_three_gaps_make_a_rhythm() -> None:
    assert beaten(MINUTE, 5 * MINUTE, 2 * MINUTE).interval == 2 * MINUTE


@pytest.mark.rule("rest-51", "rest-52")
def test_it_is_never_under_a_minute() -> None:
    assert beaten(*[SECOND] * 8).interval == MINUTE
    assert beaten(*[SECOND] * 8).patience == 3 * MINUTE
    assert beaten(*[MINUTE + 1] * 8).interval == MINUTE + 1


@pytest.mark.rule("rest-52")
@given(gaps=st.lists(st.integers(1, 40 * DAY), min_size=3, max_size=20))
def test_it_is_the_median_of_the_last_eight_gaps(gaps: list[int]) -> None:
    assert beaten(*gaps).interval == max(int(median(gaps[-8:])), MINUTE)


@pytest.mark.rule("rest-52")
def test_a_rhythm_that_changes_is_followed_within_five_heartbeats() -> None:
    made = beaten(*[TWENTY] * 20, *[MINUTE] * 4)
    assert MINUTE < made.interval <= TWENTY
    made.beat(A, made.beat_at + MINUTE)
    assert made.interval == MINUTE


@pytest.mark.rule("rest-52")
@given(gaps=st.lists(st.integers(1, HOUR), min_size=3, max_size=12), at=st.integers(0, 11))
def test_a_heartbeat_that_comes_again_counts_once(gaps: list[int], at: int) -> None:
    once, twice, time = rhythm(), rhythm(), NOON
    for place, gap in enumerate([0, *gaps]):
        time += gap
        for made in (once, twice, *([twice] if place >= at else [])):
            made.beat(A, time)
    assert twice == once


@pytest.mark.rule("rest-52")
def test_a_heartbeat_that_comes_late_changes_nothing() -> None:
    made = beaten(*[MINUTE] * 8)
    before = made.gaps
    made.beat(A, made.beat_at - 30 * SECOND)
    made.beat(A, made.beat_at - MINUTE)
    assert (made.gaps, made.beat_at) == (before, NOON + 8 * MINUTE)


def test_a_clock_that_was_set_back_makes_no_gap_and_the_rhythm_goes_on() -> None:
    made = beaten(*[2 * MINUTE] * 8)
    back = made.beat_at - 5 * HOUR
    for step in range(9):
        made.beat(A, back + step * 2 * MINUTE)
    assert (made.interval, made.beat_at) == (2 * MINUTE, back + 16 * MINUTE)


def test_a_gap_wider_than_can_be_kept_is_none() -> None:
    made = beaten(MINUTE, MINUTE, 50 * DAY, MINUTE)
    assert made.interval == MINUTE
    made = beaten(MINUTE, MINUTE, 50 * DAY)
    assert made.interval == TWENTY


@pytest.mark.rule("rest-52")
@each_row("apart", [-4 * SECOND, -1, 0, 1, 4 * SECOND])
@each_row("every", [MINUTE, 5 * MINUTE, TWENTY])
def test_two_gateways_that_hear_the_same_heartbeats_do_not_halve_it(apart: int, every: int) -> None:
    """Whichever clock is a little ahead, and whoever is first to tell."""
    one, other = rhythm(), rhythm()
    for step in range(20):
        time = NOON + step * every
        one.beat(A, time)
        one.beat(B, time + apart)
        other.beat(B, time + apart)
        other.beat(A, time)
    for made in (one, other):
        assert every - 5 * SECOND <= made.interval <= every + 5 * SECOND


@pytest.mark.rule("rest-52")
def test_a_device_that_changes_gateways_with_every_heartbeat_keeps_its_rhythm() -> None:
    made = rhythm()
    for step in range(60):
        made.beat((A, B, C)[step % 3], NOON + step * MINUTE)
    assert made.interval == MINUTE


@pytest.mark.rule("rest-52")
def test_the_rhythm_goes_on_through_another_gateway() -> None:
    made = beaten(*[TWENTY] * 8)
    start = made.beat_at
    for step in range(1, 40):
        made.beat(B, start + step * MINUTE)
    assert made.interval == MINUTE


# --- Whoever else hears it ---


def test_another_gateway_that_is_there_and_heard_it_lately_takes_its_place() -> None:
    made = rhythm()
    made.hear(B, NOON + 1)
    assert made.fall_back({A}, NOON + HOUR - 1)
    assert (made.gateway, made.other) == (A, 0)


@each_row(("present", "after"), [({C}, 1), (set(), 1), ({A}, HOUR), ({A}, 2 * HOUR)])
def test_one_that_is_away_or_heard_it_long_ago_does_not(present: set[int], after: int) -> None:
    made = rhythm()
    made.hear(B, NOON + 1)
    assert not made.fall_back(present, NOON + after)
    assert made.gateway == B


def test_a_device_that_only_one_gateway_ever_heard_has_nobody_to_fall_back_to() -> None:
    made = rhythm()
    made.hear(A, NOON + 5)
    assert not made.fall_back({A, B, 0 + C}, NOON + 6)


def test_what_was_heard_before_moves_nothing_back() -> None:
    made = rhythm()
    made.hear(A, NOON + 10)
    made.hear(A, NOON + 5)
    assert made.at == NOON + 10
