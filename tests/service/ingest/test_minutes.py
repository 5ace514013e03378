"""Heartbeats and links, minute by minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import NO_SEQ, SampleKind
from tests.service.ingest.intake import DAY, MINUTE, NOON, SECOND
from tests.service.ingest.messages import A, B, D, E, P, Q, heartbeat, link, number

if TYPE_CHECKING:
    from tests.service.ingest.intake import Intake

pytestmark = pytest.mark.anyio

GRACE = 5 * SECOND


async def at_the_end(intake: Intake) -> None:
    """Let all minutes that were counted until now end."""
    intake.now += 15 * MINUTE
    await intake.ingest.flush()


@pytest.mark.rule("report-51")
async def test_a_minute_of_a_link_is_one_sample_of_each_parent(intake: Intake) -> None:
    intake.now = NOON + 30 * SECOND
    await intake.take(link(NOON, -60), link(NOON + 1, -70), link(NOON + 20 * SECOND, -50, Q))
    await intake.take(link(NOON + 3, -80), link(NOON + 2, -54))
    await at_the_end(intake)
    first = {"count": 4, "min": -80, "max": -54, "last": -80, "lastAt": NOON + 3, "unreachable": False}
    second = {
        "count": 1,
        "min": -50,
        "max": -50,
        "last": -50,
        "lastAt": NOON + 20 * SECOND,
        "unreachable": False,
    }
    assert await intake.minutes(SampleKind.LINK) == [
        (NOON, number(P), -66.0, first),
        (NOON, number(Q), -50.0, second),
    ]
    raw = await intake.samples(kinds=[SampleKind.LINK])
    assert {(each.seq, each.gateway, each.raw) for each in raw} == {(NO_SEQ, number(A), None)}


@pytest.mark.rule("report-51")
async def test_a_minute_of_heartbeats_is_one_sample(intake: Intake) -> None:
    intake.now = NOON + 50 * SECOND
    await intake.settle(heartbeat(NOON, 0), heartbeat(NOON + 30 * SECOND, 2), heartbeat(NOON, 9, device=E))
    await intake.settle(heartbeat(NOON + 20 * SECOND, 1, gateway=B))
    await at_the_end(intake)
    ((time, identifier, mean, shown),) = await intake.minutes(SampleKind.HEARTBEAT)
    assert (time, identifier, mean) == (NOON, 0, 1.0)
    assert (shown["count"], shown["min"], shown["max"]) == (3, 0, 2)
    assert (shown["last"], shown["lastAt"]) == (2, NOON + 30 * SECOND)
    assert len(await intake.minutes(SampleKind.HEARTBEAT, E)) == 1
    assert await intake.minutes(SampleKind.LINK) == []


@pytest.mark.rule("report-51")
async def test_minutes_end_where_clocks_say_so(intake: Intake) -> None:
    border = NOON - NOON % DAY + DAY
    intake.now = border + SECOND
    await intake.take(*(heartbeat(at) for at in (border - MINUTE, border - 1, border, border + 1)))
    await at_the_end(intake)
    found = await intake.minutes(SampleKind.HEARTBEAT)
    assert [(time, shown["count"]) for time, _, _, shown in found] == [(border - MINUTE, 2), (border, 2)]


@pytest.mark.rule("report-36")
async def test_what_comes_twice_or_through_two_gateways_counts_once(intake: Intake) -> None:
    intake.now = NOON + 30 * SECOND
    beats = [heartbeat(NOON + at, 1) for at in (2, 1, 0)]
    await intake.take(*beats, *beats, heartbeat(NOON + 1, 1, gateway=B))
    await intake.take(*beats, link(NOON, -50), link(NOON, -50), link(NOON, -50, Q))
    await intake.restart()
    await intake.take(*reversed(beats), link(NOON, -50))
    await at_the_end(intake)
    ((_, _, mean, shown),) = await intake.minutes(SampleKind.HEARTBEAT)
    assert (mean, shown["count"]) == (1.0, 3)
    assert [shown["count"] for _, _, _, shown in await intake.minutes(SampleKind.LINK)] == [1, 1]


async def test_the_last_reading_tells_whether_a_link_is_of_use(intake: Intake) -> None:
    intake.now = NOON + MINUTE
    await intake.take(link(NOON + 2, -90, unreachable=True), link(NOON + 1, -80))
    await intake.take(link(NOON + 1, -80, Q, unreachable=True), link(NOON + 2, -90, Q))
    await at_the_end(intake)
    found = await intake.minutes(SampleKind.LINK)
    assert [(shown["last"], shown["unreachable"]) for _, _, _, shown in found] == [(-90, True), (-90, False)]


async def test_a_minute_is_not_told_before_it_is_over(intake: Intake) -> None:
    await intake.settle(heartbeat(NOON))
    intake.now = NOON + MINUTE + GRACE - 1
    await intake.ingest.flush()
    assert await intake.minutes(SampleKind.HEARTBEAT) == []
    intake.now += 1
    await intake.ingest.flush()
    assert len(await intake.minutes(SampleKind.HEARTBEAT)) == 1


async def test_what_comes_within_the_grace_counts(intake: Intake) -> None:
    await intake.settle(heartbeat(NOON))
    intake.now = NOON + MINUTE + GRACE - 1
    await intake.settle(heartbeat(NOON + MINUTE - 1))
    await at_the_end(intake)
    ((_, _, _, shown),) = await intake.minutes(SampleKind.HEARTBEAT)
    assert shown["count"] == 2


async def test_what_comes_hours_late_is_counted_together(intake: Intake) -> None:
    late = NOON - 5 * 60 * MINUTE
    await intake.settle(heartbeat(late))
    intake.now += 3 * SECOND
    await intake.settle(heartbeat(late + SECOND))
    intake.now += GRACE - 1
    await intake.ingest.flush()
    assert await intake.minutes(SampleKind.HEARTBEAT) == []
    intake.now += 1
    await intake.ingest.flush()
    ((time, _, _, shown),) = await intake.minutes(SampleKind.HEARTBEAT)
    assert (time, shown["count"]) == (late, 2)


async def test_what_comes_after_its_minute_was_told_changes_nothing(intake: Intake) -> None:
    await intake.take(heartbeat(NOON, 1))
    await at_the_end(intake)
    before = await intake.minutes(SampleKind.HEARTBEAT)
    await intake.take(heartbeat(NOON + 1, 7))
    await at_the_end(intake)
    assert await intake.minutes(SampleKind.HEARTBEAT) == before
    assert intake.state().status == 7


async def test_the_journal_is_empty_when_all_is_counted(intake: Intake) -> None:
    await intake.take(heartbeat(NOON))
    await intake.take(link(NOON, -50), heartbeat(NOON, device=E))
    assert intake.journal() == 2
    await intake.ingest.flush()
    assert intake.journal() == 2
    await at_the_end(intake)
    assert intake.journal() == 0


async def test_the_journal_keeps_what_an_open_minute_needs(intake: Intake) -> None:
    await intake.take(heartbeat(NOON))
    intake.now = NOON + 61 * SECOND
    await intake.take(heartbeat(NOON + 61 * SECOND))
    intake.now = NOON + 70 * SECOND
    await intake.ingest.flush()
    assert len(await intake.minutes(SampleKind.HEARTBEAT)) == 1
    assert intake.journal() == 1


async def test_extreme_numbers_can_be_counted(intake: Intake) -> None:
    await intake.take(*(heartbeat(NOON + place, 2**53) for place in range(3)), link(NOON, -(2**53)))
    await at_the_end(intake)
    ((_, _, mean, shown),) = await intake.minutes(SampleKind.HEARTBEAT, D)
    assert (mean, shown["max"], shown["count"]) == (2**31 - 1, 2**31 - 1, 3)
