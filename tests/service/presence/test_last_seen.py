"""The usual interval of a device, estimated from its heartbeats."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.presence.last_seen import LastSeen
from tests.row_tables import each_row
from tests.service.presence.presence_harness import DAY, HOUR, MINUTE, NOON, SECOND

A, B, C = 1, 2, 3
TWENTY_MINUTES = 20 * MINUTE


def build_last_seen() -> LastSeen:
    return LastSeen(NOON, A, connected=True)


def build_with_intervals(*intervals: int) -> LastSeen:
    """Create the data of a device whose heartbeats have these intervals."""
    last_seen, time = build_last_seen(), NOON
    last_seen.record_heartbeat(A, time)
    for interval in intervals:
        time += interval
        last_seen.record_heartbeat(A, time)
    return last_seen


@pytest.mark.rule("rest-52")
@each_row("intervals", [(), (MINUTE,), (MINUTE, MINUTE)])
def test_the_interval_is_twenty_minutes_until_three_intervals_are_known(intervals: tuple[int, ...]) -> None:
    assert build_with_intervals(*intervals).interval == TWENTY_MINUTES
    assert build_with_intervals(*intervals).silence_timeout == HOUR


@pytest.mark.rule("rest-52")
def test_the_stored_interval_counts_until_three_intervals_are_known() -> None:
    last_seen = build_with_intervals(MINUTE, MINUTE)
    last_seen.stored_interval = 2 * MINUTE
    assert last_seen.interval == 2 * MINUTE
    last_seen.record_heartbeat(A, last_seen.heartbeat_at + MINUTE)
    assert last_seen.interval == MINUTE


@pytest.mark.rule("rest-52")
def test_three_intervals_are_enough_for_an_estimate() -> None:
    assert build_with_intervals(MINUTE, 5 * MINUTE, 2 * MINUTE).interval == 2 * MINUTE


@pytest.mark.rule("rest-51", "rest-52")
def test_the_interval_is_at_least_a_minute() -> None:
    assert build_with_intervals(*[SECOND] * 8).interval == MINUTE
    assert build_with_intervals(*[SECOND] * 8).silence_timeout == 3 * MINUTE
    assert build_with_intervals(*[MINUTE + 1] * 8).interval == MINUTE + 1


@pytest.mark.rule("rest-52")
@given(intervals=st.lists(st.integers(1, 40 * DAY), min_size=3, max_size=20))
def test_the_interval_is_the_median_of_the_last_eight(intervals: list[int]) -> None:
    assert build_with_intervals(*intervals).interval == max(int(median(intervals[-8:])), MINUTE)


@pytest.mark.rule("rest-52")
def test_a_changed_interval_is_learned_within_five_heartbeats() -> None:
    last_seen = build_with_intervals(*[TWENTY_MINUTES] * 20, *[MINUTE] * 4)
    assert MINUTE < last_seen.interval <= TWENTY_MINUTES
    last_seen.record_heartbeat(A, last_seen.heartbeat_at + MINUTE)
    assert last_seen.interval == MINUTE


@pytest.mark.rule("rest-52")
@given(intervals=st.lists(st.integers(1, HOUR), min_size=3, max_size=12), at=st.integers(0, 11))
def test_a_repeated_heartbeat_counts_once(intervals: list[int], at: int) -> None:
    once, twice, time = build_last_seen(), build_last_seen(), NOON
    for index, interval in enumerate([0, *intervals]):
        time += interval
        for last_seen in (once, twice, *([twice] if index >= at else [])):
            last_seen.record_heartbeat(A, time)
    assert twice == once


@pytest.mark.rule("rest-52")
def test_a_late_heartbeat_changes_nothing() -> None:
    last_seen = build_with_intervals(*[MINUTE] * 8)
    intervals_before = last_seen.packed_intervals
    last_seen.record_heartbeat(A, last_seen.heartbeat_at - 30 * SECOND)
    last_seen.record_heartbeat(A, last_seen.heartbeat_at - MINUTE)
    assert (last_seen.packed_intervals, last_seen.heartbeat_at) == (intervals_before, NOON + 8 * MINUTE)


def test_a_clock_set_back_adds_no_interval() -> None:
    last_seen = build_with_intervals(*[2 * MINUTE] * 8)
    time_set = last_seen.heartbeat_at - 5 * HOUR
    for step in range(9):
        last_seen.record_heartbeat(A, time_set + step * 2 * MINUTE)
    assert (last_seen.interval, last_seen.heartbeat_at) == (2 * MINUTE, time_set + 16 * MINUTE)


def test_an_interval_that_is_too_long_is_ignored() -> None:
    last_seen = build_with_intervals(MINUTE, MINUTE, 50 * DAY, MINUTE)
    assert last_seen.interval == MINUTE
    last_seen = build_with_intervals(MINUTE, MINUTE, 50 * DAY)
    assert last_seen.interval == TWENTY_MINUTES


@pytest.mark.rule("rest-52")
@each_row("difference", [-4 * SECOND, -1, 0, 1, 4 * SECOND])
@each_row("every", [MINUTE, 5 * MINUTE, TWENTY_MINUTES])
def test_two_gateways_with_the_same_heartbeats_do_not_halve_the_interval(difference: int, every: int) -> None:
    """Check both orders, with either clock slightly ahead."""
    one, other = build_last_seen(), build_last_seen()
    for step in range(20):
        time = NOON + step * every
        one.record_heartbeat(A, time)
        one.record_heartbeat(B, time + difference)
        other.record_heartbeat(B, time + difference)
        other.record_heartbeat(A, time)
    for last_seen in (one, other):
        assert every - 5 * SECOND <= last_seen.interval <= every + 5 * SECOND


@pytest.mark.rule("rest-52")
def test_a_device_that_changes_gateways_with_every_heartbeat_keeps_its_interval() -> None:
    last_seen = build_last_seen()
    for step in range(60):
        last_seen.record_heartbeat((A, B, C)[step % 3], NOON + step * MINUTE)
    assert last_seen.interval == MINUTE


@pytest.mark.rule("rest-52")
def test_the_interval_is_learned_through_another_gateway() -> None:
    last_seen = build_with_intervals(*[TWENTY_MINUTES] * 8)
    start = last_seen.heartbeat_at
    for step in range(1, 40):
        last_seen.record_heartbeat(B, start + step * MINUTE)
    assert last_seen.interval == MINUTE


# --- Other gateways ---


def test_a_device_switches_to_a_connected_gateway_that_saw_it_recently() -> None:
    last_seen = build_last_seen()
    last_seen.mark_heard(B, NOON + 1)
    assert last_seen.switch_gateway({A}, NOON + HOUR - 1)
    assert (last_seen.gateway, last_seen.previous_gateway) == (A, 0)


@each_row(("connected", "after"), [({C}, 1), (set(), 1), ({A}, HOUR), ({A}, 2 * HOUR)])
def test_a_device_does_not_switch_to_a_disconnected_or_outdated_gateway(
    connected: set[int], after: int
) -> None:
    last_seen = build_last_seen()
    last_seen.mark_heard(B, NOON + 1)
    assert not last_seen.switch_gateway(connected, NOON + after)
    assert last_seen.gateway == B


def test_a_device_with_one_gateway_cannot_switch() -> None:
    last_seen = build_last_seen()
    last_seen.mark_heard(A, NOON + 5)
    assert not last_seen.switch_gateway({A, B, 0 + C}, NOON + 6)


def test_an_earlier_time_does_not_move_the_last_report_back() -> None:
    last_seen = build_last_seen()
    last_seen.mark_heard(A, NOON + 10)
    last_seen.mark_heard(A, NOON + 5)
    assert last_seen.heard_at == NOON + 10
