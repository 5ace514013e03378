"""When a series requests missing samples, and when a gap is checked."""

from __future__ import annotations

import pytest

from meshfleet.service.backfill.series import Gap, SeriesState
from tests.row_tables import each_row
from tests.service.backfill.test_series import FIRST, HOUR, MINUTE, SECOND

# --- Requests ---


@pytest.mark.rule("ack-11", "ack-12")
def test_a_backfill_is_requested_once_after_an_outage() -> None:
    series = SeriesState(FIRST, 0, requested_at=FIRST)
    assert not series.needs_backfill(FIRST, FIRST + HOUR)
    assert not series.needs_backfill(FIRST + 1, FIRST + MINUTE - 1)
    assert series.needs_backfill(FIRST + 1, FIRST + MINUTE)
    series.record_request(FIRST + MINUTE)
    assert not series.needs_backfill(FIRST + 1, FIRST + HOUR)


@pytest.mark.rule("ack-16")
def test_an_open_gap_of_a_series_without_gap_checks_is_not_requested() -> None:
    series = SeriesState(FIRST, 0, requested_at=FIRST, unfilled=2)
    series.append(FIRST + MINUTE, 2, FIRST)
    assert series.needs_backfill(0, FIRST + HOUR)
    series.unfilled = 3
    assert series.expects_samples
    assert not series.needs_backfill(0, FIRST + HOUR)


# --- Checks ---


@each_row(
    ("gap", "due_after"),
    [
        pytest.param(Gap(0, 1, FIRST), 10 * SECOND, id="new"),
        pytest.param(Gap(0, 1, FIRST - HOUR, checked_at=FIRST), MINUTE, id="checked"),
        pytest.param(
            Gap(0, 1, FIRST - HOUR, unchecked_arrivals=1, last_arrival_at=FIRST, checked_at=FIRST - MINUTE),
            2 * SECOND,
            id="arrival",
        ),
        pytest.param(
            Gap(
                0, 1, FIRST - HOUR, unchecked_arrivals=1, last_arrival_at=FIRST, checked_at=FIRST - 9 * SECOND
            ),
            SECOND,
            id="repeated arrivals",
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
            id="arrival for a lost gap",
        ),
    ],
)
def test_a_gap_is_checked_soon_after_an_arrival_and_now_and_then(gap: Gap, due_after: int) -> None:
    if gap.checked_at == FIRST - MINUTE:  # otherwise the other limit applies first
        gap.checked_at = FIRST - SECOND
    assert not gap.is_due(FIRST + due_after - 1)
    assert gap.is_due(FIRST + due_after)


def test_a_lost_gap_is_not_checked_before_an_arrival() -> None:
    assert not Gap(0, 1, FIRST, checked_at=FIRST, lost_at=FIRST).is_due(FIRST + 1000 * HOUR)


@each_row(("time", "is_inside"), [(1, False), (2, True), (8, True), (9, False), (0, False)])
def test_only_samples_between_its_ends_belong_to_a_gap(time: int, *, is_inside: bool) -> None:
    series = SeriesState(9, 9, gaps=[Gap(1, 9, 0)])
    assert series.record_arrival(time, FIRST) == is_inside
