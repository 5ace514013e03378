"""What becomes of holes and series when they are old, and what figures tell of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.service.acks.checking import forget
from meshfleet.service.acks.figures import AckFigures
from tests.service.acks.ground import TEMPERATURE, at, flush
from tests.service.ingest.intake import DAY, MINUTE, NOON
from tests.service.ingest.messages import E, number, temperature

if TYPE_CHECKING:
    from tests.service.acks.ground import Ground

pytestmark = [pytest.mark.anyio, pytest.mark.rule("ack-15")]

HOUR = 60 * MINUTE


# --- Old holes ---


async def test_a_hole_is_forgotten_with_the_samples_around_it(ground: Ground) -> None:
    await ground.tell(0, 2, 4)
    await flush(ground)
    kept: dict[int, int | None] = {SampleKind.MEASUREMENT: DAY, SampleKind.EVENT: None}
    await forget(ground.acks, kept, at(2) + DAY)
    assert ground.holes == [(0, 2), (2, 4)]
    await forget(ground.acks, kept, at(2) + DAY + 1)
    assert (ground.holes, ground.complete) == ([(2, 4)], 2)
    await forget(ground.acks, kept, NOON + 9 * DAY)
    assert (ground.holes, list(ground.acks.holed)) == ([], [])
    await flush(ground)


@pytest.mark.rule("ack-16", "ack-26")
async def test_a_series_that_nobody_believes_is_trusted_again_once_its_holes_are_forgotten(
    ground: Ground,
) -> None:
    await ground.tell(0, 2)
    ground.series.unfilled = 3
    await ground.tell(5)
    await forget(ground.acks, {SampleKind.MEASUREMENT: DAY}, NOON + 9 * DAY)
    assert (ground.holes, ground.complete, ground.series.is_checked) == ([(2, 5)], 2, True)
    assert not ground.series.is_waiting
    await flush(ground)


async def test_a_series_of_which_nothing_is_kept_is_over_after_a_month_of_silence(ground: Ground) -> None:
    await ground.tell(0, 2)
    await ground.tell(5, device=E)
    await flush(ground)
    kept: dict[int, int | None] = {SampleKind.MEASUREMENT: DAY}
    await forget(ground.acks, kept, at(2) + 30 * DAY)
    assert len(ground.acks.series) == 2
    await forget(ground.acks, kept, at(2) + 30 * DAY + 1)
    assert list(ground.acks.series) == [(number(E), *TEMPERATURE[1:])]
    await flush(ground)


async def test_a_series_that_is_over_may_begin_again_at_once(ground: Ground) -> None:
    await ground.tell(0, 2)
    await flush(ground)
    await forget(ground.acks, {SampleKind.MEASUREMENT: 40 * DAY}, at(2) + 40 * DAY + 1)
    ground.intake.now += 40 * DAY
    await ground.take(temperature(ground.intake.now, seq=77))
    assert ground.holes == []
    await flush(ground)
    await ground.look()


async def test_what_is_kept_for_ever_keeps_its_holes(in_file: Ground) -> None:
    await in_file.tell(0, 2)
    await forget(in_file.acks, {SampleKind.MEASUREMENT: None}, NOON + 9000 * DAY)
    assert in_file.holes == [(0, 2)]


# --- Figures ---


async def test_figures_tell_of_acks_and_holes(in_file: Ground) -> None:
    await in_file.tell(0, 2)
    in_file.intake.now += HOUR
    await in_file.look()
    await in_file.tell(70, 72, 73)
    await in_file.tell(0, device=E)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in AckFigures(in_file.acks).collect()
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
