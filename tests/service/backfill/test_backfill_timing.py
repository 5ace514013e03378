"""When a series asks for what is missing, and when a hole is looked at."""

from __future__ import annotations

import pytest

from meshfleet.service.backfill.series import Gap, SeriesState
from tests.row_tables import each_row
from tests.service.backfill.test_series import FIRST, HOUR, MINUTE, SECOND

# --- When to ask ---


@pytest.mark.rule("ack-11", "ack-12")
def test_an_outage_is_asked_about_once_if_it_was_after_the_last_time() -> None:
    series = SeriesState(FIRST, 0, requested_at=FIRST)
    assert not series.needs_backfill(FIRST, FIRST + HOUR)
    assert not series.needs_backfill(FIRST + 1, FIRST + MINUTE - 1)
    assert series.needs_backfill(FIRST + 1, FIRST + MINUTE)
    series.record_request(FIRST + MINUTE)
    assert not series.needs_backfill(FIRST + 1, FIRST + HOUR)


@pytest.mark.rule("ack-16")
def test_a_series_that_nobody_believes_is_not_asked_for_a_hole_that_is_still_open() -> None:
    series = SeriesState(FIRST, 0, requested_at=FIRST, unfilled=2)
    series.append(FIRST + MINUTE, 2, FIRST)
    assert series.needs_backfill(0, FIRST + HOUR)
    series.unfilled = 3
    assert series.expects_samples
    assert not series.needs_backfill(0, FIRST + HOUR)


# --- When to look ---


@each_row(
    ("hole", "due_after"),
    [
        pytest.param(Gap(0, 1, FIRST), 10 * SECOND, id="new"),
        pytest.param(Gap(0, 1, FIRST - HOUR, checked_at=FIRST), MINUTE, id="looked at"),
        pytest.param(
            Gap(0, 1, FIRST - HOUR, unchecked_arrivals=1, last_arrival_at=FIRST, checked_at=FIRST - MINUTE),
            2 * SECOND,
            id="touched",
        ),
        pytest.param(
            Gap(
                0, 1, FIRST - HOUR, unchecked_arrivals=1, last_arrival_at=FIRST, checked_at=FIRST - 9 * SECOND
            ),
            SECOND,
            id="touched again and again",
        ),
        pytest.param(
            Gap(
                0,
                1,
                FIRST - HOUR,
                unchecked_arrivals=1,
                last_arrival_at=FIRST + 1,
                checked_at=FIRST,
                lost_at=FIRST,
            ),
            2 * SECOND + 1,
            id="lost and touched",
        ),
    ],
)
def test_a_hole_is_looked_at_soon_after_something_came_and_now_and_then(hole: Gap, due_after: int) -> None:
    if hole.checked_at == FIRST - MINUTE:  # else the other limit comes first
        hole.checked_at = FIRST - SECOND
    assert not hole.is_due(FIRST + due_after - 1)
    assert hole.is_due(FIRST + due_after)


def test_a_lost_hole_is_not_looked_at_until_something_comes() -> None:
    assert not Gap(0, 1, FIRST, checked_at=FIRST, lost_at=FIRST).is_due(FIRST + 1000 * HOUR)


@each_row(("time", "is_inside"), [(1, False), (2, True), (8, True), (9, False), (0, False)])
def test_only_what_lies_between_the_two_samples_belongs_into_a_hole(time: int, *, is_inside: bool) -> None:
    series = SeriesState(9, 9, gaps=[Gap(1, 9, 0)])
    assert series.record_arrival(time, FIRST) == is_inside
