"""Implausible times: their reports are stored, but change no state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import NO_SEQ, ClockFlag, SampleExtras, SampleKind, StoredSample
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.service.presence.gateway_clocks import GatewayClocks
from tests.service.ingest.ingest_harness import DAY, MINUTE, NOON, SECOND, IngestHarness
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


pytestmark = pytest.mark.anyio

AHEAD = NOON + 10 * MINUTE
BEHIND = NOON - 30 * DAY
AFTER_RELEASE = 1_800_000_000_000
"""Time in 2027, after the release of this program."""
BEFORE_1970 = -(2**40)
YEAR_9999 = 253_402_300_799_999

IMPLAUSIBLE = [AHEAD + 1, BEHIND - 1, BEFORE_1970, YEAR_9999]


async def test_samples_with_implausible_times_are_stored_and_flagged(harness: IngestHarness) -> None:
    await harness.commit_flushed(*(temperature(at, seq=seq) for seq, at in enumerate(IMPLAUSIBLE)))
    flags = {sample.time: sample.more and sample.more.clock for sample in await harness.samples()}
    assert flags == {
        AHEAD + 1: ClockFlag.FUTURE,
        BEHIND - 1: ClockFlag.PAST,
        BEFORE_1970: ClockFlag.PAST,
        YEAR_9999: ClockFlag.FUTURE,
    }
    assert harness.ingest.counters.samples == 4


async def test_the_flag_does_not_change_other_fields(harness: IngestHarness) -> None:
    at = AHEAD + 1
    await harness.commit(
        build_report("property-decoded/motion", at, value="still", ext={"a": 1}),
        build_report("measurement-error/8800", at, seq=1, error=3, errorExt=4),
        build_report("property/8001", at, value="010203"),
        prop("unheard-of", at, 1),
    )
    samples = {sample.identifier: sample for sample in await harness.samples()}
    motion, failed, firmware = (samples[identifier].more for identifier in (0x8810, 0x8800, 0x8001))
    assert motion is not None
    assert failed is not None
    assert firmware is not None
    assert (motion.text, motion.ext, motion.clock) == ('"still"', '{"a":1}', ClockFlag.FUTURE)
    assert (failed.error, failed.error_ext, failed.clock) == (3, 4, ClockFlag.FUTURE)
    assert (firmware.text, firmware.clock, samples[0x8001].raw) == ('"1.2.3"', ClockFlag.FUTURE, b"\1\2\3")
    assert list(harness.foreign_names().values()) == ["unheard-of"]


async def test_times_at_the_limits_are_plausible(harness: IngestHarness) -> None:
    await harness.commit_flushed(temperature(AHEAD), temperature(BEHIND))
    assert [sample.more for sample in await harness.samples()] == [None, None]
    assert harness.state().reported_at == NOON


STRAYS: dict[str, Callable[[int], Publish]] = {
    "sample": temperature,
    "error": lambda at: build_report("measurement-error/8800", at, seq=1, error=3),
    "fact": lambda at: prop("battery-level", at, 7),
    "heartbeat": heartbeat,
    "rssi": lambda at: link(at, -50),
}


def has_no_state(harness: IngestHarness) -> bool:
    """Return whether nothing but the existence of a device is known."""
    state = harness.state()
    values = {state.reported_at, state.status, state.boot_mode, state.parent, state.rssi, state.battery}
    times = {state.status_at, state.radio_at, state.battery_at, state.model_at, state.firmware_at}
    return values | times == {None}


@pytest.mark.parametrize("kind", STRAYS)
async def test_an_implausible_time_adds_the_device_and_nothing_else(
    harness: IngestHarness, kind: str
) -> None:
    for at in IMPLAUSIBLE:
        await harness.commit_flushed(STRAYS[kind](at))
        assert harness.gateway() == A
        assert has_no_state(harness)
    assert (harness.ingest.counters.implausible_times, harness.ingest.counters.samples) == (4, 4)
    assert harness.count_journal() == 0


@pytest.mark.parametrize("kind", STRAYS)
async def test_a_device_with_an_implausible_time_is_known_after_a_crash(
    harness: IngestHarness, kind: str
) -> None:
    await harness.commit(STRAYS[kind](AHEAD + 1))
    await harness.restart()
    await harness.ingest.flush()
    assert harness.gateway() == A
    assert has_no_state(harness)


@pytest.mark.parametrize("at", IMPLAUSIBLE)
async def test_the_state_starts_with_the_first_plausible_report(harness: IngestHarness, at: int) -> None:
    await harness.commit_flushed(*(build(at) for build in STRAYS.values()))
    await harness.commit_flushed(heartbeat(NOON - SECOND, 3))
    state = harness.state()
    assert (state.reported_at, state.status, state.status_at) == (NOON - SECOND, 3, NOON - SECOND)
    assert (state.parent, state.battery, harness.gateway()) == (None, None, A)
    harness.now += 5 * MINUTE
    await harness.commit_flushed(link(harness.now, -50), prop("battery-level", harness.now, 80, gateway=B))
    state = harness.state()
    assert (state.reported_at, state.parent, state.battery) == (harness.now, mac_to_number(P), 80)


async def test_plausible_reports_of_a_batch_are_applied(harness: IngestHarness) -> None:
    await harness.commit_flushed(
        temperature(AHEAD + 1, gateway=B), temperature(NOON), heartbeat(BEHIND - 1, 9)
    )
    assert (harness.gateway(), harness.state().reported_at, harness.state().status) == (A, NOON, None)
    assert harness.ingest.counters.implausible_times == 2


async def test_a_new_device_in_dfu_mode_with_an_implausible_sample_is_added(harness: IngestHarness) -> None:
    await harness.commit_flushed(temperature(BEHIND - 1), dfu(NOON))
    assert (harness.gateway(), harness.state().boot_mode) == (A, "dfu")


@pytest.mark.parametrize("at", [AHEAD + 1, BEHIND - 1], ids=["ahead", "behind"])
async def test_a_dfu_report_with_an_implausible_time_adds_no_device(harness: IngestHarness, at: int) -> None:
    await harness.commit_flushed(dfu(at))
    assert (harness.device(), harness.state(), harness.count_journal()) == (None, None, 0)


@pytest.mark.parametrize("kind", [*STRAYS, "with a valid report"])
async def test_a_time_outside_the_supported_years_is_rejected(harness: IngestHarness, kind: str) -> None:
    """Send two times: the last one counts, and its offset leads out of the supported years."""
    valid = STRAYS.get(kind, temperature)(NOON)
    payload = valid.payload[:-1] + b',"time":"0001-01-01T00:00:00+23:59"}'
    others = [temperature(NOON, device=E)] if kind == "with a valid report" else []
    await harness.commit_flushed(Publish(valid.topic, payload, qos=1), *others)
    (row,) = harness.rejects()
    assert (row.topic, row.payload) == (valid.topic, payload)
    # The fast and the complete decoder report it differently.
    assert "outside the years" in row.reason or "is not a valid date and time" in row.reason
    assert (harness.device(), await harness.samples(kinds=SampleKind)) == (None, [])
    assert (harness.device(E) is not None) == bool(others)
    assert harness.ingest.counters.implausible_times == 0


@pytest.mark.rule("report-49")
@pytest.mark.parametrize("at", [AHEAD + 1, BEHIND - 1], ids=["ahead", "behind"])
async def test_an_implausible_time_changes_no_state(harness: IngestHarness, at: int) -> None:
    now = NOON - SECOND
    await harness.commit_flushed(heartbeat(now, 3), link(now, -60), prop("battery-level", now, 80))
    before = harness.device(), harness.state()
    await harness.commit_flushed(
        heartbeat(at, 9, gateway=B),
        link(at, -10, Q),
        dfu(at),
        prop("battery-level", at, 7),
        prop("model-number", at, 0x2011),
        temperature(at, gateway=B),
    )
    assert (harness.device(), harness.state()) == before


@pytest.mark.parametrize("at", IMPLAUSIBLE)
async def test_heartbeats_and_links_with_implausible_times_are_flagged_and_in_no_minute(
    harness: IngestHarness, at: int
) -> None:
    await harness.commit(heartbeat(at, 4), link(at, -50))
    harness.now += 10 * MINUTE
    await harness.ingest.flush()
    extras = SampleExtras(clock=ClockFlag.FUTURE if at > NOON else ClockFlag.PAST)
    samples = {sample.kind: sample for sample in await harness.samples(kinds=SampleKind)}
    assert samples == {
        SampleKind.LINK: StoredSample(
            at, SampleKind.LINK, mac_to_number(P), NO_SEQ, mac_to_number(A), -50, None, extras
        ),
        SampleKind.HEARTBEAT: StoredSample(
            at, SampleKind.HEARTBEAT, 0, NO_SEQ, mac_to_number(A), 4, None, extras
        ),
    }


@pytest.mark.parametrize("ahead", [DAY, DAY + 1])
async def test_a_heartbeat_from_the_future_does_not_affect_a_later_minute(
    harness: IngestHarness, ahead: int
) -> None:
    await harness.commit_flushed(heartbeat(NOON + ahead))
    harness.now = NOON + DAY + 30 * SECOND
    await harness.commit_flushed(
        heartbeat(NOON + DAY + 10 * SECOND, 2), heartbeat(NOON + DAY + 20 * SECOND, 4)
    )
    harness.now += 10 * MINUTE
    await harness.ingest.flush()
    ((time, _, mean, summary),) = await harness.minutes(SampleKind.HEARTBEAT)
    assert (time, mean, summary["count"]) == (NOON + DAY, 3.0, 2)


async def test_a_time_slightly_ahead_counts_as_now(harness: IngestHarness) -> None:
    await harness.commit_flushed(
        heartbeat(NOON + 9 * MINUTE, 5),
        link(NOON + 8 * MINUTE, -40),
        prop("battery-level", NOON + MINUTE, 50),
    )
    state = harness.state()
    assert (state.reported_at, state.status_at, state.radio_at, state.battery_at) == (NOON,) * 4
    assert (state.status, state.rssi, state.battery) == (5, -40, 50)


async def test_a_report_from_a_clock_ahead_does_not_block_later_ones(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(NOON + 9 * MINUTE, 5), link(NOON + 9 * MINUTE, -40, P))
    harness.now += 2 * MINUTE
    await harness.commit_flushed(heartbeat(harness.now, 6), link(harness.now, -70, Q))
    state = harness.state()
    assert (state.reported_at, state.status, state.parent) == (NOON + 2 * MINUTE, 6, mac_to_number(Q))


async def test_samples_slightly_ahead_keep_their_time(harness: IngestHarness) -> None:
    await harness.commit_flushed(temperature(NOON + 9 * MINUTE))
    sample = await harness.sample()
    assert (sample.time, sample.more) == (NOON + 9 * MINUTE, None)


async def test_a_repeated_report_counts_once_its_time_is_reached(harness: IngestHarness) -> None:
    """Send a report again when its time has come: it is stored once, and counts then."""
    message = temperature(AHEAD + MINUTE)
    await harness.commit_flushed(message)
    assert has_no_state(harness)
    harness.now = AHEAD + MINUTE
    await harness.commit_flushed(message)
    assert (await harness.sample()).time == AHEAD + MINUTE
    assert harness.state().reported_at == AHEAD + MINUTE


# --- Gateways with wrong clocks ---

HOURS_6 = 6 * 60 * MINUTE
BEHIND_BY_YEARS = -20_000 * DAY
"""Offset of a clock that starts in 1970 at each start, approximately."""


@pytest.mark.rule("report-48", "report-50", "rest-179")
async def test_reports_of_a_gateway_with_a_wrong_clock_count_at_their_corrected_time(
    harness: IngestHarness,
) -> None:
    """Check that states have the corrected time, while samples keep the reported one."""
    age, limits = 2 * SECOND, (AHEAD - NOON, BEHIND - NOON)
    offsets = [HOURS_6, -HOURS_6, 11 * MINUTE, 6 * SECOND, 400 * DAY, BEHIND_BY_YEARS]
    offsets += [limit + age + delta for limit in limits for delta in (-1, 0, 1)]
    expected, actual = [], []
    for turn, ahead in enumerate(offsets, 1):
        mac, at = f"{mac_to_number(E) + turn:012x}", harness.now - age
        harness.clock_shifts[mac_to_number(A)] = -ahead
        messages = [
            heartbeat(at + ahead, 5, device=mac),
            link(at + ahead, -50, device=mac),
            prop("model-number", at + ahead, 0x2011, device=mac),
            prop("firmware-version", at + ahead, "2.4.1", device=mac),
            prop("battery-level", at + ahead, 80, device=mac),
        ]
        await harness.commit_flushed(*messages, heartbeat(at, turn, gateway=B, device=E))
        state, device = harness.state(mac), harness.device(mac)
        actual += [
            (state.reported_at, state.status, state.status_at, state.parent, state.radio_at),
            (state.battery, state.battery_at, device.model, device.firmware, state.firmware_at),
            {
                (sample.time, sample.more and (sample.more.clock, sample.more.shift))
                for sample in await harness.samples(mac)
            },
            (harness.state(E).status, harness.state(E).status_at),
        ]
        is_plausible = -30 * DAY <= ahead - age <= 10 * MINUTE
        expected += [
            (at, 5, at, mac_to_number(P), at),
            (80, at, 0x2011, "2.4.1", at),
            {(at + ahead, (None if is_plausible else ClockFlag.CORRECTED, -ahead))},
            (turn, at),  # through a gateway with a correct clock
        ]
        harness.now += MINUTE
    assert actual == expected
    assert harness.ingest.counters.implausible_times == 0


@pytest.mark.rule("report-48", "report-50")
async def test_a_corrected_clock_does_not_block_later_reports(harness: IngestHarness) -> None:
    """Check clocks that were ahead and behind, with known and unknown offsets."""
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
        harness.now += MINUTE
        harness.clock_shifts[mac_to_number(A)] = shift
        await harness.commit_flushed(heartbeat(harness.now + ahead, turn))
        statuses.append(harness.state().status)
    assert statuses == [0, 0, 2, 2, 4, 5, 6, 6]


@pytest.mark.rule("rest-179")
async def test_a_time_that_is_implausible_after_correction_is_flagged(harness: IngestHarness) -> None:
    harness.clock_shifts[mac_to_number(A)] = -HOURS_6
    await harness.commit_flushed(temperature(NOON + 2 * HOURS_6, seq=1), heartbeat(NOON + 2 * HOURS_6, 5))
    ((time, extras),) = [(sample.time, sample.more) for sample in await harness.samples()]
    assert (time, extras) == (NOON + 2 * HOURS_6, SampleExtras(clock=ClockFlag.FUTURE, shift=-HOURS_6))
    assert has_no_state(harness)
    assert harness.ingest.counters.implausible_times == 2


@pytest.mark.rule("report-48", "report-51")
async def test_radio_readings_are_counted_in_minutes_of_corrected_times(harness: IngestHarness) -> None:
    harness.clock_shifts[mac_to_number(A)] = -HOURS_6
    await harness.commit_flushed(link(NOON + HOURS_6, -50), link(NOON + SECOND, -52, gateway=B))
    harness.now += 2 * MINUTE
    await harness.commit_flushed()
    (minute,) = await harness.samples(kinds=frozenset({SampleKind.LINK}))
    assert (minute.time, minute.number) == (NOON, -51)


@pytest.mark.rule("report-48", "rest-179")
async def test_after_a_reconnect_an_offset_applies_only_to_fresh_reports_until_confirmed(
    harness: IngestHarness,
) -> None:
    """Simulate a gateway that was six hours ahead, and may have been corrected while it was offline."""
    connection, ahead, late = 1, HOURS_6, 10 * MINUTE
    clocks = GatewayClocks(lambda _gateway: connection)
    clocks.measure_offset(mac_to_number(A), NOON, NOON, NOON + ahead)
    await harness.use_clocks(clocks)

    async def send_report(device: str, at: int) -> tuple[int | None, SampleExtras | None]:
        await harness.commit_flushed(temperature(at, device=device), heartbeat(at, device=device))
        return harness.state(device).status_at, (await harness.samples(device))[0].more

    corrected = SampleExtras(clock=ClockFlag.CORRECTED, shift=-ahead)
    actual = {"the same connection": await send_report("c0ffee000101", NOON + ahead - late)}
    connection = 2
    actual |= {
        "still ahead, fresh": await send_report("c0ffee000102", NOON + ahead),
        "still ahead, late": await send_report("c0ffee000103", NOON + ahead - late),
        "set right, fresh": await send_report("c0ffee000104", NOON),
        "set right, late": await send_report("c0ffee000105", NOON - late),
    }
    clocks.measure_offset(mac_to_number(A), NOON, NOON, NOON + ahead)
    actual["offset confirmed"] = await send_report("c0ffee000106", NOON + ahead - late)
    assert actual == {
        "the same connection": (NOON - late, corrected),
        "still ahead, fresh": (NOON, corrected),
        "still ahead, late": (None, SampleExtras(clock=ClockFlag.FUTURE)),
        "set right, fresh": (NOON, None),
        "set right, late": (NOON - late, None),
        "offset confirmed": (NOON - late, corrected),
    }


# --- Clock of the service ---


@pytest.mark.rule("report-50", "report-51")
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
async def test_states_continue_to_change_after_the_service_clock_is_set_back(
    harness: IngestHarness, *, restarted: bool
) -> None:
    await harness.commit_flushed(heartbeat(NOON, 1), link(NOON, -50), prop("battery-level", NOON, 80))
    harness.now -= DAY
    if restarted:
        await harness.restart()
    await harness.commit_flushed()
    minutes = await harness.samples(kinds={SampleKind.LINK})
    assert [minute.time for minute in minutes] == ([] if restarted else [NOON]), (
        "no minute stays open for a day"
    )
    harness.now += SECOND
    await harness.commit_flushed(
        heartbeat(harness.now, 2), link(harness.now, -40), prop("battery-level", harness.now, 70)
    )
    state = harness.state()
    assert (state.status, state.rssi, state.battery) == (2, -40, 70)
    assert {state.reported_at, state.status_at, state.radio_at, state.battery_at} == {harness.now}


@pytest.mark.rule("report-50")
async def test_a_start_with_an_unset_clock_does_not_change_states(
    harness: IngestHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Simulate a machine without a battery, which starts in 1970 and is set seconds or hours later."""
    noon = harness.now = AFTER_RELEASE
    await harness.commit_flushed(heartbeat(noon, 1), link(noon, -50), prop("battery-level", noon, 80))
    before = harness.state()
    harness.now = MINUTE
    await harness.restart()
    await harness.commit_flushed()
    assert harness.state() == before
    assert "the clock of this machine (1970-01-01T00:01:00.000Z) is days behind" in caplog.text
    for minute in range(2, 15):  # it is never trusted, however long it runs
        harness.now = minute * MINUTE - SECOND
        await harness.commit_flushed()
    harness.now = noon + MINUTE
    await harness.commit_flushed(heartbeat(noon - 3 * DAY, 3))
    assert harness.state() == before, "a replayed report overwrites nothing newer"
    await harness.commit_flushed(heartbeat(harness.now, 2))
    state = harness.state()
    assert (state.status, state.status_at, state.battery_at) == (2, harness.now, noon)


@pytest.mark.rule("report-50")
@pytest.mark.parametrize("now", [DAY, AFTER_RELEASE], ids=["always in 1970", "in 2027"])
async def test_states_continue_to_change_after_the_clock_was_corrected_before_the_start(
    harness: IngestHarness, now: int
) -> None:
    """Check that a clock days behind stored states is trusted after ten minutes without a jump."""
    harness.now = now + 30 * DAY
    await harness.commit_flushed(heartbeat(harness.now, 1))
    harness.now = now
    await harness.restart()
    statuses = []
    for step in [*[MINUTE] * 9, DAY, *[MINUTE] * 11]:  # it is set in between, so it may be set again
        harness.now += step
        await harness.commit_flushed(heartbeat(harness.now, 2))
        statuses.append(harness.state().status)
    assert statuses == [1] * 20 + [2]
    assert harness.state().status_at == harness.now
