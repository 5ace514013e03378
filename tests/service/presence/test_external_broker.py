"""On another broker a gateway is connected while it was heard within three of its usual intervals."""

from __future__ import annotations

import pytest

from tests.row_tables import each_row
from tests.service.ingest.messages import A, B, D, E, dfu, heartbeat, mac_to_number, temperature
from tests.service.presence.presence_harness import (
    DAY,
    HOUR,
    NOON,
    SECOND,
    STEP,
    HeartbeatSource,
    PresenceHarness,
    summarize,
)


def hearing(*pulses: HeartbeatSource, seconds: int = 600) -> PresenceHarness:
    """A scene in which some have been heard for a while."""
    scene = PresenceHarness(external_broker=True)
    scene.advance(seconds, *pulses)
    scene.changes.clear()
    return scene


@pytest.mark.rule("rest-78")
def test_a_gateway_comes_with_the_first_that_is_heard_through_it() -> None:
    scene = PresenceHarness(external_broker=True)
    came = scene.commit_and_collect(temperature(NOON))
    assert came[0] == (mac_to_number(A), True, NOON, "heard", mac_to_number(A))
    assert summarize(came[1:]) == [(D, True, "gateway")]
    assert scene.tracker.connected_gateway_count == 1


@pytest.mark.rule("rest-78")
def test_whoever_it_brings_keeps_it() -> None:
    scene = hearing(HeartbeatSource(A), HeartbeatSource(D))
    assert scene.advance(1200, HeartbeatSource(D, 150), HeartbeatSource(E, 150)) == [
        (mac_to_number(E), True, NOON + 750 * SECOND, "heard", mac_to_number(A))
    ]
    assert scene.is_connected(A)


@pytest.mark.rule("rest-51", "rest-78")
@each_row("every", [60, 300])
def test_it_goes_after_three_of_its_intervals_and_all_devices_with_it(every: int) -> None:
    devices = [f"c0ffee00{each:04x}" for each in range(20)]
    pulses = [HeartbeatSource(A, every), *(HeartbeatSource(each, 60) for each in devices)]
    scene = hearing(*pulses, seconds=4 * every)
    # The last words come one after the other, that of the gateway itself first.
    scene.commit(heartbeat(scene.now, device=A))
    for each in devices:
        scene.now += 2 * SECOND
        scene.commit_and_collect(heartbeat(scene.now, device=each))
    assert scene.changes == []
    scene.advance(3 * every - STEP)
    gone_alone = [each for each in summarize(scene.changes) if each[2] == "silent"]
    scene.advance(3 * STEP)
    went = summarize(scene.changes)
    assert (A, False, "silent") in went
    assert not any(scene.is_connected(each) for each in [A, *devices])
    if every == 60:
        assert gone_alone == []
        assert sorted(went) == sorted([(A, False, "silent"), *((each, False, "gateway") for each in devices)])


@pytest.mark.rule("rest-78")
def test_it_comes_back_with_those_of_its_devices_that_are_not_silent() -> None:
    scene = hearing(HeartbeatSource(A), HeartbeatSource(D), HeartbeatSource(E, 1200), seconds=4 * 1200)
    scene.advance(200)
    assert sorted(summarize(scene.changes)) == [
        (A, False, "silent"),
        (D, False, "gateway"),
        (E, False, "gateway"),
    ]
    scene.advance(300)
    assert summarize(scene.commit_and_collect(heartbeat(scene.now, device=A))) == [
        (A, True, "heard"),
        (E, True, "gateway"),
    ]
    assert summarize(scene.commit_and_collect(heartbeat(scene.now))) == [(D, True, "heard")]


@pytest.mark.rule("rest-51", "rest-78")
def test_a_device_that_is_silent_behind_a_gateway_that_is_heard_goes_alone() -> None:
    scene = hearing(HeartbeatSource(A), HeartbeatSource(D), HeartbeatSource(E))
    assert summarize(scene.advance(185 + STEP, HeartbeatSource(A), HeartbeatSource(E))) == [
        (D, False, "silent")
    ]


@pytest.mark.rule("rest-51", "rest-78")
def test_a_gateway_that_misses_a_beat_and_goes_on_hides_no_silence() -> None:
    scene = hearing(HeartbeatSource(A), HeartbeatSource(D))
    scene.advance(170)
    scene.commit(heartbeat(scene.now, device=A))
    assert summarize(scene.advance(30, HeartbeatSource(A, 10))) == [(D, False, "silent")]
    assert scene.is_connected(A)


@pytest.mark.rule("report-49", "rest-78")
@each_row("age", [60, 3600, 40 * DAY // SECOND, -60, -3600, -40 * DAY // SECOND])
def test_what_is_old_makes_no_gateway_look_alive(age: int) -> None:
    scene = PresenceHarness(external_broker=True)
    at = NOON - age * SECOND
    for made in (temperature, heartbeat, dfu):
        assert scene.commit_and_collect(made(at)) == []
    assert scene.commit_and_collect(temperature(at), temperature(NOON, seq=2, gateway=B)) == scene.changes
    assert sorted(summarize(scene.changes)) == [(B, True, "heard"), (D, True, "gateway")]


@pytest.mark.rule("rest-78")
def test_a_gateway_whose_radio_alone_is_heard_by_another_is_not_there() -> None:
    scene = hearing(HeartbeatSource(A), HeartbeatSource(B, gateway=B), HeartbeatSource(D, gateway=B))
    scene.advance(300, HeartbeatSource(A), HeartbeatSource(B, gateway=A))
    assert sorted(summarize(scene.changes)) == [(B, False, "silent"), (D, False, "gateway")]
    assert scene.advance(600, HeartbeatSource(A), HeartbeatSource(B, gateway=A)) == []
    assert not scene.is_connected(B)


@pytest.mark.rule("rest-78")
def test_a_device_that_turns_out_to_be_a_gateway_is_one() -> None:
    """Others heard its radio before it brought anything."""
    scene = hearing(HeartbeatSource(A), HeartbeatSource(B, gateway=A))
    assert scene.is_connected(B)
    scene.advance(60, HeartbeatSource(D, 5, gateway=B), HeartbeatSource(A))
    assert scene.tracker.connected_gateway_count == 2
    assert scene.is_connected(D)
    scene.advance(7200, HeartbeatSource(A))
    assert not scene.is_connected(B)


@pytest.mark.rule("rest-51")
def test_a_device_that_another_gateway_hears_stays_when_one_falls_silent() -> None:
    scene = hearing(
        HeartbeatSource(A), HeartbeatSource(B, gateway=B), HeartbeatSource(D), HeartbeatSource(D, gateway=B)
    )
    scene.advance(600, HeartbeatSource(B, gateway=B), HeartbeatSource(D, gateway=B))
    assert summarize(scene.changes) == [(A, False, "silent")]


@pytest.mark.rule("rest-78")
def test_nobody_goes_because_we_slept() -> None:
    scene = hearing(HeartbeatSource(A), HeartbeatSource(D))
    scene.now += 10 * HOUR
    assert scene.collect_changes() == []
    assert scene.advance(600, HeartbeatSource(A), HeartbeatSource(D)) == []
