"""Forecast of a full disk."""

from __future__ import annotations

import pytest

from meshfleet.db.samples import DAY_MS
from meshfleet.rest.operations import StoragePart
from meshfleet.service.storage.forecast import SampleAge, find_longest_retention, forecast_storage
from meshfleet.service.storage.sizes import Measurement
from meshfleet.settings import Retention
from tests.row_tables import each_row

TODAY = 20_000 * DAY_MS
NOW = TODAY + DAY_MS // 2
QUARTER = 90 * DAY_MS


def sizes(database: int, samples: int, images: int = 0) -> dict[StoragePart, int]:
    return {StoragePart.DATABASE: database, StoragePart.SAMPLES: samples, StoragePart.IMAGES: images}


def days_from_now(days: float) -> int:
    return NOW + round(days * DAY_MS)


A_DAY_AND_A_HALF_AGO = TODAY - 2 * DAY_MS
"""Day whose end is a day and a half ago."""


@pytest.mark.rule("rest-222")
@each_row(
    ("history", "free", "age", "full_at"),
    [
        pytest.param({}, 100, SampleAge(None, QUARTER), None, id="nothing measured"),
        pytest.param({TODAY: sizes(0, 0)}, 100, SampleAge(None, QUARTER), None, id="only today"),
        pytest.param({TODAY - DAY_MS: sizes(0, 0)}, 100, SampleAge(None, QUARTER), None, id="half a day"),
        pytest.param(
            {TODAY - 8 * DAY_MS: sizes(0, 0)}, 100, SampleAge(None, QUARTER), None, id="too long ago"
        ),
        pytest.param(
            {A_DAY_AND_A_HALF_AGO: sizes(1000, 970)},
            100,
            SampleAge(NOW, QUARTER),
            days_from_now(5),
            id="20 a day",
        ),
        pytest.param(
            {A_DAY_AND_A_HALF_AGO: sizes(1000, 970)},
            100,
            SampleAge(NOW - QUARTER, QUARTER),
            None,
            id="samples no longer grow",
        ),
        pytest.param(
            {A_DAY_AND_A_HALF_AGO: sizes(985, 970)},
            110,
            SampleAge(NOW - QUARTER + 2 * DAY_MS, QUARTER),
            days_from_now(7),
            id="samples grow by 20 for two days, the database by 10 for longer",
        ),
        pytest.param(
            {A_DAY_AND_A_HALF_AGO: sizes(1000, 970)},
            2000,
            SampleAge(NOW - QUARTER, None),
            days_from_now(100),
            id="samples are kept forever",
        ),
        pytest.param(
            {A_DAY_AND_A_HALF_AGO: sizes(1300, 970)},
            100,
            SampleAge(NOW, QUARTER),
            days_from_now(5),
            id="a database that shrank gives no space for samples",
        ),
        pytest.param(
            {A_DAY_AND_A_HALF_AGO: sizes(1000, 970)}, None, SampleAge(NOW, QUARTER), None, id="unknown disk"
        ),
        pytest.param(
            {A_DAY_AND_A_HALF_AGO: sizes(985, 1000)},
            10 * 3651,
            SampleAge(NOW, QUARTER),
            None,
            id="in more than ten years",
        ),
        pytest.param(
            {A_DAY_AND_A_HALF_AGO: sizes(1000, 970)}, 0, SampleAge(NOW, QUARTER), NOW, id="already full"
        ),
    ],
)
def test_the_disk_is_full_when_growth_has_used_the_free_space(
    history: dict[int, dict[StoragePart, int]], free: int | None, age: SampleAge, full_at: int | None
) -> None:
    forecast = forecast_storage(Measurement(sizes(1000, 1000), free), history, age, now=NOW)
    assert forecast.full_at == full_at


@pytest.mark.rule("rest-222")
def test_growth_is_that_of_the_last_seven_days() -> None:
    history = {TODAY - number * DAY_MS: sizes(1000 - 100 * number, 2000) for number in range(1, 20)}
    forecast = forecast_storage(
        Measurement(sizes(1000, 1350, 65), 10), history, SampleAge(None, None), now=NOW
    )
    assert forecast.since == TODAY - 6 * DAY_MS
    assert forecast.growth == sizes(round(700 / 6.5), -100, 10)
    assert forecast.total_growth == round(700 / 6.5) + 10


@each_row(
    ("retention", "longest"),
    [
        (Retention(), QUARTER),
        (Retention(event=None), None),
        (Retention(connectivity=None, request=None), QUARTER),
        (Retention(link=8_000_000), 8_000_000_000),
    ],
)
def test_the_kind_of_samples_that_is_kept_longest_counts(retention: Retention, longest: int | None) -> None:
    assert find_longest_retention(retention) == longest
