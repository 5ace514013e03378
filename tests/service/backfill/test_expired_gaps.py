"""What becomes of holes and series when they are old, and what figures tell of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.service.backfill.gap_check import drop_expired_gaps
from meshfleet.service.backfill.metrics import AckMetrics
from tests.service.backfill.ack_harness import TEMPERATURE, assert_flushed, sample_time
from tests.service.ingest.ingest_harness import DAY, MINUTE, NOON
from tests.service.ingest.messages import E, mac_to_number, temperature

if TYPE_CHECKING:
    from tests.service.backfill.ack_harness import AckHarness

pytestmark = [pytest.mark.anyio, pytest.mark.rule("ack-15")]

HOUR = 60 * MINUTE


# --- Old holes ---


async def test_a_hole_is_forgotten_with_the_samples_around_it(ground: AckHarness) -> None:
    await ground.commit_samples(0, 2, 4)
    await assert_flushed(ground)
    kept: dict[int, int | None] = {SampleKind.MEASUREMENT: DAY, SampleKind.EVENT: None}
    await drop_expired_gaps(ground.acknowledger, kept, sample_time(2) + DAY)
    assert ground.gaps == [(0, 2), (2, 4)]
    await drop_expired_gaps(ground.acknowledger, kept, sample_time(2) + DAY + 1)
    assert (ground.gaps, ground.complete_up_to) == ([(2, 4)], 2)
    await drop_expired_gaps(ground.acknowledger, kept, NOON + 9 * DAY)
    assert (ground.gaps, list(ground.acknowledger.gap_index)) == ([], [])
    await assert_flushed(ground)


@pytest.mark.rule("ack-16", "ack-26")
async def test_a_series_that_nobody_believes_is_trusted_again_once_its_holes_are_forgotten(
    ground: AckHarness,
) -> None:
    await ground.commit_samples(0, 2)
    ground.series.unfilled = 3
    await ground.commit_samples(5)
    await drop_expired_gaps(ground.acknowledger, {SampleKind.MEASUREMENT: DAY}, NOON + 9 * DAY)
    assert (ground.gaps, ground.complete_up_to, ground.series.is_gap_checked) == ([(2, 5)], 2, True)
    assert not ground.series.expects_samples
    await assert_flushed(ground)


async def test_a_series_of_which_nothing_is_kept_is_over_after_a_month_of_silence(ground: AckHarness) -> None:
    await ground.commit_samples(0, 2)
    await ground.commit_samples(5, device=E)
    await assert_flushed(ground)
    kept: dict[int, int | None] = {SampleKind.MEASUREMENT: DAY}
    await drop_expired_gaps(ground.acknowledger, kept, sample_time(2) + 30 * DAY)
    assert len(ground.acknowledger.series) == 2
    await drop_expired_gaps(ground.acknowledger, kept, sample_time(2) + 30 * DAY + 1)
    assert list(ground.acknowledger.series) == [(mac_to_number(E), *TEMPERATURE[1:])]
    await assert_flushed(ground)


async def test_a_series_that_is_over_may_begin_again_at_once(ground: AckHarness) -> None:
    await ground.commit_samples(0, 2)
    await assert_flushed(ground)
    await drop_expired_gaps(
        ground.acknowledger, {SampleKind.MEASUREMENT: 40 * DAY}, sample_time(2) + 40 * DAY + 1
    )
    ground.ingest_harness.now += 40 * DAY
    await ground.commit(temperature(ground.ingest_harness.now, seq=77))
    assert ground.gaps == []
    await assert_flushed(ground)
    await ground.check_gaps()


async def test_what_is_kept_for_ever_keeps_its_holes(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 2)
    await drop_expired_gaps(in_file.acknowledger, {SampleKind.MEASUREMENT: None}, NOON + 9000 * DAY)
    assert in_file.gaps == [(0, 2)]


# --- Figures ---


async def test_figures_tell_of_acks_and_holes(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 2)
    in_file.ingest_harness.now += HOUR
    await in_file.check_gaps()
    await in_file.commit_samples(70, 72, 73)
    await in_file.commit_samples(0, device=E)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in AckMetrics(in_file.acknowledger).collect()
        for sample in family.samples
    }
    assert found == {
        ("meshfleet_holes", "open"): 2,
        ("meshfleet_holes", "lost"): 1,
        ("meshfleet_acknowledged_series",): 2,
        ("meshfleet_series_unchecked",): 0,
        ("meshfleet_acks_total",): 6,
        ("meshfleet_backfills_total",): 2,
        ("meshfleet_holes_found_total",): 3,
    }
