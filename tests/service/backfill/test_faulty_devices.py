"""Devices that do not count as they should, and gateways that make devices up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.service.backfill.ack_harness import TEMPERATURE, sample_time
from tests.service.ingest.ingest_harness import MINUTE, NOON
from tests.service.ingest.messages import build_report, temperature

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.backfill.ack_harness import AckHarness

pytestmark = [pytest.mark.anyio, pytest.mark.rule("ack-16")]

MADE_UP = 10_000
DEAREST = 1_000
"""Bytes that a series may take in memory."""


@pytest.mark.parametrize(
    "count",
    [lambda _: 7, lambda n: 2 * n % 256, lambda n: -n % 256, lambda n: 0 if n % 2 else 255 - n % 128],
    ids=["not at all", "by two", "backwards", "anyhow"],
)
async def test_a_device_that_does_not_count_is_found_out_and_left_in_peace(
    in_file: AckHarness, count: Callable[[int], int]
) -> None:
    """For an hour or so it is asked for what it does not have."""
    types = []
    for each in range(140):
        in_file.ingest_harness.now = sample_time(each)
        types += [ack.type for ack in await in_file.commit(temperature(sample_time(each), seq=count(each)))]
        await in_file.check_gaps()
        assert len(in_file.series.gaps or ()) <= 32
    assert len(types) == 140
    assert (in_file.series.is_gap_checked, in_file.complete_up_to) == (False, None)
    assert 1 in types[:70]
    assert 1 not in types[100:]
    assert len(await in_file.ingest_harness.samples()) == 140


@pytest.mark.rule("ack-26")
async def test_a_device_that_counts_again_is_found_out_too(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 2)
    in_file.ingest_harness.now += 60 * MINUTE
    await in_file.check_gaps()
    in_file.series.unfilled = 3
    for each in range(110, 366):
        await in_file.commit_samples(each)
    assert not in_file.series.is_gap_checked
    assert await in_file.commit_samples(366) == [0]
    assert (in_file.series.is_gap_checked, in_file.gaps[-1], in_file.complete_up_to) == (True, (2, 365), 0)
    assert (in_file.acknowledger.gap_index.lost, in_file.acknowledger.gap_index.unchecked) == (2, 0)
    assert await in_file.commit_samples(368) == [1]
    await in_file.ingest_harness.ingest.flush()
    assert in_file.load_series()[TEMPERATURE].unfilled == 0


async def test_a_device_that_begins_again_at_0_has_a_hole_there_that_never_fills(in_file: AckHarness) -> None:
    for each in range(20):
        in_file.ingest_harness.now = sample_time(each)
        await in_file.commit(temperature(sample_time(each), seq=each % 10))
    await in_file.check_gaps()
    assert (in_file.gaps, in_file.complete_up_to) == ([(9, 10)], 9)
    in_file.ingest_harness.now += 60 * MINUTE
    await in_file.check_gaps()
    assert in_file.series.is_gap_checked
    assert not in_file.series.expects_samples


async def test_times_that_go_back_and_forth_do_no_harm(in_file: AckHarness) -> None:
    """A device whose clock jumps by minutes: all is stored and acknowledged, and what is asked is bounded."""
    jumps = [0, 5, -3, 8, -8, 2, -1, 7]
    types = []
    for each in range(100):
        in_file.ingest_harness.now = sample_time(each)
        time = sample_time(each) + jumps[each % len(jumps)] * MINUTE
        types += [ack.type for ack in await in_file.commit(temperature(time, seq=each % 256))]
        await in_file.check_gaps()
        assert len(in_file.series.gaps or ()) <= 32
    assert len(types) == 100
    assert len(await in_file.ingest_harness.samples()) == 100
    await in_file.ingest_harness.ingest.flush()


async def test_a_clock_that_was_ahead_for_once_is_forgiven(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 1)
    await in_file.commit(temperature(sample_time(10), seq=2))
    for each in range(3, 12):
        assert await in_file.commit_samples(each) == [0]
        assert (in_file.gaps, in_file.complete_up_to) == ([], each)


async def test_ten_thousand_made_up_series_are_acknowledged_written_and_cheap(ground: AckHarness) -> None:
    """Nothing bounds their number but what bounds made-up devices; so each must be small."""
    messages = [
        build_report(
            f"measurement/{0x8800 + each % 100:04x}",
            NOON,
            seq=1,
            value="00",
            device=f"c0ffee{each // 100:06x}",
        )
        for each in range(MADE_UP)
    ]
    assert len(await ground.commit(*messages)) == MADE_UP, ground.ingest_harness.rejects()[0]
    assert len(ground.acknowledger.series) == MADE_UP
    size = sum(
        sys.getsizeof(part)
        for key, series in ground.acknowledger.series.items()
        for part in (key, *key, series, series.time, series.requested_at)
    )
    assert (size + sys.getsizeof(ground.acknowledger.series)) / MADE_UP < DEAREST
    await ground.ingest_harness.ingest.flush()
    assert len(ground.load_series()) == MADE_UP
