"""Wrong clocks of gateways: hours off, jumping, drifting; measured, or learned from reports."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.service.presence.gateway_clocks import GatewayClocks
from tests.examples import examples
from tests.row_tables import each_row
from tests.service.ingest.messages import A, B, D, E, heartbeat, mac_to_number, temperature
from tests.service.presence.presence_harness import (
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    HeartbeatSource,
    PresenceHarness,
    summarize,
)

G = mac_to_number(A)
DEVICE_WITH_WRONG_CLOCK = "c0ffee0000c1"
"""Device with a wrong clock of its own."""

OFFSETS = [-400 * 86400, -30 * 3600, -7200, -61, 61, 599, 601, 5 * 3600, 400 * 86400]
"""Seconds by which a clock may be ahead."""


# --- Clocks without presence ---


def unresponsive_clocks() -> GatewayClocks:
    """Create clocks of gateways of which G never responds."""
    clocks = GatewayClocks()
    clocks.mark_unresponsive(G)
    return clocks


@pytest.mark.rule("report-48")
@each_row("offset", OFFSETS)
def test_a_measured_clock_is_corrected(offset: int) -> None:
    clocks = GatewayClocks()
    clocks.measure_offset(G, NOON - 400, NOON + 600, NOON + 100 + offset * SECOND)
    assert clocks.offsets == {G: offset * SECOND}
    assert clocks.shifts == {G: -offset * SECOND}


@pytest.mark.rule("report-48")
def test_a_report_is_fresh_for_a_minute() -> None:
    for age, fresh in [(0, True), (MINUTE - 1, True), (MINUTE, False), (1 - MINUTE, True), (-MINUTE, False)]:
        assert GatewayClocks().is_fresh(G, NOON - age, NOON) is fresh


def test_a_small_offset_is_known_but_not_corrected() -> None:
    clocks = GatewayClocks()
    for minute, (ahead, shifts) in enumerate(
        [(5 * SECOND, {}), (-5 * SECOND - 1, {G: 5 * SECOND + 1}), (1, {})]
    ):
        now = NOON + minute * MINUTE
        clocks.measure_offset(G, now, now, now + ahead)
        assert (clocks.offsets, clocks.shifts) == ({G: ahead}, shifts)


@pytest.mark.rule("report-48")
def test_the_most_exact_response_counts_until_one_contradicts_it() -> None:
    """Rows: times of request and response, the gateway's time, and the resulting offset, in seconds."""
    clocks = GatewayClocks()
    rows = [
        ("first", 0, 4, 102, 100),
        ("more exact", 10, 11, 111.5, 101),
        ("less exact, and agrees", 20, 30, 124, 101),
        ("less exact, and contradicts: the clock jumped", 40, 50, 245, 200),
        ("set right", 60, 61, 60.5, 0),
        ("exact, and contradicts a little: the clock drifts", 100, 100, 101, 1),
        ("as exact as before, much later", 4000, 4001, 4001.7, 1.2),
    ]
    results = []
    for name, sent, received, time, _ in rows:
        clocks.measure_offset(G, *(NOON + round(each * SECOND) for each in (sent, received, time)))
        results.append((name, clocks.offsets[G]))
    assert results == [(name, round(offset * SECOND)) for name, *_, offset in rows]


def test_each_gateway_has_a_clock_of_its_own() -> None:
    clocks = GatewayClocks()
    clocks.measure_offset(G, NOON, NOON, NOON - HOUR)
    assert not clocks.is_fresh(mac_to_number(B), NOON - HOUR, NOON)
    assert clocks.shifts == {G: HOUR}
    assert clocks.gateways_to_measure() == {mac_to_number(B)}


