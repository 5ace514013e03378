"""Clocks of gateways that are wrong: hours off, jumping, drifting; measured, or learned from reports."""

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
W = "c0ffee0000c1"
"""A device with a clock of its own."""

OFFS = [-400 * 86400, -30 * 3600, -7200, -61, 61, 599, 601, 5 * 3600, 400 * 86400]
"""Seconds that a clock may be ahead."""


# --- Clocks alone ---


def silent() -> GatewayClocks:
    """The clocks of gateways of which G never answers."""
    clocks = GatewayClocks()
    clocks.mark_unresponsive(G)
    return clocks


@pytest.mark.rule("report-48")
@each_row("off", OFFS)
def test_a_measured_clock_is_corrected(off: int) -> None:
    clocks = GatewayClocks()
    clocks.measure(G, NOON - 400, NOON + 600, NOON + 100 + off * SECOND)
    assert clocks.offsets == {G: off * SECOND}
    assert clocks.shifts == {G: -off * SECOND}


@pytest.mark.rule("report-48")
def test_a_report_is_fresh_for_a_minute() -> None:
    for age, fresh in [(0, True), (MINUTE - 1, True), (MINUTE, False), (1 - MINUTE, True), (-MINUTE, False)]:
        assert GatewayClocks().is_fresh(G, NOON - age, NOON) is fresh


def test_a_clock_that_is_nearly_right_is_known_and_left_alone() -> None:
    clocks = GatewayClocks()
    for minute, (ahead, shifts) in enumerate(
        [(5 * SECOND, {}), (-5 * SECOND - 1, {G: 5 * SECOND + 1}), (1, {})]
    ):
        now = NOON + minute * MINUTE
        clocks.measure(G, now, now, now + ahead)
        assert (clocks.offsets, clocks.shifts) == ({G: ahead}, shifts)


@pytest.mark.rule("report-48")
def test_the_most_exact_answer_counts_until_one_contradicts_it() -> None:
    """Rows: when the request left and was answered, the time told, and the offset afterwards, in seconds."""
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
    found = []
    for name, sent, received, time, _ in rows:
        clocks.measure(G, *(NOON + round(each * SECOND) for each in (sent, received, time)))
        found.append((name, clocks.offsets[G]))
    assert found == [(name, round(offset * SECOND)) for name, *_, offset in rows]


def test_each_gateway_has_a_clock_of_its_own() -> None:
    clocks = GatewayClocks()
    clocks.measure(G, NOON, NOON, NOON - HOUR)
    assert not clocks.is_fresh(mac_to_number(B), NOON - HOUR, NOON)
    assert clocks.shifts == {G: HOUR}
    assert clocks.gateways_to_measure() == {mac_to_number(B)}


def test_a_gateway_is_in_doubt_until_something_of_it_is_fresh_or_it_is_measured() -> None:
    clocks = GatewayClocks()
    assert clocks.gateways_to_measure() == frozenset()
    clocks.is_fresh(G, NOON - HOUR, NOON)
    assert clocks.gateways_to_measure() == {G}
    clocks.is_fresh(G, NOON, NOON)
    assert clocks.gateways_to_measure() == frozenset()
    assert clocks.is_fresh(G, NOON + 6 * SECOND, NOON), "it is fresh, but comes from the future"
    assert clocks.gateways_to_measure() == {G}
    clocks.measure(G, NOON, NOON, NOON)
    assert clocks.gateways_to_measure() == frozenset()


@pytest.mark.rule("report-48", "report-49")
def test_reports_never_set_the_offset_of_a_gateway_that_answers() -> None:
    """A gateway replays, at the pace at which they were made, reports of yesterday; its clock is right."""
    clocks = GatewayClocks()
    clocks.measure(G, NOON, NOON, NOON)
    clocks.mark_unresponsive(G)  # of one request later on
    for minute in range(120):
        now = NOON + minute * MINUTE
        assert not clocks.is_fresh(G, now - 24 * HOUR, now)
    assert clocks.offsets == {G: 0}
    assert clocks.gateways_to_measure() == {G}, "so that it is measured again"


@pytest.mark.rule("report-48")
def test_what_was_known_before_a_start_counts_until_it_is_measured_again() -> None:
    clocks = GatewayClocks()
    clocks.restore({G: -HOUR, mac_to_number(B): 30})
    assert (clocks.shifts, clocks.offsets) == ({G: HOUR}, {G: -HOUR, mac_to_number(B): 30})
    clocks.measure(G, NOON, NOON + 10 * SECOND, NOON - HOUR)
    assert clocks.offsets[G] == -HOUR - 5 * SECOND
    clocks.remove({G})
    assert (clocks.shifts, clocks.offsets) == ({}, {mac_to_number(B): 30})


