"""How often a device is heard: its usual interval, from its heartbeats."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.presence.last_seen import LastSeen
from tests.row_tables import each_row
from tests.service.presence.presence_harness import DAY, HOUR, MINUTE, NOON, SECOND

A, B, C = 1, 2, 3
TWENTY = 20 * MINUTE


def build_last_seen() -> LastSeen:
    return LastSeen(NOON, A, connected=True)


def build_with_intervals(*gaps: int) -> LastSeen:
    """Of a device whose heartbeats have these gaps."""
    made, at = build_last_seen(), NOON
    made.record_heartbeat(A, at)
    for gap in gaps:
        at += gap
        made.record_heartbeat(A, at)
    return made


@pytest.mark.rule("rest-52")
@each_row("gaps", [(), (MINUTE,), (MINUTE, MINUTE)])
def test_until_three_gaps_are_known_it_is_twenty_minutes(gaps: tuple[int, ...]) -> None:
    assert build_with_intervals(*gaps).interval == TWENTY
    assert build_with_intervals(*gaps).silence_timeout == HOUR


@pytest.mark.rule("rest-52")
def test_what_was_known_before_counts_until_three_gaps_are_known() -> None:
    made = build_with_intervals(MINUTE, MINUTE)
    made.stored_interval = 2 * MINUTE
    assert made.interval == 2 * MINUTE
    made.record_heartbeat(A, made.heartbeat_at + MINUTE)
    assert made.interval == MINUTE


@pytest.mark.rule("rest-52")
def test_three_gaps_make_a_rhythm() -> None:
    assert build_with_intervals(MINUTE, 5 * MINUTE, 2 * MINUTE).interval == 2 * MINUTE


@pytest.mark.rule("rest-51", "rest-52")
def test_it_is_never_under_a_minute() -> None:
    assert build_with_intervals(*[SECOND] * 8).interval == MINUTE
    assert build_with_intervals(*[SECOND] * 8).silence_timeout == 3 * MINUTE
    assert build_with_intervals(*[MINUTE + 1] * 8).interval == MINUTE + 1


@pytest.mark.rule("rest-52")
@given(gaps=st.lists(st.integers(1, 40 * DAY), min_size=3, max_size=20))
def test_it_is_the_median_of_the_last_eight_gaps(gaps: list[int]) -> None:
    assert build_with_intervals(*gaps).interval == max(int(median(gaps[-8:])), MINUTE)


@pytest.mark.rule("rest-52")
def test_a_rhythm_that_changes_is_followed_within_five_heartbeats() -> None:
    made = build_with_intervals(*[TWENTY] * 20, *[MINUTE] * 4)
    assert MINUTE < made.interval <= TWENTY
    made.record_heartbeat(A, made.heartbeat_at + MINUTE)
    assert made.interval == MINUTE


@pytest.mark.rule("rest-52")
@given(gaps=st.lists(st.integers(1, HOUR), min_size=3, max_size=12), at=st.integers(0, 11))
def test_a_heartbeat_that_comes_again_counts_once(gaps: list[int], at: int) -> None:
    once, twice, time = build_last_seen(), build_last_seen(), NOON
    for place, gap in enumerate([0, *gaps]):
        time += gap
        for made in (once, twice, *([twice] if place >= at else [])):
            made.record_heartbeat(A, time)
    assert twice == once


@pytest.mark.rule("rest-52")
def test_a_heartbeat_that_comes_late_changes_nothing() -> None:
    made = build_with_intervals(*[MINUTE] * 8)
    before = made.packed_intervals
    made.record_heartbeat(A, made.heartbeat_at - 30 * SECOND)
    made.record_heartbeat(A, made.heartbeat_at - MINUTE)
    assert (made.packed_intervals, made.heartbeat_at) == (before, NOON + 8 * MINUTE)


def test_a_clock_that_was_set_back_makes_no_gap_and_the_rhythm_goes_on() -> None:
    made = build_with_intervals(*[2 * MINUTE] * 8)
    back = made.heartbeat_at - 5 * HOUR
    for step in range(9):
        made.record_heartbeat(A, back + step * 2 * MINUTE)
    assert (made.interval, made.heartbeat_at) == (2 * MINUTE, back + 16 * MINUTE)


def test_a_gap_wider_than_can_be_kept_is_none() -> None:
    made = build_with_intervals(MINUTE, MINUTE, 50 * DAY, MINUTE)
    assert made.interval == MINUTE
    made = build_with_intervals(MINUTE, MINUTE, 50 * DAY)
    assert made.interval == TWENTY


@pytest.mark.rule("rest-52")
@each_row("apart", [-4 * SECOND, -1, 0, 1, 4 * SECOND])
@each_row("every", [MINUTE, 5 * MINUTE, TWENTY])
def test_two_gateways_that_hear_the_same_heartbeats_do_not_halve_it(apart: int, every: int) -> None:
    """Whichever clock is a little ahead, and whoever is first to tell."""
    one, other = build_last_seen(), build_last_seen()
    for step in range(20):
        time = NOON + step * every
        one.record_heartbeat(A, time)
        one.record_heartbeat(B, time + apart)
        other.record_heartbeat(B, time + apart)
        other.record_heartbeat(A, time)
    for made in (one, other):
        assert every - 5 * SECOND <= made.interval <= every + 5 * SECOND


@pytest.mark.rule("rest-52")
def test_a_device_that_changes_gateways_with_every_heartbeat_keeps_its_rhythm() -> None:
    made = build_last_seen()
    for step in range(60):
        made.record_heartbeat((A, B, C)[step % 3], NOON + step * MINUTE)
    assert made.interval == MINUTE


@pytest.mark.rule("rest-52")
def test_the_rhythm_goes_on_through_another_gateway() -> None:
    made = build_with_intervals(*[TWENTY] * 8)
    start = made.heartbeat_at
    for step in range(1, 40):
        made.record_heartbeat(B, start + step * MINUTE)
    assert made.interval == MINUTE


# --- Whoever else hears it ---


def test_another_gateway_that_is_there_and_heard_it_lately_takes_its_place() -> None:
    made = build_last_seen()
    made.mark_heard(B, NOON + 1)
    assert made.switch_gateway({A}, NOON + HOUR - 1)
    assert (made.gateway, made.previous_gateway) == (A, 0)


@each_row(("present", "after"), [({C}, 1), (set(), 1), ({A}, HOUR), ({A}, 2 * HOUR)])
def test_one_that_is_away_or_heard_it_long_ago_does_not(present: set[int], after: int) -> None:
    made = build_last_seen()
    made.mark_heard(B, NOON + 1)
    assert not made.switch_gateway(present, NOON + after)
    assert made.gateway == B


def test_a_device_that_only_one_gateway_ever_heard_has_nobody_to_fall_back_to() -> None:
    made = build_last_seen()
    made.mark_heard(A, NOON + 5)
    assert not made.switch_gateway({A, B, 0 + C}, NOON + 6)


def test_what_was_heard_before_moves_nothing_back() -> None:
    made = build_last_seen()
    made.mark_heard(A, NOON + 10)
    made.mark_heard(A, NOON + 5)
    assert made.heard_at == NOON + 10
