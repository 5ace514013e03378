"""Devices with a faulty `seq`, and gateways that report invented devices."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.service.backfill.ack_harness import TEMPERATURE, AckHarness, sample_time
from tests.service.ingest.ingest_harness import MINUTE, NOON
from tests.service.ingest.messages import build_report, temperature

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = [pytest.mark.anyio, pytest.mark.rule("ack-16")]

INVENTED_SERIES = 10_000
MAX_SERIES_BYTES = 1_000
"""Maximum memory of a series in bytes."""


@pytest.mark.parametrize(
    "build_seq",
    [
        lambda _: 7,
        lambda index: 2 * index % 256,
        lambda index: -index % 256,
        lambda index: 0 if index % 2 else 255 - index % 128,
    ],
    ids=["not at all", "by two", "backwards", "at random"],
)
async def test_gap_checks_stop_for_a_device_with_a_faulty_seq(
    sqlite_harness: AckHarness, build_seq: Callable[[int], int]
) -> None:
    """Check that it is sent requests only for about an hour."""
    types = []
    for index in range(140):
        sqlite_harness.ingest_harness.now = sample_time(index)
        types += [
            ack.type
            for ack in await sqlite_harness.commit(temperature(sample_time(index), seq=build_seq(index)))
        ]
        await sqlite_harness.check_gaps()
        assert len(sqlite_harness.series.gaps or ()) <= 32
    assert len(types) == 140
    assert (sqlite_harness.series.is_gap_checked, sqlite_harness.complete_up_to) == (False, None)
    assert 1 in types[:70]
    assert 1 not in types[100:]
    assert len(await sqlite_harness.ingest_harness.samples()) == 140


@pytest.mark.rule("ack-26")
async def test_gap_checks_start_again_when_seq_is_consecutive(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit_samples(0, 2)
    sqlite_harness.ingest_harness.now += 60 * MINUTE
    await sqlite_harness.check_gaps()
    sqlite_harness.series.unfilled = 3
    for index in range(110, 366):
        await sqlite_harness.commit_samples(index)
    assert not sqlite_harness.series.is_gap_checked
    assert await sqlite_harness.commit_samples(366) == [0]
    assert (sqlite_harness.series.is_gap_checked, sqlite_harness.gaps[-1], sqlite_harness.complete_up_to) == (
        True,
        (2, 365),
        0,
    )
    assert (sqlite_harness.acknowledger.gap_index.lost, sqlite_harness.acknowledger.gap_index.unchecked) == (
        2,
        0,
    )
    assert await sqlite_harness.commit_samples(368) == [1]
    await sqlite_harness.ingest_harness.ingest.flush()
    assert sqlite_harness.load_series()[TEMPERATURE].unfilled == 0


async def test_a_device_that_restarts_its_seq_has_one_gap_that_is_never_filled(
    sqlite_harness: AckHarness,
) -> None:
    for index in range(20):
        sqlite_harness.ingest_harness.now = sample_time(index)
        await sqlite_harness.commit(temperature(sample_time(index), seq=index % 10))
    await sqlite_harness.check_gaps()
    assert (sqlite_harness.gaps, sqlite_harness.complete_up_to) == ([(9, 10)], 9)
    sqlite_harness.ingest_harness.now += 60 * MINUTE
    await sqlite_harness.check_gaps()
    assert sqlite_harness.series.is_gap_checked
    assert not sqlite_harness.series.expects_samples


async def test_a_jumping_clock_is_harmless(sqlite_harness: AckHarness) -> None:
    """Let a clock jump by minutes: all samples are stored and acknowledged, and requests are limited."""
    jumps = [0, 5, -3, 8, -8, 2, -1, 7]
    types = []
    for index in range(100):
        sqlite_harness.ingest_harness.now = sample_time(index)
        time = sample_time(index) + jumps[index % len(jumps)] * MINUTE
        types += [ack.type for ack in await sqlite_harness.commit(temperature(time, seq=index % 256))]
        await sqlite_harness.check_gaps()
        assert len(sqlite_harness.series.gaps or ()) <= 32
    assert len(types) == 100
    assert len(await sqlite_harness.ingest_harness.samples()) == 100
    await sqlite_harness.ingest_harness.ingest.flush()


async def test_one_sample_ahead_of_the_clock_makes_no_gap(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit_samples(0, 1)
    await sqlite_harness.commit(temperature(sample_time(10), seq=2))
    for index in range(3, 12):
        assert await sqlite_harness.commit_samples(index) == [0]
        assert (sqlite_harness.gaps, sqlite_harness.complete_up_to) == ([], index)


async def test_ten_thousand_bogus_series_of_a_device_are_acknowledged_with_little_memory(
    harness: AckHarness,
) -> None:
    """Check the memory of a series: only the limits of invented devices bound their number."""
    messages = [
        build_report(
            f"measurement/{0x8800 + index % 100:04x}",
            NOON,
            seq=1,
            value="00",
            device=f"c0ffee{index // 100:06x}",
        )
        for index in range(INVENTED_SERIES)
    ]
    assert len(await harness.commit(*messages)) == INVENTED_SERIES, harness.ingest_harness.rejects()[0]
    assert len(harness.acknowledger.series) == INVENTED_SERIES
    size = sum(
        sys.getsizeof(part)
        for key, series in harness.acknowledger.series.items()
        for part in (key, *key, series, series.time, series.requested_at)
    )
    assert (size + sys.getsizeof(harness.acknowledger.series)) / INVENTED_SERIES < MAX_SERIES_BYTES
    await harness.ingest_harness.ingest.flush()
    assert len(harness.load_series()) == INVENTED_SERIES
