"""Devices that do not count as they should, and gateways that make devices up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.service.acks.ground import TEMPERATURE, at
from tests.service.ingest.intake import MINUTE, NOON
from tests.service.ingest.messages import report, temperature

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.acks.ground import Ground

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
    in_file: Ground, count: Callable[[int], int]
) -> None:
    """For an hour or so it is asked for what it does not have."""
    types = []
    for each in range(140):
        in_file.intake.now = at(each)
        types += [ack.type for ack in await in_file.take(temperature(at(each), seq=count(each)))]
        await in_file.look()
        assert len(in_file.series.holes or ()) <= 32
    assert len(types) == 140
    assert (in_file.series.is_checked, in_file.complete) == (False, None)
    assert 1 in types[:70]
    assert 1 not in types[100:]
    assert len(await in_file.intake.samples()) == 140


@pytest.mark.rule("ack-26")
async def test_a_device_that_counts_again_is_found_out_too(in_file: Ground) -> None:
    await in_file.tell(0, 2)
    in_file.intake.now += 60 * MINUTE
    await in_file.look()
    in_file.series.unfilled = 3
    for each in range(110, 366):
        await in_file.tell(each)
    assert not in_file.series.is_checked
    assert await in_file.tell(366) == [0]
    assert (in_file.series.is_checked, in_file.holes[-1], in_file.complete) == (True, (2, 365), 0)
    assert (in_file.acks.holed.lost, in_file.acks.holed.unchecked) == (2, 0)
    assert await in_file.tell(368) == [1]
    await in_file.intake.ingest.flush()
    assert in_file.tables()[TEMPERATURE].unfilled == 0


async def test_a_device_that_begins_again_at_0_has_a_hole_there_that_never_fills(in_file: Ground) -> None:
    for each in range(20):
        in_file.intake.now = at(each)
        await in_file.take(temperature(at(each), seq=each % 10))
    await in_file.look()
    assert (in_file.holes, in_file.complete) == ([(9, 10)], 9)
    in_file.intake.now += 60 * MINUTE
    await in_file.look()
    assert in_file.series.is_checked
    assert not in_file.series.is_waiting


async def test_times_that_go_back_and_forth_do_no_harm(in_file: Ground) -> None:
    """A device whose clock jumps by minutes: all is stored and acknowledged, and what is asked is bounded."""
    jumps = [0, 5, -3, 8, -8, 2, -1, 7]
    types = []
    for each in range(100):
        in_file.intake.now = at(each)
        time = at(each) + jumps[each % len(jumps)] * MINUTE
        types += [ack.type for ack in await in_file.take(temperature(time, seq=each % 256))]
        await in_file.look()
        assert len(in_file.series.holes or ()) <= 32
    assert len(types) == 100
    assert len(await in_file.intake.samples()) == 100
    await in_file.intake.ingest.flush()


async def test_a_clock_that_was_ahead_for_once_is_forgiven(in_file: Ground) -> None:
    await in_file.tell(0, 1)
    await in_file.take(temperature(at(10), seq=2))
    for each in range(3, 12):
        assert await in_file.tell(each) == [0]
        assert (in_file.holes, in_file.complete) == ([], each)


async def test_ten_thousand_made_up_series_are_acknowledged_written_and_cheap(ground: Ground) -> None:
    """Nothing bounds their number but what bounds made-up devices; so each must be small."""
    messages = [
        report(
            f"measurement/{0x8800 + each % 100:04x}",
            NOON,
            seq=1,
            value="00",
            device=f"c0ffee{each // 100:06x}",
        )
        for each in range(MADE_UP)
    ]
    assert len(await ground.take(*messages)) == MADE_UP, ground.intake.rejects()[0]
    assert len(ground.acks.series) == MADE_UP
    size = sum(
        sys.getsizeof(part)
        for key, series in ground.acks.series.items()
        for part in (key, *key, series, series.time, series.asked_at)
    )
    assert (size + sys.getsizeof(ground.acks.series)) / MADE_UP < DEAREST
    await ground.intake.ingest.flush()
    assert len(ground.tables()) == MADE_UP
