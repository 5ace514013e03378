"""The schedule of version requests, with plain numbers for the time."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from meshfleet.service.gateways.version_schedule import VersionSchedule

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
MANY = 10_000


@pytest.fixture
def schedule() -> VersionSchedule:
    return VersionSchedule(Random(1))  # noqa: S311 # seeded, so that tests are reproducible


def list_request_times(schedule: VersionSchedule, *, start: int, end: int) -> list[int]:
    """Return the times of requests to a gateway that never responds, to the second."""
    times = []
    for now in range(start, end, SECOND):
        for gateway in schedule.pop_due_gateways(now, 20):
            times.append(now)
            schedule.record_failure(gateway, now)
    return times


@pytest.mark.rule("version-10")
def test_a_request_is_due_when_a_gateway_connects_and_then_hourly(schedule: VersionSchedule) -> None:
    schedule.update_connections({7: 1}, 0)
    assert schedule.pop_due_gateways(SECOND, MANY) == [7]
    assert schedule.pop_due_gateways(SECOND, MANY) == []
    schedule.record_response(7, SECOND)
    schedule.update_connections({7: 1}, HOUR // 2)
    assert schedule.pop_due_gateways(HOUR // 2, MANY) == []
    assert schedule.pop_due_gateways(HOUR + HOUR // 5, MANY) == [7]


@pytest.mark.rule("version-10")
def test_a_new_connection_is_due_again(schedule: VersionSchedule) -> None:
    schedule.update_connections({7: 1}, 0)
    schedule.pop_due_gateways(SECOND, MANY)
    schedule.record_response(7, SECOND)
    schedule.update_connections({7: 2}, HOUR)
    assert schedule.pop_due_gateways(HOUR + SECOND, MANY) == [7]


def test_a_gateway_that_reconnects_often_is_due_once_per_minute(schedule: VersionSchedule) -> None:
    request_count = 0
    for number, now in enumerate(range(0, 10 * MINUTE, SECOND)):
        schedule.update_connections({7: number} if number % 2 else {}, now)
        for gateway in schedule.pop_due_gateways(now, MANY):
            request_count += 1
            schedule.record_response(gateway, now)
    assert 1 <= request_count <= 10


@pytest.mark.rule("version-10")
def test_an_unresponsive_gateway_gets_a_few_retries_and_then_hourly_requests(
    schedule: VersionSchedule,
) -> None:
    schedule.update_connections({7: 1}, 0)
    times = list_request_times(schedule, start=0, end=12 * HOUR)
    first = [time for time in times if time < 10 * MINUTE]
    intervals = [later - earlier for earlier, later in pairwise(times[3:])]
    assert len(first) == 4
    assert 10 <= len(intervals) <= 13
    assert all(0.89 * HOUR < interval < 1.11 * HOUR for interval in intervals)


def test_a_disconnected_gateway_is_not_due(schedule: VersionSchedule) -> None:
    schedule.update_connections({7: 1}, 0)
    schedule.update_connections({}, 0)
    assert schedule.pop_due_gateways(HOUR, MANY) == []
    schedule.update_connections({7: 2}, HOUR)
    assert schedule.pop_due_gateways(HOUR + SECOND, MANY) == [7]
    schedule.update_connections({}, HOUR + SECOND)
    schedule.record_failure(7, HOUR + 2 * SECOND)
    assert schedule.pop_due_gateways(5 * HOUR, MANY) == []


def test_requests_to_thousands_of_new_connections_are_spread(schedule: VersionSchedule) -> None:
    schedule.update_connections(dict.fromkeys(range(5000), 1), 0)
    counts_per_second = []
    for now in range(0, 101 * SECOND, SECOND):
        due = schedule.pop_due_gateways(now, MANY)
        counts_per_second.append(len(due))
        for gateway in due:
            schedule.record_response(gateway, now)
    assert sum(counts_per_second) == 5000
    assert max(counts_per_second) < 120


def test_at_most_the_limit_is_due_and_new_connections_come_first(
    schedule: VersionSchedule,
) -> None:
    schedule.update_connections(dict.fromkeys(range(30), 1), 0)
    for gateway in schedule.pop_due_gateways(MINUTE, MANY):
        schedule.record_failure(gateway, MINUTE)
    schedule.update_connections({**dict.fromkeys(range(30), 1), 99: 1}, MINUTE)
    due = schedule.pop_due_gateways(3 * MINUTE, 20)
    assert due[0] == 99
    assert len(set(due)) == 20
    assert schedule.pop_due_gateways(3 * MINUTE, 0) == []
    assert len(schedule.pop_due_gateways(3 * MINUTE, 20)) == 11


def test_clock_checks_of_an_unresponsive_gateway_become_rare(
    schedule: VersionSchedule,
) -> None:
    schedule.update_connections({7: 1}, 0)
    times = []
    for now in range(0, 3 * HOUR, SECOND):
        schedule.expedite_requests({7}, now)
        for gateway in schedule.pop_due_gateways(now, MANY):
            times.append(now)
            schedule.record_failure(gateway, now)
    assert len(times) < 20, "every 30 s would be 360 requests"


def test_a_suspect_clock_is_measured_again_but_not_too_often(schedule: VersionSchedule) -> None:
    schedule.update_connections({7: 1, 8: 1}, 0)
    for gateway in schedule.pop_due_gateways(SECOND, MANY):
        schedule.record_response(gateway, SECOND)
    request_count = 0
    for now in range(2 * SECOND, HOUR // 2, SECOND):
        schedule.expedite_requests({7, 99}, now)
        for gateway in schedule.pop_due_gateways(now, MANY):
            assert gateway == 7
            request_count += 1
            schedule.record_response(gateway, now)
    assert request_count == 59