def test_a_clock_is_suspect_until_a_report_is_fresh_or_it_is_measured() -> None:
    clocks = GatewayClocks()
    assert clocks.gateways_to_measure() == frozenset()
    clocks.is_fresh(G, NOON - HOUR, NOON)
    assert clocks.gateways_to_measure() == {G}
    clocks.is_fresh(G, NOON, NOON)
    assert clocks.gateways_to_measure() == frozenset()
    assert clocks.is_fresh(G, NOON + 6 * SECOND, NOON), "fresh, but from the future"
    assert clocks.gateways_to_measure() == {G}
    clocks.measure_offset(G, NOON, NOON, NOON)
    assert clocks.gateways_to_measure() == frozenset()


@pytest.mark.rule("report-48", "report-49")
def test_reports_never_set_the_offset_of_a_gateway_that_responds() -> None:
    """Replay reports of yesterday in real time through a gateway whose clock is right."""
    clocks = GatewayClocks()
    clocks.measure_offset(G, NOON, NOON, NOON)
    clocks.mark_unresponsive(G)  # a later request has no response
    for minute in range(120):
        now = NOON + minute * MINUTE
        assert not clocks.is_fresh(G, now - 24 * HOUR, now)
    assert clocks.offsets == {G: 0}
    assert clocks.gateways_to_measure() == {G}, "it is not measured again"


@pytest.mark.rule("report-48")
def test_stored_offsets_count_until_they_are_measured_again() -> None:
    clocks = GatewayClocks()
    clocks.restore({G: -HOUR, mac_to_number(B): 30})
    assert (clocks.shifts, clocks.offsets) == ({G: HOUR}, {G: -HOUR, mac_to_number(B): 30})
    clocks.measure_offset(G, NOON, NOON + 10 * SECOND, NOON - HOUR)
    assert clocks.offsets[G] == -HOUR - 5 * SECOND
    clocks.remove_gateways({G})
    assert (clocks.shifts, clocks.offsets) == ({}, {mac_to_number(B): 30})


@pytest.mark.rule("report-48")
def test_a_wrong_clock_is_logged_once_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clocks = GatewayClocks()
    log_levels = []
    for hour, ahead in enumerate([0, 59, 6 * 3600, 6 * 3600 + 30, -6 * 3600, -6 * 3600, 2, 3]):
        now = NOON + hour * HOUR
        caplog.clear()
        clocks.measure_offset(G, now, now, now + ahead * SECOND)
        log_levels.append([record.levelname for record in caplog.records])
    assert log_levels == [[], [], ["WARNING"], [], ["WARNING"], [], ["INFO"], []]


@pytest.mark.rule("report-48")
def test_reports_that_agree_for_a_minute_set_the_offset() -> None:
    clocks = unresponsive_clocks()
    for second in range(0, 60, 5):
        now = NOON + second * SECOND
        assert not clocks.is_fresh(G, now - HOUR - second % 20 * SECOND, now)
        assert clocks.shifts == {}
    assert not clocks.is_fresh(G, NOON + MINUTE - HOUR - 3 * SECOND, NOON + MINUTE)
    assert clocks.shifts == {G: HOUR}


