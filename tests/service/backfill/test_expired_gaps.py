"""Expiry of gaps and series, and their metrics."""

from __future__ import annotations

from functools import partial

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.service.backfill.gap_check import drop_expired_gaps
from meshfleet.service.metric_table import add_backfill_metrics
from tests.service.backfill.ack_harness import TEMPERATURE, AckHarness, assert_flushed, sample_time
from tests.service.ingest.ingest_harness import DAY, MINUTE, NOON
from tests.service.ingest.messages import E, mac_to_number, temperature
from tests.service.metric_values import read_added_metrics

pytestmark = [pytest.mark.anyio, pytest.mark.rule("ack-15")]

HOUR = 60 * MINUTE


# --- Expired gaps ---


async def test_a_gap_expires_with_the_samples_around_it(harness: AckHarness) -> None:
    await harness.commit_samples(0, 2, 4)
    await assert_flushed(harness)
    retention: dict[int, int | None] = {SampleKind.MEASUREMENT: DAY, SampleKind.EVENT: None}
    await drop_expired_gaps(harness.acknowledger, retention, sample_time(2) + DAY)
    assert harness.gaps == [(0, 2), (2, 4)]
    await drop_expired_gaps(harness.acknowledger, retention, sample_time(2) + DAY + 1)
    assert (harness.gaps, harness.complete_up_to) == ([(2, 4)], 2)
    await drop_expired_gaps(harness.acknowledger, retention, NOON + 9 * DAY)
    assert (harness.gaps, list(harness.acknowledger.gap_index)) == ([], [])
    await assert_flushed(harness)


@pytest.mark.rule("ack-16", "ack-26")
async def test_a_series_is_gap_checked_again_once_its_gaps_have_expired(
    harness: AckHarness,
) -> None:
    await harness.commit_samples(0, 2)
    harness.series.unfilled = 3
    await harness.commit_samples(5)
    await drop_expired_gaps(harness.acknowledger, {SampleKind.MEASUREMENT: DAY}, NOON + 9 * DAY)
    assert (harness.gaps, harness.complete_up_to, harness.series.is_gap_checked) == ([(2, 5)], 2, True)
    assert not harness.series.expects_samples
    await assert_flushed(harness)


async def test_an_expired_series_is_removed_after_a_month_without_samples(harness: AckHarness) -> None:
    await harness.commit_samples(0, 2)
    await harness.commit_samples(5, device=E)
    await assert_flushed(harness)
    retention: dict[int, int | None] = {SampleKind.MEASUREMENT: DAY}
    await drop_expired_gaps(harness.acknowledger, retention, sample_time(2) + 30 * DAY)
    assert len(harness.acknowledger.series) == 2
    await drop_expired_gaps(harness.acknowledger, retention, sample_time(2) + 30 * DAY + 1)
    assert list(harness.acknowledger.series) == [(mac_to_number(E), *TEMPERATURE[1:])]
    await assert_flushed(harness)


async def test_a_removed_series_may_start_again_at_once(harness: AckHarness) -> None:
    await harness.commit_samples(0, 2)
    await assert_flushed(harness)
    await drop_expired_gaps(
        harness.acknowledger, {SampleKind.MEASUREMENT: 40 * DAY}, sample_time(2) + 40 * DAY + 1
    )
    harness.ingest_harness.now += 40 * DAY
    await harness.commit(temperature(harness.ingest_harness.now, seq=77))
    assert harness.gaps == []
    await assert_flushed(harness)
    await harness.check_gaps()


async def test_gaps_of_samples_kept_forever_do_not_expire(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit_samples(0, 2)
    await drop_expired_gaps(sqlite_harness.acknowledger, {SampleKind.MEASUREMENT: None}, NOON + 9000 * DAY)
    assert sqlite_harness.gaps == [(0, 2)]


# --- Metrics ---


async def test_metrics_count_acks_and_gaps(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit_samples(0, 2)
    sqlite_harness.ingest_harness.now += HOUR
    await sqlite_harness.check_gaps()
    await sqlite_harness.commit_samples(70, 72, 73)
    await sqlite_harness.commit_samples(0, device=E)
    values = read_added_metrics(partial(add_backfill_metrics, acknowledger=sqlite_harness.acknowledger))
    assert values == {
        ("meshfleet_holes", "open"): 2,
        ("meshfleet_holes", "lost"): 1,
        ("meshfleet_acknowledged_series",): 2,
        ("meshfleet_series_unchecked",): 0,
        ("meshfleet_acks_total",): 6,
        ("meshfleet_backfills_total",): 2,
        ("meshfleet_holes_found_total",): 3,
    }
