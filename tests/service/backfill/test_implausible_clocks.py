"""Device clocks that are set back, and implausible clocks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.backfill.acknowledger import ImplausibleClocks
from meshfleet.service.backfill.series import Gap, SeriesState, complete_up_to
from tests.row_tables import each_row
from tests.service.backfill.ack_harness import TEMPERATURE, AckHarness, sample_time
from tests.service.backfill.test_series import FIRST, HOUR, MINUTE, SECOND
from tests.service.ingest.ingest_harness import DAY, NOON
from tests.service.ingest.messages import A, mac_to_number, temperature

MAX_SERIES = 20_000
"""Maximum number of tracked series with implausible clocks."""


def build_series_ahead() -> SeriesState:
    """Build a series with a sample nine minutes ahead, received a minute after the first."""
    series = SeriesState(FIRST, 0)
    series.append(FIRST + 10 * MINUTE, 1, FIRST + MINUTE)
    return series


# --- Clocks set back ---


@pytest.mark.rule("ack-15", "ack-27")
def test_nothing_is_complete_beyond_now() -> None:
    assert complete_up_to([build_series_ahead()], FIRST + MINUTE) == FIRST + MINUTE


@pytest.mark.rule("ack-27")
def test_a_series_continues_after_its_clock_is_set_back() -> None:
    series, now = build_series_ahead(), FIRST + 2 * MINUTE
    assert series.is_clock_reset(now, 2, now)
    assert not series.append_after_reset(now, 2, now)
    assert (series.time, series.seq, series.gaps) == (now, 2, None)
    assert series.append(now + MINUTE, 4, now + MINUTE)
    assert series.gaps == [Gap(now, now + MINUTE, now + MINUTE)]


@pytest.mark.rule("ack-27")
def test_a_gap_after_a_clock_is_set_back_starts_at_the_last_trusted_time() -> None:
    series, now = build_series_ahead(), FIRST + 2 * MINUTE
    assert series.append_after_reset(now, 4, now)
    assert series.gaps == [Gap(FIRST, now, now)]
    assert complete_up_to([series], now) == FIRST


@pytest.mark.rule("ack-27")
def test_a_clock_set_back_before_the_trusted_time_makes_no_empty_gap() -> None:
    series = build_series_ahead()
    series.append_after_reset(FIRST - SECOND, 4, FIRST + SECOND)
    assert (series.time, series.gaps) == (FIRST - SECOND, None)


@pytest.mark.rule("ack-27")
def test_gaps_ahead_of_a_clock_that_is_set_back_are_moved_with_it() -> None:
    """Check also that gaps before it are unchanged."""
    series, now = SeriesState(FIRST, 0), FIRST + 2 * MINUTE
    series.append(FIRST + SECOND, 2, FIRST + SECOND)
    series.append(FIRST + 9 * MINUTE, 5, FIRST + MINUTE)
    assert series.append_after_reset(now, 6, now)
    assert [(gap.since, gap.until) for gap in series.gaps or ()] == [
        (FIRST, FIRST + SECOND),
        (FIRST + SECOND, now),
    ]


@pytest.mark.rule("ack-27")
def test_the_time_of_a_clock_that_is_always_ahead_is_trusted_once_reached() -> None:
    """Check the start of the gap: otherwise the whole series would be checked when the clock is corrected."""
    series, lead = SeriesState(FIRST, 0), 5 * MINUTE
    for count in range(1, 200):
        series.append(FIRST + count * MINUTE, count, FIRST + count * MINUTE - lead)
    now = FIRST + 195 * MINUTE
    assert series.append_after_reset(now, 205, now)
    (gap,) = series.gaps or []
    assert now - 3 * lead < gap.since < now


@pytest.mark.rule("ack-27")
@each_row(
    ("time", "seq", "now"),
    [
        pytest.param(FIRST + 2 * MINUTE, 1, FIRST + 2 * MINUTE, id="a duplicate"),
        pytest.param(FIRST + 2 * MINUTE, 0, FIRST + 2 * MINUTE, id="out of order"),
        pytest.param(FIRST + 2 * MINUTE, 250, FIRST + 2 * MINUTE, id="part of a backfill"),
        pytest.param(FIRST + MINUTE, 2, FIRST + 2 * MINUTE, id="not fresh"),
        pytest.param(FIRST + 9 * MINUTE, 2, FIRST + 10 * MINUTE, id="not ahead of us"),
    ],
)
def test_other_older_samples_do_not_mean_that_a_clock_was_set_back(time: int, seq: int, now: int) -> None:
    assert not build_series_ahead().is_clock_reset(time, seq, now)


arrivals = st.tuples(st.integers(0, 90), st.integers(-90, 600), st.integers(0, 255))


@given(st.lists(arrivals, max_size=60))
def test_gaps_are_never_empty_and_never_overlap_whatever_the_clock_does(
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
        gaps = series.gaps or []
        assert all(gap.since < gap.until <= series.time for gap in gaps)
        assert all(earlier.until <= later.since for earlier, later in pairwise(gaps))
        assert (complete_up_to([series], now) or 0) <= now


@pytest.mark.anyio
@pytest.mark.rule("ack-11")
async def test_missing_samples_are_requested_at_once_after_a_clock_is_set_back(
    sqlite_harness: AckHarness,
) -> None:
    await sqlite_harness.commit_samples(0, 1)
    await sqlite_harness.commit(temperature(sample_time(10), seq=2))
    assert await sqlite_harness.commit_samples(3) == [0]
    assert await sqlite_harness.commit_samples(5) == [1]
    assert sqlite_harness.gaps == [(3, 5)]
    await sqlite_harness.commit_samples(4)
    await sqlite_harness.check_gaps()
    assert (sqlite_harness.gaps, sqlite_harness.complete_up_to) == ([], 5)


@pytest.mark.anyio
@pytest.mark.rule("ack-11", "ack-24")
async def test_an_outage_requests_a_backfill_after_a_clock_is_set_back(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit_samples(0, 1)
    await sqlite_harness.commit(temperature(sample_time(10), seq=2))
    sqlite_harness.acknowledger.record_gateway_connection(
        mac_to_number(A), sqlite_harness.ingest_harness.now + 5 * SECOND
    )
    assert await sqlite_harness.commit_samples(3) == [1]


# --- Implausible clocks ---


def record_samples(
    clocks: ImplausibleClocks, *seqs: int, now: int = NOON, outage: int = NOON - DAY
) -> list[bool]:
    return [clocks.record_sample(TEMPERATURE, seq, outage, now) for seq in seqs]


@pytest.mark.rule("ack-28", "ack-11", "ack-13")
def test_an_implausible_series_starts_with_type_0_and_then_requests_earlier_samples() -> None:
    assert record_samples(ImplausibleClocks(), 254, 255, 0, 1) == [False, True, False, False]


@pytest.mark.rule("ack-28", "ack-11", "ack-12", "ack-21")
def test_missing_samples_of_an_implausible_series_are_requested_once_a_minute() -> None:
    clocks = ImplausibleClocks()
    assert record_samples(clocks, 0, 1) == [False, True]
    assert record_samples(clocks, 3, 5, now=NOON + MINUTE - 1) == [False, False]
    assert record_samples(clocks, 4, 2, 5, now=NOON + MINUTE) == [False] * 3
    assert record_samples(clocks, 6, 7, now=NOON + MINUTE) == [True, False]
    assert record_samples(clocks, 8, 9, now=NOON + HOUR) == [False, False]


@pytest.mark.rule("ack-28", "ack-11", "ack-24")
def test_an_implausible_series_requests_a_backfill_after_an_outage() -> None:
    clocks = ImplausibleClocks()
    assert record_samples(clocks, 0, 1) == [False, True]
    assert record_samples(clocks, 2, 3, now=NOON + HOUR, outage=NOON + MINUTE) == [True, False]


def test_the_number_of_tracked_implausible_series_is_limited() -> None:
    clocks = ImplausibleClocks()
    for device in range(MAX_SERIES + 10):
        clocks.record_sample((device, 1, 2), 0, 0, NOON)
    assert len(clocks) == MAX_SERIES
    assert not clocks.record_sample((0, 1, 2), 7, 0, NOON)
    assert clocks.record_sample((MAX_SERIES, 1, 2), 7, 0, NOON)


@pytest.mark.anyio
@pytest.mark.rule("ack-28", "ack-11")
@pytest.mark.parametrize("offset", [5 * HOUR, -40 * DAY], ids=["ahead", "behind"])
async def test_missing_samples_are_requested_through_a_gateway_with_a_wrong_clock(
    sqlite_harness: AckHarness, offset: int
) -> None:
    types = []
    for index in (0, 1, 2, 3, 5, 6):
        sqlite_harness.ingest_harness.now = sample_time(index)
        types += [
            ack.type
            for ack in await sqlite_harness.commit(temperature(sample_time(index) + offset, seq=index))
        ]
    assert types == [0, 1, 0, 0, 1, 0]
    assert sqlite_harness.acknowledger.series == {}
    assert sqlite_harness.stored_complete_up_to() is None


# --- Clock of the service ---


@pytest.mark.rule("ack-12")
@pytest.mark.anyio
async def test_a_gap_is_requested_at_the_same_interval_after_the_service_clock_is_set_back(
    sqlite_harness: AckHarness,
) -> None:
    await sqlite_harness.commit_samples(0)
    assert await sqlite_harness.commit_samples(2) == [1]
    sqlite_harness.ingest_harness.now -= 5 * MINUTE
    await sqlite_harness.ingest_harness.ingest.flush()
    assert [ack.type for ack in await sqlite_harness.commit(temperature(sample_time(3), seq=3))] == [0], (
        "too early"
    )
    sqlite_harness.ingest_harness.now += 61 * SECOND
    assert [ack.type for ack in await sqlite_harness.commit(temperature(sample_time(4), seq=4))] == [1]
