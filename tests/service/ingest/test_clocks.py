"""Times that cannot be right: what bears them is kept, and decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import Clock, SampleKind
from tests.service.ingest.intake import DAY, MINUTE, NOON, SECOND
from tests.service.ingest.messages import B, E, P, Q, dfu, heartbeat, link, number, prop, report, temperature

if TYPE_CHECKING:
    from tests.service.ingest.intake import Intake

pytestmark = pytest.mark.anyio

AHEAD = NOON + 10 * MINUTE
BEHIND = NOON - 30 * DAY
BEFORE_1970 = -(2**40)
YEAR_9999 = 253_402_300_799_999

WRONG = [AHEAD + 1, BEHIND - 1, BEFORE_1970, YEAR_9999]


async def test_samples_with_wrong_times_are_kept_and_marked(intake: Intake) -> None:
    await intake.settle(*(temperature(at, seq=seq) for seq, at in enumerate(WRONG)))
    found = {each.time: each.more and each.more.clock for each in await intake.samples()}
    assert found == {
        AHEAD + 1: Clock.FUTURE,
        BEHIND - 1: Clock.PAST,
        BEFORE_1970: Clock.PAST,
        YEAR_9999: Clock.FUTURE,
    }
    assert intake.ingest.figures.samples == 4


async def test_the_mark_takes_nothing_away_from_the_rest(intake: Intake) -> None:
    at = AHEAD + 1
    await intake.take(
        report("property-decoded/motion", at, value="still", ext={"a": 1}),
        report("measurement-error/8800", at, seq=1, error=3, errorExt=4),
        report("property/8001", at, value="010203"),
        prop("unheard-of", at, 1),
    )
    found = {each.identifier: each for each in await intake.samples()}
    motion, failed, firmware = (found[each].more for each in (0x8810, 0x8800, 0x8001))
    assert motion is not None
    assert failed is not None
    assert firmware is not None
    assert (motion.text, motion.ext, motion.clock) == ('"still"', '{"a":1}', Clock.FUTURE)
    assert (failed.error, failed.error_ext, failed.clock) == (3, 4, Clock.FUTURE)
    assert (firmware.text, firmware.clock, found[0x8001].raw) == ('"1.2.3"', Clock.FUTURE, b"\1\2\3")
    assert list(intake.names().values()) == ["unheard-of"]


async def test_times_at_the_limits_are_believed(intake: Intake) -> None:
    await intake.settle(temperature(AHEAD), temperature(BEHIND))
    assert [each.more for each in await intake.samples()] == [None, None]
    assert intake.state().reported_at == NOON


@pytest.mark.parametrize("at", [AHEAD + 1, BEHIND - 1], ids=["ahead", "behind"])
async def test_no_device_comes_into_being_by_a_wrong_time(intake: Intake, at: int) -> None:
    await intake.settle(
        heartbeat(at), link(at, -50), temperature(at), prop("model-number", at, 0x2011), dfu(at, device=E)
    )
    assert (intake.device(), intake.state(), intake.device(E)) == (None, None, None)
    assert intake.journal() == 0
    assert intake.ingest.figures.reports.total() == 5


@pytest.mark.rule("report-49")
@pytest.mark.parametrize("at", [AHEAD + 1, BEHIND - 1], ids=["ahead", "behind"])
async def test_no_state_changes_by_a_wrong_time(intake: Intake, at: int) -> None:
    now = NOON - SECOND
    await intake.settle(heartbeat(now, 3), link(now, -60), prop("battery-level", now, 80))
    before = intake.device(), intake.state()
    await intake.settle(
        heartbeat(at, 9, gateway=B),
        link(at, -10, Q),
        dfu(at),
        prop("battery-level", at, 7),
        prop("model-number", at, 0x2011),
        temperature(at, gateway=B),
    )
    assert (intake.device(), intake.state()) == before


@pytest.mark.parametrize("at", [AHEAD + 1, BEHIND - 1], ids=["ahead", "behind"])
async def test_no_minute_is_counted_at_a_wrong_time(intake: Intake, at: int) -> None:
    await intake.take(heartbeat(at), link(at, -50))
    intake.now = max(NOON, at) + 10 * MINUTE
    await intake.ingest.flush()
    assert await intake.samples(kinds=SampleKind) == []


async def test_a_little_ahead_is_now(intake: Intake) -> None:
    await intake.settle(
        heartbeat(NOON + 9 * MINUTE, 5),
        link(NOON + 8 * MINUTE, -40),
        prop("battery-level", NOON + MINUTE, 50),
    )
    state = intake.state()
    assert (state.reported_at, state.status_at, state.radio_at, state.battery_at) == (NOON,) * 4
    assert (state.status, state.rssi, state.battery) == (5, -40, 50)


async def test_who_was_ahead_does_not_keep_later_news_out(intake: Intake) -> None:
    await intake.settle(heartbeat(NOON + 9 * MINUTE, 5), link(NOON + 9 * MINUTE, -40, P))
    intake.now += 2 * MINUTE
    await intake.settle(heartbeat(intake.now, 6), link(intake.now, -70, Q))
    state = intake.state()
    assert (state.reported_at, state.status, state.parent) == (NOON + 2 * MINUTE, 6, number(Q))


async def test_samples_a_little_ahead_keep_their_own_time(intake: Intake) -> None:
    await intake.settle(temperature(NOON + 9 * MINUTE))
    sample = await intake.sample()
    assert (sample.time, sample.more) == (NOON + 9 * MINUTE, None)


async def test_what_was_a_future_can_become_a_present(intake: Intake) -> None:
    """A report that is sent again when its time has come is stored once, and counts then."""
    message = temperature(AHEAD + MINUTE)
    await intake.settle(message)
    assert intake.device() is None
    intake.now = AHEAD + MINUTE
    await intake.settle(message)
    assert (await intake.sample()).time == AHEAD + MINUTE
    assert intake.state().reported_at == AHEAD + MINUTE
