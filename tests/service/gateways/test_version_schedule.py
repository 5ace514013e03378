"""When gateways are asked for their versions, with plain numbers for the time."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from meshfleet.service.gateways.version_schedule import VersionSchedule

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
MANY = 10_000


@pytest.fixture
def timetable() -> VersionSchedule:
    return VersionSchedule(Random(1))  # noqa: S311 # the same numbers each time


def run(timetable: VersionSchedule, *, start: int, end: int) -> list[int]:
    """The moments at which a gateway that never answers is asked, to the second."""
    moments = []
    for now in range(start, end, SECOND):
        for gateway in timetable.pop_due(now, 20):
            moments.append(now)
            timetable.record_failure(gateway, now)
    return moments


@pytest.mark.rule("version-10")
def test_a_gateway_is_asked_when_it_connects_and_then_hourly(timetable: VersionSchedule) -> None:
    timetable.update_connections({7: 1}, 0)
    assert timetable.pop_due(SECOND, MANY) == [7]
    assert timetable.pop_due(SECOND, MANY) == []
    timetable.record_response(7, SECOND)
    timetable.update_connections({7: 1}, HOUR // 2)
    assert timetable.pop_due(HOUR // 2, MANY) == []
    assert timetable.pop_due(HOUR + HOUR // 5, MANY) == [7]


@pytest.mark.rule("version-10")
def test_another_connection_is_asked_again(timetable: VersionSchedule) -> None:
    timetable.update_connections({7: 1}, 0)
    timetable.pop_due(SECOND, MANY)
    timetable.record_response(7, SECOND)
    timetable.update_connections({7: 2}, HOUR)
    assert timetable.pop_due(HOUR + SECOND, MANY) == [7]


def test_a_gateway_that_comes_and_goes_is_asked_once_in_a_minute(timetable: VersionSchedule) -> None:
    asked = 0
    for number, now in enumerate(range(0, 10 * MINUTE, SECOND)):
        timetable.update_connections({7: number} if number % 2 else {}, now)
        for gateway in timetable.pop_due(now, MANY):
            asked += 1
            timetable.record_response(gateway, now)
    assert 1 <= asked <= 10


@pytest.mark.rule("version-10")
def test_who_never_answers_is_asked_a_few_times_and_then_hourly(timetable: VersionSchedule) -> None:
    timetable.update_connections({7: 1}, 0)
    moments = run(timetable, start=0, end=12 * HOUR)
    first = [moment for moment in moments if moment < 10 * MINUTE]
    gaps = [late - early for early, late in pairwise(moments[3:])]
    assert len(first) == 4
    assert 10 <= len(gaps) <= 13
    assert all(0.89 * HOUR < gap < 1.11 * HOUR for gap in gaps)


def test_who_is_gone_is_not_asked(timetable: VersionSchedule) -> None:
    timetable.update_connections({7: 1}, 0)
    timetable.update_connections({}, 0)
    assert timetable.pop_due(HOUR, MANY) == []
    timetable.update_connections({7: 2}, HOUR)
    assert timetable.pop_due(HOUR + SECOND, MANY) == [7]
    timetable.update_connections({}, HOUR + SECOND)
    timetable.record_failure(7, HOUR + 2 * SECOND)
    assert timetable.pop_due(5 * HOUR, MANY) == []


def test_thousands_that_come_together_are_asked_one_after_the_other(timetable: VersionSchedule) -> None:
    timetable.update_connections(dict.fromkeys(range(5000), 1), 0)
    in_each_second = []
    for now in range(0, 101 * SECOND, SECOND):
        taken = timetable.pop_due(now, MANY)
        in_each_second.append(len(taken))
        for gateway in taken:
            timetable.record_response(gateway, now)
    assert sum(in_each_second) == 5000
    assert max(in_each_second) < 120


def test_no_more_are_taken_than_there_is_room_for_and_newcomers_come_first(
    timetable: VersionSchedule,
) -> None:
    timetable.update_connections(dict.fromkeys(range(30), 1), 0)
    for gateway in timetable.pop_due(MINUTE, MANY):
        timetable.record_failure(gateway, MINUTE)
    timetable.update_connections({**dict.fromkeys(range(30), 1), 99: 1}, MINUTE)
    taken = timetable.pop_due(3 * MINUTE, 20)
    assert taken[0] == 99
    assert len(set(taken)) == 20
    assert timetable.pop_due(3 * MINUTE, 0) == []
    assert len(timetable.pop_due(3 * MINUTE, 20)) == 11


def test_a_gateway_that_does_not_answer_is_asked_less_and_less_for_its_clock(
    timetable: VersionSchedule,
) -> None:
    timetable.update_connections({7: 1}, 0)
    asked = []
    for now in range(0, 3 * HOUR, SECOND):
        timetable.expedite({7}, now)
        for gateway in timetable.pop_due(now, MANY):
            asked.append(now)
            timetable.record_failure(gateway, now)
    assert len(asked) < 20, "every 30 s would be 360 times"


def test_a_clock_in_doubt_is_measured_again_but_not_often(timetable: VersionSchedule) -> None:
    timetable.update_connections({7: 1, 8: 1}, 0)
    for gateway in timetable.pop_due(SECOND, MANY):
        timetable.record_response(gateway, SECOND)
    asked = 0
    for now in range(2 * SECOND, HOUR // 2, SECOND):
        timetable.expedite({7, 99}, now)
        for gateway in timetable.pop_due(now, MANY):
            assert gateway == 7
            asked += 1
            timetable.record_response(gateway, now)
    assert asked == 59