@pytest.mark.rule("report-48")
def test_a_wrong_clock_is_logged_once_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clocks = GatewayClocks()
    told = []
    for turn, ahead in enumerate([0, 59, 6 * 3600, 6 * 3600 + 30, -6 * 3600, -6 * 3600, 2, 3]):
        now = NOON + turn * HOUR
        caplog.clear()
        clocks.measure(G, now, now, now + ahead * SECOND)
        told.append([record.levelname for record in caplog.records])
    assert told == [[], [], ["WARNING"], [], ["WARNING"], [], ["INFO"], []]


@pytest.mark.rule("report-48")
def test_a_minute_in_which_all_agree_makes_it_the_clock() -> None:
    clocks = silent()
    for second in range(0, 60, 5):
        now = NOON + second * SECOND
        assert not clocks.is_fresh(G, now - HOUR - second % 20 * SECOND, now)
        assert clocks.shifts == {}
    assert not clocks.is_fresh(G, NOON + MINUTE - HOUR - 3 * SECOND, NOON + MINUTE)
    assert clocks.shifts == {G: HOUR}


@pytest.mark.rule("report-49")
@given(ages=st.lists(st.integers(MINUTE, 10 * HOUR), min_size=2, max_size=30), gap=st.integers(20, 59))
def test_a_fresh_report_in_every_minute_proves_the_clock(ages: list[int], gap: int) -> None:
    clocks = silent()
    now = NOON
    for age in ages:
        now += gap * SECOND
        assert clocks.is_fresh(G, now, now)
        assert not clocks.is_fresh(G, now - age, now)
        assert not clocks.is_fresh(G, now + gap * SECOND // 2 - age, now + gap * SECOND // 2)
    assert clocks.offsets == {}


@pytest.mark.rule("report-48")
def test_one_of_several_devices_is_not_believed_alone_for_half_an_hour() -> None:
    clocks = silent()
    for minute in range(30):
        assert not clocks.is_fresh(G, NOON + (minute - 60) * MINUTE, NOON + minute * MINUTE, 7)
    assert clocks.shifts == {}
    clocks.is_fresh(G, NOON - 30 * MINUTE, NOON + 30 * MINUTE, 7)
    assert clocks.shifts == {G: HOUR}


@pytest.mark.rule("report-48")
@each_row("second", [pytest.param(8, id="another device"), pytest.param(0, id="the gateway itself")])
def test_two_of_them_are(second: int) -> None:
    clocks = silent()
    for now, witness in [(NOON, 7), (NOON + 30 * SECOND, second), (NOON + MINUTE, 7)]:
        assert clocks.shifts == {}
        clocks.is_fresh(G, now - HOUR, now, witness)
    assert clocks.shifts == {G: HOUR}


@pytest.mark.rule("report-48")
def test_an_offset_is_proved_for_one_connection() -> None:
    connection = 1
    clocks = GatewayClocks(lambda _gateway: connection)
    clocks.restore({G: 6 * HOUR})
    found = [clocks.is_confirmed(G)]
    clocks.measure(G, NOON, NOON, NOON + 6 * HOUR)
    found.append(clocks.is_confirmed(G))
    connection = 2
    found.append(clocks.is_confirmed(G))
    assert found == [False, True, False]


@pytest.mark.rule("report-48")
def test_on_another_broker_an_offset_is_proved_until_its_gateway_is_not_heard_any_more() -> None:
    scene = PresenceHarness(external_broker=True)
    scene.clocks.measure(G, NOON, NOON, NOON + 6 * HOUR)
    pulses = HeartbeatSource(A, clock_error=6 * 3600), HeartbeatSource(D, clock_error=6 * 3600)
    scene.advance(600, *pulses)
    found = [scene.clocks.is_confirmed(G)]
    scene.advance(600)
    scene.advance(60, *pulses)
    found.append(scene.clocks.is_confirmed(G))
    assert scene.clocks.gateways_to_measure() == {G}, "so that it is asked at once"
    scene.clocks.measure(G, scene.now, scene.now, scene.now + 6 * HOUR)
    scene.tracker.pause_detection(scene.now)  # what waited at the broker meanwhile is corrected as before
    found.append(scene.clocks.is_confirmed(G))
    assert (found, scene.clocks.gateways_to_measure()) == ([True, False, True], frozenset())


@pytest.mark.rule("report-48")
@each_row("change", ["away", "our clock", "released"])
def test_reports_before_and_after_a_change_do_not_agree(change: str) -> None:
    clocks = GatewayClocks()
    clocks.restore({G: 6 * HOUR})
    clocks.mark_unresponsive(G)
    clocks.check_offset(G, NOON, holds=False)
    match change:
        case "away":
            clocks.reset_confirmation(G)
        case "our clock":
            clocks.adjust_local_clock(0)
        case _:
            clocks.remove([G])
            clocks.restore({G: 6 * HOUR})
            clocks.mark_unresponsive(G)
    clocks.check_offset(G, NOON + HOUR, holds=False)
    assert not clocks.is_confirmed(G)
    clocks.check_offset(G, NOON + HOUR + 60 * SECOND, holds=False)
    assert clocks.is_confirmed(G)


@pytest.mark.rule("report-48")
@each_row("ahead", [6, -6])
@each_row("is_set_right", [False, True])
def test_reports_prove_the_clock_of_a_gateway_that_never_answers_when_they_agree_for_a_minute(
    ahead: int,
    is_set_right: bool,  # noqa: FBT001 # a parameter
) -> None:
    """One that looks fresh by the other clock was replayed. In the meantime all that are fresh count."""
    known, right = {G: -ahead * HOUR}, dict[int, int]()
    theirs, other = (0, ahead * HOUR) if is_set_right else (ahead * HOUR, 0)
    scene = PresenceHarness(A, unresponsive=True)
    scene.clocks.restore({G: ahead * HOUR})
    found = []
    for seconds, offs in [
        (0, [theirs]),
        (40, [theirs, other]),  # in one batch
        (80, [theirs]),
        (120, [other]),  # by itself
        (160, [theirs]),
        (190, [-HOUR]),  # late, and tells nothing
        (220, [theirs]),
    ]:
        scene.now = NOON + seconds * SECOND
        scene.commit_and_collect(*(heartbeat(scene.now + off) for off in offs))
        found.append((scene.clocks.is_confirmed(G), dict(scene.clocks.shifts), scene.is_connected(D)))
    assert found == [(False, known, True)] * 6 + [(True, right if is_set_right else known, True)]


# --- What becomes of devices ---


@pytest.mark.rule("report-48", "rest-51")
@each_row("off", OFFS)
@each_row("by_hearing", [pytest.param(True, id="another broker"), pytest.param(False, id="embedded")])
def test_behind_a_clock_that_is_off_devices_are_connected_within_two_minutes(
    off: int,
    by_hearing: bool,  # noqa: FBT001 # a parameter
) -> None:
    scene = PresenceHarness(*([] if by_hearing else [A]), external_broker=by_hearing, unresponsive=True)
    pulses = (
        HeartbeatSource(D, clock_error=off),
        HeartbeatSource(E, clock_error=off),
        HeartbeatSource(A, clock_error=off),
    )
    scene.advance(180, *pulses)
    assert scene.is_connected(D)
    assert scene.is_connected(E)
    before = len(scene.changes)
    assert scene.advance(1200, *pulses) == []
    assert scene.interval(D) == MINUTE, "heartbeats of a wrong clock count as well"
    gone = summarize(scene.advance(200, *pulses[1:]))
    assert gone == [(D, False, "silent")]
    assert len(scene.changes) == before + 1


@pytest.mark.rule("report-48")
@each_row("off", OFFS)
def test_behind_a_clock_that_is_measured_devices_are_connected_at_once(off: int) -> None:
    scene = PresenceHarness(A)
    scene.clocks.measure(G, NOON, NOON, NOON + off * SECOND)
    assert summarize(scene.commit_and_collect(temperature(NOON + off * SECOND))) == [(D, True, "heard")]
    scene = PresenceHarness(A)
    scene.clocks.measure(G, NOON, NOON, NOON + off * SECOND)
    assert summarize(scene.commit_and_collect(heartbeat(NOON + off * SECOND))) == [(D, True, "heard")]
    assert scene.commit_and_collect(heartbeat(NOON + off * SECOND - HOUR, device=E)) == []


@pytest.mark.rule("report-48", "report-49", "rest-51")
@settings(max_examples=examples(40))
@given(jumps=st.lists(st.tuples(st.sampled_from([*OFFS, 0]), st.integers(180, 400)), max_size=5))
@each_row("by_hearing", [pytest.param(True, id="another broker"), pytest.param(False, id="embedded")])
def test_nobody_flips_because_a_clock_was_set(
    by_hearing: bool,  # noqa: FBT001 # a parameter
    jumps: list[tuple[int, int]],
) -> None:
    """However it jumps, and though the gateway never answers what its clock says."""
    scene = PresenceHarness(*([] if by_hearing else [A]), external_broker=by_hearing, unresponsive=True)
    scene.advance(600, HeartbeatSource(D, 30), HeartbeatSource(E, 60), HeartbeatSource(A, 60))
    scene.changes.clear()
    for off, seconds in jumps:
        scene.advance(
            seconds,
            HeartbeatSource(D, 30, clock_error=off),
            HeartbeatSource(E, 60, clock_error=off),
            HeartbeatSource(A, 60, clock_error=off),
        )
    assert scene.changes == []


@pytest.mark.rule("report-48", "rest-51")
@each_row("drift", [-30, -3, 3, 30])
def test_nobody_flips_because_a_clock_drifts(drift: int) -> None:
    """By so many seconds in ten minutes."""
    scene = PresenceHarness(A, unresponsive=True)
    scene.advance(600, HeartbeatSource(D), HeartbeatSource(E), HeartbeatSource(A))
    scene.changes.clear()
    for turn in range(100):
        off = turn * drift
        scene.advance(
            600,
            HeartbeatSource(D, clock_error=off),
            HeartbeatSource(E, clock_error=off),
            HeartbeatSource(A, clock_error=off),
        )
    assert scene.changes == []
    assert abs(scene.clocks.shifts.get(G, 0) + 100 * drift * SECOND) <= 61 * SECOND


@pytest.mark.rule("report-48", "rest-51")
@each_row(
    "quiet",
    [
        pytest.param(60, id="a minute"),
        pytest.param(600, id="ten minutes"),
        pytest.param(1200, id="twenty minutes"),
    ],
)
def test_a_device_with_a_wrong_clock_does_not_disturb_the_others(quiet: int) -> None:
    """It speaks often, and the others, whose clock is right, only now and then."""
    scene = PresenceHarness(A, unresponsive=True)
    scene.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    scene.changes.clear()
    pulses = HeartbeatSource(D, quiet), HeartbeatSource(E, quiet), HeartbeatSource(W, 5, clock_error=-3600)
    scene.advance(12_000, *pulses)
    assert scene.changes == []
    assert scene.clocks.shifts == {}
    assert not scene.is_connected(W)


@pytest.mark.rule("report-48")
def test_the_only_device_behind_a_gateway_tells_the_time_there() -> None:
    scene = PresenceHarness(A, unresponsive=True)
    scene.advance(600, HeartbeatSource(D))
    scene.changes.clear()
    assert scene.advance(1200, HeartbeatSource(D, clock_error=7200)) == []
    assert scene.is_connected(D)


def test_a_gateway_of_which_nothing_is_right_slows_nobody_down_nor_is_anybody_else_doubted() -> None:
    scene = PresenceHarness(A, B)
    scene.advance(300, HeartbeatSource(D), HeartbeatSource(E, gateway=B))
    scene.changes.clear()
    for age in range(2, 100):
        scene.commit(temperature(scene.now - age * MINUTE, gateway=B, device=W))
        scene.advance(30, HeartbeatSource(D), HeartbeatSource(E, gateway=B))
        assert mac_to_number(A) not in scene.clocks.gateways_to_measure()
    assert scene.changes == []


@pytest.mark.rule("rest-52")
def test_the_rhythm_survives_a_change_to_a_gateway_whose_clock_is_hours_behind() -> None:
    scene = PresenceHarness(A, B)
    scene.clocks.measure(mac_to_number(B), NOON, NOON, NOON - 5 * HOUR)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(600, HeartbeatSource(D))
    assert scene.advance(4000, HeartbeatSource(D, 120, gateway=B, clock_error=-5 * 3600)) == []
    assert scene.interval(D) == 2 * MINUTE


@pytest.mark.rule("rest-52")
@each_row("off", OFFS)
def test_two_gateways_of_which_one_has_a_wrong_clock_do_not_disturb_the_rhythm(off: int) -> None:
    scene = PresenceHarness(A, B)
    scene.clocks.measure(mac_to_number(B), NOON, NOON, NOON + off * SECOND)
    scene.advance(1200, HeartbeatSource(D), HeartbeatSource(D, gateway=B, clock_error=off))
    assert scene.interval(D) == MINUTE
    assert summarize(scene.advance(200)) == [(D, False, "silent")]