@pytest.mark.rule("report-49")
@given(ages=st.lists(st.integers(MINUTE, 10 * HOUR), min_size=2, max_size=30), gap=st.integers(20, 59))
def test_a_fresh_report_every_minute_prevents_an_offset(ages: list[int], gap: int) -> None:
    clocks = unresponsive_clocks()
    now = NOON
    for age in ages:
        now += gap * SECOND
        assert clocks.is_fresh(G, now, now)
        assert not clocks.is_fresh(G, now - age, now)
        assert not clocks.is_fresh(G, now + gap * SECOND // 2 - age, now + gap * SECOND // 2)
    assert clocks.offsets == {}


@pytest.mark.rule("report-48")
def test_a_single_device_of_several_sets_the_offset_only_after_half_an_hour() -> None:
    clocks = unresponsive_clocks()
    for minute in range(30):
        assert not clocks.is_fresh(G, NOON + (minute - 60) * MINUTE, NOON + minute * MINUTE, 7)
    assert clocks.shifts == {}
    clocks.is_fresh(G, NOON - 30 * MINUTE, NOON + 30 * MINUTE, 7)
    assert clocks.shifts == {G: HOUR}


@pytest.mark.rule("report-48")
@each_row("second_source", [pytest.param(8, id="another device"), pytest.param(0, id="the gateway itself")])
def test_two_sources_set_the_offset_after_a_minute(second_source: int) -> None:
    clocks = unresponsive_clocks()
    for now, source in [(NOON, 7), (NOON + 30 * SECOND, second_source), (NOON + MINUTE, 7)]:
        assert clocks.shifts == {}
        clocks.is_fresh(G, now - HOUR, now, source)
    assert clocks.shifts == {G: HOUR}


@pytest.mark.rule("report-48")
def test_an_offset_is_confirmed_for_one_connection() -> None:
    connection = 1
    clocks = GatewayClocks(lambda _gateway: connection)
    clocks.restore({G: 6 * HOUR})
    results = [clocks.is_confirmed(G)]
    clocks.measure_offset(G, NOON, NOON, NOON + 6 * HOUR)
    results.append(clocks.is_confirmed(G))
    connection = 2
    results.append(clocks.is_confirmed(G))
    assert results == [False, True, False]


@pytest.mark.rule("report-48")
def test_on_an_external_broker_an_offset_is_confirmed_until_its_gateway_is_silent() -> None:
    harness = PresenceHarness(external_broker=True)
    harness.clocks.measure_offset(G, NOON, NOON, NOON + 6 * HOUR)
    sources = HeartbeatSource(A, clock_error=6 * 3600), HeartbeatSource(D, clock_error=6 * 3600)
    harness.advance(600, *sources)
    results = [harness.clocks.is_confirmed(G)]
    harness.advance(600)
    harness.advance(60, *sources)
    results.append(harness.clocks.is_confirmed(G))
    assert harness.clocks.gateways_to_measure() == {G}, "it is not measured at once"
    harness.clocks.measure_offset(G, harness.now, harness.now, harness.now + 6 * HOUR)
    harness.tracker.pause_detection(harness.now)  # reports that waited at the broker are still corrected
    results.append(harness.clocks.is_confirmed(G))
    assert (results, harness.clocks.gateways_to_measure()) == ([True, False, True], frozenset())


@pytest.mark.rule("report-48")
@each_row("change", ["disconnected", "local clock", "released"])
def test_reports_before_and_after_a_change_do_not_agree(change: str) -> None:
    clocks = GatewayClocks()
    clocks.restore({G: 6 * HOUR})
    clocks.mark_unresponsive(G)
    clocks.check_offset(G, NOON, agrees=False)
    match change:
        case "disconnected":
            clocks.reset_confirmation(G)
        case "local clock":
            clocks.handle_local_clock_change(0)
        case _:
            clocks.remove_gateways([G])
            clocks.restore({G: 6 * HOUR})
            clocks.mark_unresponsive(G)
    clocks.check_offset(G, NOON + HOUR, agrees=False)
    assert not clocks.is_confirmed(G)
    clocks.check_offset(G, NOON + HOUR + 60 * SECOND, agrees=False)
    assert clocks.is_confirmed(G)


@pytest.mark.rule("report-48")
@each_row("ahead", [6, -6])
@each_row("is_set_right", [False, True])
def test_reports_that_agree_for_a_minute_confirm_the_clock_of_an_unresponsive_gateway(
    ahead: int,
    is_set_right: bool,  # noqa: FBT001 # a column of the table
) -> None:
    """Mix in replayed reports that look fresh by the other clock. Fresh reports count meanwhile."""
    known_shifts, no_shifts = {G: -ahead * HOUR}, dict[int, int]()
    actual_offset, other_offset = (0, ahead * HOUR) if is_set_right else (ahead * HOUR, 0)
    harness = PresenceHarness(A, unresponsive=True)
    harness.clocks.restore({G: ahead * HOUR})
    results = []
    for seconds, offsets in [
        (0, [actual_offset]),
        (40, [actual_offset, other_offset]),  # in one batch
        (80, [actual_offset]),
        (120, [other_offset]),  # in its own batch
        (160, [actual_offset]),
        (190, [-HOUR]),  # late, and says nothing about the clock
        (220, [actual_offset]),
    ]:
        harness.now = NOON + seconds * SECOND
        harness.commit_and_collect(*(heartbeat(harness.now + offset) for offset in offsets))
        results.append((harness.clocks.is_confirmed(G), dict(harness.clocks.shifts), harness.is_connected(D)))
    assert results == [(False, known_shifts, True)] * 6 + [
        (True, no_shifts if is_set_right else known_shifts, True)
    ]


# --- Devices behind wrong clocks ---


@pytest.mark.rule("report-48", "rest-51")
@each_row("offset", OFFSETS)
@each_row("external_broker", [pytest.param(True, id="external"), pytest.param(False, id="embedded")])
def test_devices_behind_a_wrong_clock_connect_within_three_minutes(
    offset: int,
    external_broker: bool,  # noqa: FBT001 # a column of the table
) -> None:
    harness = PresenceHarness(
        *([] if external_broker else [A]), external_broker=external_broker, unresponsive=True
    )
    sources = (
        HeartbeatSource(D, clock_error=offset),
        HeartbeatSource(E, clock_error=offset),
        HeartbeatSource(A, clock_error=offset),
    )
    harness.advance(180, *sources)
    assert harness.is_connected(D)
    assert harness.is_connected(E)
    count_before = len(harness.changes)
    assert harness.advance(1200, *sources) == []
    assert harness.interval(D) == MINUTE, "heartbeats of a wrong clock do not count"
    changes = summarize(harness.advance(200, *sources[1:]))
    assert changes == [(D, False, "silent")]
    assert len(harness.changes) == count_before + 1


@pytest.mark.rule("report-48")
@each_row("offset", OFFSETS)
def test_devices_behind_a_measured_clock_connect_at_once(offset: int) -> None:
    harness = PresenceHarness(A)
    harness.clocks.measure_offset(G, NOON, NOON, NOON + offset * SECOND)
    assert summarize(harness.commit_and_collect(temperature(NOON + offset * SECOND))) == [(D, True, "heard")]
    harness = PresenceHarness(A)
    harness.clocks.measure_offset(G, NOON, NOON, NOON + offset * SECOND)
    assert summarize(harness.commit_and_collect(heartbeat(NOON + offset * SECOND))) == [(D, True, "heard")]
    assert harness.commit_and_collect(heartbeat(NOON + offset * SECOND - HOUR, device=E)) == []


@pytest.mark.rule("report-48", "report-49", "rest-51")
@settings(max_examples=examples(40))
@given(jumps=st.lists(st.tuples(st.sampled_from([*OFFSETS, 0]), st.integers(180, 400)), max_size=5))
@each_row("external_broker", [pytest.param(True, id="external"), pytest.param(False, id="embedded")])
def test_a_changed_clock_does_not_disconnect_devices(
    external_broker: bool,  # noqa: FBT001 # a column of the table
    jumps: list[tuple[int, int]],
) -> None:
    """Set the clock of an unresponsive gateway several times."""
    harness = PresenceHarness(
        *([] if external_broker else [A]), external_broker=external_broker, unresponsive=True
    )
    harness.advance(600, HeartbeatSource(D, 30), HeartbeatSource(E, 60), HeartbeatSource(A, 60))
    harness.changes.clear()
    for offset, seconds in jumps:
        harness.advance(
            seconds,
            HeartbeatSource(D, 30, clock_error=offset),
            HeartbeatSource(E, 60, clock_error=offset),
            HeartbeatSource(A, 60, clock_error=offset),
        )
    assert harness.changes == []


@pytest.mark.rule("report-48", "rest-51")
@each_row("drift", [-30, -3, 3, 30])
def test_a_drifting_clock_does_not_disconnect_devices(drift: int) -> None:
    """Drift by this many seconds in ten minutes."""
    harness = PresenceHarness(A, unresponsive=True)
    harness.advance(600, HeartbeatSource(D), HeartbeatSource(E), HeartbeatSource(A))
    harness.changes.clear()
    for turn in range(40):
        offset = turn * drift
        harness.advance(
            600,
            HeartbeatSource(D, clock_error=offset),
            HeartbeatSource(E, clock_error=offset),
            HeartbeatSource(A, clock_error=offset),
        )
    assert harness.changes == []
    assert abs(harness.clocks.shifts.get(G, 0) + 40 * drift * SECOND) <= 61 * SECOND


@pytest.mark.rule("report-48", "rest-51")
@each_row(
    "interval",
    [
        pytest.param(60, id="a minute"),
        pytest.param(600, id="ten minutes"),
        pytest.param(1200, id="twenty minutes"),
    ],
)
def test_a_device_with_a_wrong_clock_does_not_disturb_the_others(interval: int) -> None:
    """Let it report often, and the others, whose clock is right, rarely."""
    harness = PresenceHarness(A, unresponsive=True)
    harness.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    harness.changes.clear()
    sources = (
        HeartbeatSource(D, interval),
        HeartbeatSource(E, interval),
        HeartbeatSource(DEVICE_WITH_WRONG_CLOCK, 5, clock_error=-3600),
    )
    harness.advance(12_000, *sources)
    assert harness.changes == []
    assert harness.clocks.shifts == {}
    assert not harness.is_connected(DEVICE_WITH_WRONG_CLOCK)


@pytest.mark.rule("report-48")
def test_a_single_device_determines_the_clock_of_its_gateway() -> None:
    harness = PresenceHarness(A, unresponsive=True)
    harness.advance(600, HeartbeatSource(D))
    harness.changes.clear()
    assert harness.advance(1200, HeartbeatSource(D, clock_error=7200)) == []
    assert harness.is_connected(D)


def test_a_suspect_clock_does_not_affect_other_gateways() -> None:
    harness = PresenceHarness(A, B)
    harness.advance(300, HeartbeatSource(D), HeartbeatSource(E, gateway=B))
    harness.changes.clear()
    for age in range(2, 100):
        harness.commit(temperature(harness.now - age * MINUTE, gateway=B, device=DEVICE_WITH_WRONG_CLOCK))
        harness.advance(30, HeartbeatSource(D), HeartbeatSource(E, gateway=B))
        assert mac_to_number(A) not in harness.clocks.gateways_to_measure()
    assert harness.changes == []


@pytest.mark.rule("rest-52")
def test_the_interval_is_kept_at_a_gateway_whose_clock_is_hours_behind() -> None:
    harness = PresenceHarness(A, B)
    harness.clocks.measure_offset(mac_to_number(B), NOON, NOON, NOON - 5 * HOUR)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(600, HeartbeatSource(D))
    assert harness.advance(4000, HeartbeatSource(D, 120, gateway=B, clock_error=-5 * 3600)) == []
    assert harness.interval(D) == 2 * MINUTE


@pytest.mark.rule("rest-52")
@each_row("offset", OFFSETS)
def test_a_second_gateway_with_a_wrong_clock_does_not_change_the_interval(offset: int) -> None:
    harness = PresenceHarness(A, B)
    harness.clocks.measure_offset(mac_to_number(B), NOON, NOON, NOON + offset * SECOND)
    harness.advance(1200, HeartbeatSource(D), HeartbeatSource(D, gateway=B, clock_error=offset))
    assert harness.interval(D) == MINUTE
    assert summarize(harness.advance(200)) == [(D, False, "silent")]
