"""Times that cannot be right: what bears them is kept, and decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import NO_SEQ, ClockFlag, SampleExtras, SampleKind, StoredSample
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.service.presence.gateway_clocks import GatewayClocks
from tests.service.ingest.ingest_harness import DAY, MINUTE, NOON, SECOND
from tests.service.ingest.messages import (
    A,
    B,
    E,
    P,
    Q,
    build_report,
    dfu,
    heartbeat,
    link,
    mac_to_number,
    prop,
    temperature,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.ingest.ingest_harness import IngestHarness

pytestmark = pytest.mark.anyio

AHEAD = NOON + 10 * MINUTE
BEHIND = NOON - 30 * DAY
LATELY = 1_800_000_000_000
"""In 2027: this program has been written."""
BEFORE_1970 = -(2**40)
YEAR_9999 = 253_402_300_799_999

WRONG = [AHEAD + 1, BEHIND - 1, BEFORE_1970, YEAR_9999]


async def test_samples_with_wrong_times_are_kept_and_marked(intake: IngestHarness) -> None:
    await intake.commit_flushed(*(temperature(at, seq=seq) for seq, at in enumerate(WRONG)))
    found = {each.time: each.more and each.more.clock for each in await intake.samples()}
    assert found == {
        AHEAD + 1: ClockFlag.FUTURE,
        BEHIND - 1: ClockFlag.PAST,
        BEFORE_1970: ClockFlag.PAST,
        YEAR_9999: ClockFlag.FUTURE,
    }
    assert intake.ingest.counters.samples == 4


async def test_the_mark_takes_nothing_away_from_the_rest(intake: IngestHarness) -> None:
    at = AHEAD + 1
    await intake.commit(
        build_report("property-decoded/motion", at, value="still", ext={"a": 1}),
        build_report("measurement-error/8800", at, seq=1, error=3, errorExt=4),
        build_report("property/8001", at, value="010203"),
        prop("unheard-of", at, 1),
    )
    found = {each.identifier: each for each in await intake.samples()}
    motion, failed, firmware = (found[each].more for each in (0x8810, 0x8800, 0x8001))
    assert motion is not None
    assert failed is not None
    assert firmware is not None
    assert (motion.text, motion.ext, motion.clock) == ('"still"', '{"a":1}', ClockFlag.FUTURE)
    assert (failed.error, failed.error_ext, failed.clock) == (3, 4, ClockFlag.FUTURE)
    assert (firmware.text, firmware.clock, found[0x8001].raw) == ('"1.2.3"', ClockFlag.FUTURE, b"\1\2\3")
    assert list(intake.foreign_names().values()) == ["unheard-of"]


async def test_times_at_the_limits_are_believed(intake: IngestHarness) -> None:
    await intake.commit_flushed(temperature(AHEAD), temperature(BEHIND))
    assert [each.more for each in await intake.samples()] == [None, None]
    assert intake.state().reported_at == NOON


STRAYS: dict[str, Callable[[int], Publish]] = {
    "sample": temperature,
    "error": lambda at: build_report("measurement-error/8800", at, seq=1, error=3),
    "fact": lambda at: prop("battery-level", at, 7),
    "heartbeat": heartbeat,
    "rssi": lambda at: link(at, -50),
}


def is_untold(intake: IngestHarness) -> bool:
    """Whether nobody knows how a device is that is known."""
    state = intake.state()
    told = {state.reported_at, state.status, state.boot_mode, state.parent, state.rssi, state.battery}
    since = {state.status_at, state.radio_at, state.battery_at, state.model_at, state.firmware_at}
    return told | since == {None}


@pytest.mark.parametrize("kind", STRAYS)
async def test_a_wrong_time_makes_a_device_known_and_nothing_else(intake: IngestHarness, kind: str) -> None:
    for at in WRONG:
        await intake.commit_flushed(STRAYS[kind](at))
        assert intake.gateway() == A
        assert is_untold(intake)
    assert (intake.ingest.counters.implausible_times, intake.ingest.counters.samples) == (4, 4)
    assert intake.count_journal() == 0


@pytest.mark.parametrize("kind", STRAYS)
async def test_a_device_with_a_wrong_time_is_known_after_a_crash(intake: IngestHarness, kind: str) -> None:
    await intake.commit(STRAYS[kind](AHEAD + 1))
    await intake.restart()
    await intake.ingest.flush()
    assert intake.gateway() == A
    assert is_untold(intake)


@pytest.mark.parametrize("at", WRONG)
async def test_state_begins_with_the_first_report_that_is_believed(intake: IngestHarness, at: int) -> None:
    await intake.commit_flushed(*(make(at) for make in STRAYS.values()))
    await intake.commit_flushed(heartbeat(NOON - SECOND, 3))
    state = intake.state()
    assert (state.reported_at, state.status, state.status_at) == (NOON - SECOND, 3, NOON - SECOND)
    assert (state.parent, state.battery, intake.gateway()) == (None, None, A)
    intake.now += 5 * MINUTE
    await intake.commit_flushed(link(intake.now, -50), prop("battery-level", intake.now, 80, gateway=B))
    state = intake.state()
    assert (state.reported_at, state.parent, state.battery) == (intake.now, mac_to_number(P), 80)


async def test_what_is_believed_counts_beside_what_is_not(intake: IngestHarness) -> None:
    await intake.commit_flushed(
        temperature(AHEAD + 1, gateway=B), temperature(NOON), heartbeat(BEHIND - 1, 9)
    )
    assert (intake.gateway(), intake.state().reported_at, intake.state().status) == (A, NOON, None)
    assert intake.ingest.counters.implausible_times == 2


async def test_a_device_that_is_met_while_it_is_in_dfu_mode_is_known(intake: IngestHarness) -> None:
    await intake.commit_flushed(temperature(BEHIND - 1), dfu(NOON))
    assert (intake.gateway(), intake.state().boot_mode) == (A, "dfu")


@pytest.mark.parametrize("at", [AHEAD + 1, BEHIND - 1], ids=["ahead", "behind"])
async def test_no_device_comes_into_being_by_dfu_at_a_wrong_time(intake: IngestHarness, at: int) -> None:
    await intake.commit_flushed(dfu(at))
    assert (intake.device(), intake.state(), intake.count_journal()) == (None, None, 0)


@pytest.mark.parametrize("kind", [*STRAYS, "rejected beside"])
async def test_a_time_outside_of_the_calendar_is_rejected(intake: IngestHarness, kind: str) -> None:
    """Offsets are looked at last: what the first time says is of no use."""
    good = STRAYS.get(kind, temperature)(NOON)
    payload = good.payload[:-1] + b',"time":"0001-01-01T00:00:00+23:59"}'
    beside = [temperature(NOON, device=E)] if kind == "rejected beside" else []
    await intake.commit_flushed(Publish(good.topic, payload, qos=1), *beside)
    (row,) = intake.rejects()
    assert (row.topic, row.payload) == (good.topic, payload)
    # The quick way to read a report and the thorough one say it differently.
    assert "outside the years" in row.reason or "is not a valid date and time" in row.reason
    assert (intake.device(), await intake.samples(kinds=SampleKind)) == (None, [])
    assert (intake.device(E) is not None) == bool(beside)
    assert intake.ingest.counters.implausible_times == 0


@pytest.mark.rule("report-49")
@pytest.mark.parametrize("at", [AHEAD + 1, BEHIND - 1], ids=["ahead", "behind"])
async def test_no_state_changes_by_a_wrong_time(intake: IngestHarness, at: int) -> None:
    now = NOON - SECOND
    await intake.commit_flushed(heartbeat(now, 3), link(now, -60), prop("battery-level", now, 80))
    before = intake.device(), intake.state()
    await intake.commit_flushed(
        heartbeat(at, 9, gateway=B),
        link(at, -10, Q),
        dfu(at),
        prop("battery-level", at, 7),
        prop("model-number", at, 0x2011),
        temperature(at, gateway=B),
    )
    assert (intake.device(), intake.state()) == before


@pytest.mark.parametrize("at", WRONG)
async def test_heartbeats_and_links_at_a_wrong_time_are_kept_marked_and_in_no_minute(
    intake: IngestHarness, at: int
) -> None:
    await intake.commit(heartbeat(at, 4), link(at, -50))
    intake.now += 10 * MINUTE
    await intake.ingest.flush()
    mark = SampleExtras(clock=ClockFlag.FUTURE if at > NOON else ClockFlag.PAST)
    found = {each.kind: each for each in await intake.samples(kinds=SampleKind)}
    assert found == {
        SampleKind.LINK: StoredSample(
            at, SampleKind.LINK, mac_to_number(P), NO_SEQ, mac_to_number(A), -50, None, mark
        ),
        SampleKind.HEARTBEAT: StoredSample(
            at, SampleKind.HEARTBEAT, 0, NO_SEQ, mac_to_number(A), 4, None, mark
        ),
    }


@pytest.mark.parametrize("ahead", [DAY, DAY + 1])
async def test_a_heartbeat_out_of_the_future_takes_no_minute_away(intake: IngestHarness, ahead: int) -> None:
    await intake.commit_flushed(heartbeat(NOON + ahead))
    intake.now = NOON + DAY + 30 * SECOND
    await intake.commit_flushed(
        heartbeat(NOON + DAY + 10 * SECOND, 2), heartbeat(NOON + DAY + 20 * SECOND, 4)
    )
    intake.now += 10 * MINUTE
    await intake.ingest.flush()
    ((time, _, mean, shown),) = await intake.minutes(SampleKind.HEARTBEAT)
    assert (time, mean, shown["count"]) == (NOON + DAY, 3.0, 2)


async def test_a_little_ahead_is_now(intake: IngestHarness) -> None:
    await intake.commit_flushed(
        heartbeat(NOON + 9 * MINUTE, 5),
        link(NOON + 8 * MINUTE, -40),
        prop("battery-level", NOON + MINUTE, 50),
    )
    state = intake.state()
    assert (state.reported_at, state.status_at, state.radio_at, state.battery_at) == (NOON,) * 4
    assert (state.status, state.rssi, state.battery) == (5, -40, 50)


async def test_who_was_ahead_does_not_keep_later_news_out(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(NOON + 9 * MINUTE, 5), link(NOON + 9 * MINUTE, -40, P))
    intake.now += 2 * MINUTE
    await intake.commit_flushed(heartbeat(intake.now, 6), link(intake.now, -70, Q))
    state = intake.state()
    assert (state.reported_at, state.status, state.parent) == (NOON + 2 * MINUTE, 6, mac_to_number(Q))


async def test_samples_a_little_ahead_keep_their_own_time(intake: IngestHarness) -> None:
    await intake.commit_flushed(temperature(NOON + 9 * MINUTE))
    sample = await intake.sample()
    assert (sample.time, sample.more) == (NOON + 9 * MINUTE, None)


async def test_what_was_a_future_can_become_a_present(intake: IngestHarness) -> None:
    """A report that is sent again when its time has come is stored once, and counts then."""
    message = temperature(AHEAD + MINUTE)
    await intake.commit_flushed(message)
    assert is_untold(intake)
    intake.now = AHEAD + MINUTE
    await intake.commit_flushed(message)
    assert (await intake.sample()).time == AHEAD + MINUTE
    assert intake.state().reported_at == AHEAD + MINUTE


# --- Gateways whose clocks are known to be wrong ---

HOURS_6 = 6 * 60 * MINUTE
BEHIND_BY_YEARS = -20_000 * DAY
"""A clock that begins with 1970 at each start, about."""


@pytest.mark.rule("report-48", "report-50", "rest-179")
async def test_what_a_gateway_with_a_wrong_clock_reports_counts_at_its_corrected_time(
    intake: IngestHarness,
) -> None:
    """States, models and versions are those of the corrected time; samples keep the time as reported."""
    age, limits = 2 * SECOND, (AHEAD - NOON, BEHIND - NOON)
    table = [HOURS_6, -HOURS_6, 11 * MINUTE, 6 * SECOND, 400 * DAY, BEHIND_BY_YEARS]
    table += [limit + age + beyond for limit in limits for beyond in (-1, 0, 1)]
    expected, found = [], []
    for turn, ahead in enumerate(table, 1):
        mac, at = f"{mac_to_number(E) + turn:012x}", intake.now - age
        intake.ingest.clock_shifts = {mac_to_number(A): -ahead}
        told = [
            heartbeat(at + ahead, 5, device=mac),
            link(at + ahead, -50, device=mac),
            prop("model-number", at + ahead, 0x2011, device=mac),
            prop("firmware-version", at + ahead, "2.4.1", device=mac),
            prop("battery-level", at + ahead, 80, device=mac),
        ]
        await intake.commit_flushed(*told, heartbeat(at, turn, gateway=B, device=E))
        state, device = intake.state(mac), intake.device(mac)
        found += [
            (state.reported_at, state.status, state.status_at, state.parent, state.radio_at),
            (state.battery, state.battery_at, device.model, device.firmware, state.firmware_at),
            {
                (each.time, each.more and (each.more.clock, each.more.shift))
                for each in await intake.samples(mac)
            },
            (intake.state(E).status, intake.state(E).status_at),
        ]
        is_plausible = -30 * DAY <= ahead - age <= 10 * MINUTE
        expected += [
            (at, 5, at, mac_to_number(P), at),
            (80, at, 0x2011, "2.4.1", at),
            {(at + ahead, (None if is_plausible else ClockFlag.CORRECTED, -ahead))},
            (turn, at),  # of a gateway whose clock is right
        ]
        intake.now += MINUTE
    assert found == expected
    assert intake.ingest.counters.implausible_times == 0


@pytest.mark.rule("report-48", "report-50")
async def test_a_clock_that_is_set_right_does_not_hold_back_what_comes_later(intake: IngestHarness) -> None:
    """Whether it was ahead or behind, known or not."""
    statuses = []
    for turn, (ahead, shift) in enumerate(
        [
            (0, 0),
            (HOURS_6, 0),
            (HOURS_6, -HOURS_6),
            (0, -HOURS_6),
            (0, 0),
            (5 * MINUTE, 0),
            (0, 0),
            (-HOURS_6, 0),
        ]
    ):
        intake.now += MINUTE
        intake.ingest.clock_shifts = {mac_to_number(A): shift} if shift else {}
        await intake.commit_flushed(heartbeat(intake.now + ahead, turn))
        statuses.append(intake.state().status)
    assert statuses == [0, 0, 2, 2, 4, 5, 6, 6]


@pytest.mark.rule("rest-179")
async def test_a_time_that_is_not_believed_even_corrected_is_marked(intake: IngestHarness) -> None:
    intake.ingest.clock_shifts = {mac_to_number(A): -HOURS_6}
    await intake.commit_flushed(temperature(NOON + 2 * HOURS_6, seq=1), heartbeat(NOON + 2 * HOURS_6, 5))
    ((time, more),) = [(each.time, each.more) for each in await intake.samples()]
    assert (time, more) == (NOON + 2 * HOURS_6, SampleExtras(clock=ClockFlag.FUTURE, shift=-HOURS_6))
    assert is_untold(intake)
    assert intake.ingest.counters.implausible_times == 2


@pytest.mark.rule("report-48", "report-51")
async def test_minutes_of_the_radio_are_those_of_corrected_times(intake: IngestHarness) -> None:
    intake.ingest.clock_shifts = {mac_to_number(A): -HOURS_6}
    await intake.commit_flushed(link(NOON + HOURS_6, -50), link(NOON + SECOND, -52, gateway=B))
    intake.now += 2 * MINUTE
    await intake.commit_flushed()
    (minute,) = await intake.samples(kinds=frozenset({SampleKind.LINK}))
    assert (minute.time, minute.number) == (NOON, -51)


@pytest.mark.rule("report-48", "rest-179")
async def test_after_a_reconnect_an_offset_counts_for_fresh_reports_until_the_gateway_answers(
    intake: IngestHarness,
) -> None:
    """A gateway was six hours ahead, and may have been set right while it was away."""
    connection, ahead, late = 1, HOURS_6, 10 * MINUTE
    clocks = GatewayClocks(lambda _gateway: connection)
    clocks.measure(mac_to_number(A), NOON, NOON, NOON + ahead)
    intake.ingest.clock_shifts, intake.ingest.is_shift_confirmed = clocks.shifts, clocks.is_confirmed

    async def tell(device: str, at: int) -> tuple[int | None, SampleExtras | None]:
        await intake.commit_flushed(temperature(at, device=device), heartbeat(at, device=device))
        return intake.state(device).status_at, (await intake.samples(device))[0].more

    corrected = SampleExtras(clock=ClockFlag.CORRECTED, shift=-ahead)
    found = {"the same connection": await tell("c0ffee000101", NOON + ahead - late)}
    connection = 2
    found |= {
        "still ahead, fresh": await tell("c0ffee000102", NOON + ahead),
        "still ahead, late": await tell("c0ffee000103", NOON + ahead - late),
        "set right, fresh": await tell("c0ffee000104", NOON),
        "set right, late": await tell("c0ffee000105", NOON - late),
    }
    clocks.measure(mac_to_number(A), NOON, NOON, NOON + ahead)
    found["it has answered"] = await tell("c0ffee000106", NOON + ahead - late)
    assert found == {
        "the same connection": (NOON - late, corrected),
        "still ahead, fresh": (NOON, corrected),
        "still ahead, late": (None, SampleExtras(clock=ClockFlag.FUTURE)),
        "set right, fresh": (NOON, None),
        "set right, late": (NOON - late, None),
        "it has answered": (NOON - late, corrected),
    }


# --- Our own clock ---


@pytest.mark.rule("report-50", "report-51")
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
async def test_when_our_own_clock_is_set_back_states_go_on(intake: IngestHarness, *, restarted: bool) -> None:
    await intake.commit_flushed(heartbeat(NOON, 1), link(NOON, -50), prop("battery-level", NOON, 80))
    intake.now -= DAY
    if restarted:
        await intake.restart()
    await intake.commit_flushed()
    minutes = await intake.samples(kinds={SampleKind.LINK})
    assert [each.time for each in minutes] == ([] if restarted else [NOON]), "no minute stays open for a day"
    intake.now += SECOND
    await intake.commit_flushed(
        heartbeat(intake.now, 2), link(intake.now, -40), prop("battery-level", intake.now, 70)
    )
    state = intake.state()
    assert (state.status, state.rssi, state.battery) == (2, -40, 70)
    assert {state.reported_at, state.status_at, state.radio_at, state.battery_at} == {intake.now}


@pytest.mark.rule("report-50")
async def test_a_start_with_a_clock_that_is_not_set_yet_leaves_states_as_they_are(
    intake: IngestHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine without a battery begins in 1970, and is told the time some seconds or hours later."""
    noon = intake.now = LATELY
    await intake.commit_flushed(heartbeat(noon, 1), link(noon, -50), prop("battery-level", noon, 80))
    before = intake.state()
    intake.now = MINUTE
    await intake.restart()
    await intake.commit_flushed()
    assert intake.state() == before
    assert "the clock of this machine (1970-01-01T00:01:00.000Z) is days behind" in caplog.text
    for minute in range(2, 15):  # it is never believed, however long it runs
        intake.now = minute * MINUTE - SECOND
        await intake.commit_flushed()
    intake.now = noon + MINUTE
    await intake.commit_flushed(heartbeat(noon - 3 * DAY, 3))
    assert intake.state() == before, "a replayed report moves nothing back"
    await intake.commit_flushed(heartbeat(intake.now, 2))
    state = intake.state()
    assert (state.status, state.status_at, state.battery_at) == (2, intake.now, noon)


@pytest.mark.rule("report-50")
@pytest.mark.parametrize("now", [DAY, LATELY], ids=["always in 1970", "in 2027"])
async def test_states_of_a_clock_that_was_corrected_before_the_start_go_on(
    intake: IngestHarness, now: int
) -> None:
    """A clock that is days behind stored states is believed when it is not set for ten minutes."""
    intake.now = now + 30 * DAY
    await intake.commit_flushed(heartbeat(intake.now, 1))
    intake.now = now
    await intake.restart()
    statuses = []
    for step in [*[MINUTE] * 9, DAY, *[MINUTE] * 11]:  # it is set in between, and may be set again
        intake.now += step
        await intake.commit_flushed(heartbeat(intake.now, 2))
        statuses.append(intake.state().status)
    assert statuses == [1] * 20 + [2]
    assert intake.state().status_at == intake.now
