"""On another broker a gateway is connected while it was heard within three of its usual intervals."""

from __future__ import annotations

import pytest

from tests.service.ingest.messages import A, B, D, E, dfu, heartbeat, number, temperature
from tests.service.presence.scene import DAY, HOUR, NOON, SECOND, STEP, Pulse, Scene, brief
from tests.tables import each_row


def hearing(*pulses: Pulse, seconds: int = 600) -> Scene:
    """A scene in which some have been heard for a while."""
    scene = Scene(by_hearing=True)
    scene.go_on(seconds, *pulses)
    scene.changes.clear()
    return scene


@pytest.mark.rule("rest-78")
def test_a_gateway_comes_with_the_first_that_is_heard_through_it() -> None:
    scene = Scene(by_hearing=True)
    came = scene.see(temperature(NOON))
    assert came[0] == (number(A), True, NOON, "heard", number(A))
    assert brief(came[1:]) == [(D, True, "gateway")]
    assert scene.presence.gateways_connected == 1


@pytest.mark.rule("rest-78")
def test_whoever_it_brings_keeps_it() -> None:
    scene = hearing(Pulse(A), Pulse(D))
    assert scene.go_on(1200, Pulse(D, 150), Pulse(E, 150)) == [
        (number(E), True, NOON + 750 * SECOND, "heard", number(A))
    ]
    assert scene.has(A)


@pytest.mark.rule("rest-51", "rest-78")
@each_row("every", [60, 300])
def test_it_goes_after_three_of_its_intervals_and_all_devices_with_it(every: int) -> None:
    devices = [f"c0ffee00{each:04x}" for each in range(20)]
    pulses = [Pulse(A, every), *(Pulse(each, 60) for each in devices)]
    scene = hearing(*pulses, seconds=4 * every)
    # The last words come one after the other, that of the gateway itself first.
    scene.take(heartbeat(scene.now, device=A))
    for each in devices:
        scene.now += 2 * SECOND
        scene.see(heartbeat(scene.now, device=each))
    assert scene.changes == []
    scene.go_on(3 * every - STEP)
    gone_alone = [each for each in brief(scene.changes) if each[2] == "silent"]
    scene.go_on(3 * STEP)
    went = brief(scene.changes)
    assert (A, False, "silent") in went
    assert not any(scene.has(each) for each in [A, *devices])
    if every == 60:
        assert gone_alone == []
        assert sorted(went) == sorted([(A, False, "silent"), *((each, False, "gateway") for each in devices)])


@pytest.mark.rule("rest-78")
def test_it_comes_back_with_those_of_its_devices_that_are_not_silent() -> None:
    scene = hearing(Pulse(A), Pulse(D), Pulse(E, 1200), seconds=4 * 1200)
    scene.go_on(200)
    assert sorted(brief(scene.changes)) == [
        (A, False, "silent"),
        (D, False, "gateway"),
        (E, False, "gateway"),
    ]
    scene.go_on(300)
    assert brief(scene.see(heartbeat(scene.now, device=A))) == [(A, True, "heard"), (E, True, "gateway")]
    assert brief(scene.see(heartbeat(scene.now))) == [(D, True, "heard")]


@pytest.mark.rule("rest-51", "rest-78")
def test_a_device_that_is_silent_behind_a_gateway_that_is_heard_goes_alone() -> None:
    scene = hearing(Pulse(A), Pulse(D), Pulse(E))
    assert brief(scene.go_on(185 + STEP, Pulse(A), Pulse(E))) == [(D, False, "silent")]


@pytest.mark.rule("rest-51", "rest-78")
def test_a_gateway_that_misses_a_beat_and_goes_on_hides_no_silence() -> None:
    scene = hearing(Pulse(A), Pulse(D))
    scene.go_on(170)
    scene.take(heartbeat(scene.now, device=A))
    assert brief(scene.go_on(30, Pulse(A, 10))) == [(D, False, "silent")]
    assert scene.has(A)


@pytest.mark.rule("report-49", "rest-78")
@each_row("age", [60, 3600, 40 * DAY // SECOND, -60, -3600, -40 * DAY // SECOND])
def test_what_is_old_makes_no_gateway_look_alive(age: int) -> None:
    scene = Scene(by_hearing=True)
    at = NOON - age * SECOND
    for made in (temperature, heartbeat, dfu):
        assert scene.see(made(at)) == []
    assert scene.see(temperature(at), temperature(NOON, seq=2, gateway=B)) == scene.changes
    assert sorted(brief(scene.changes)) == [(B, True, "heard"), (D, True, "gateway")]


@pytest.mark.rule("rest-78")
def test_a_gateway_whose_radio_alone_is_heard_by_another_is_not_there() -> None:
    scene = hearing(Pulse(A), Pulse(B, gateway=B), Pulse(D, gateway=B))
    scene.go_on(300, Pulse(A), Pulse(B, gateway=A))
    assert sorted(brief(scene.changes)) == [(B, False, "silent"), (D, False, "gateway")]
    assert scene.go_on(600, Pulse(A), Pulse(B, gateway=A)) == []
    assert not scene.has(B)


@pytest.mark.rule("rest-78")
def test_a_device_that_turns_out_to_be_a_gateway_is_one() -> None:
    """Others heard its radio before it brought anything."""
    scene = hearing(Pulse(A), Pulse(B, gateway=A))
    assert scene.has(B)
    scene.go_on(60, Pulse(D, 5, gateway=B), Pulse(A))
    assert scene.presence.gateways_connected == 2
    assert scene.has(D)
    scene.go_on(7200, Pulse(A))
    assert not scene.has(B)


@pytest.mark.rule("rest-51")
def test_a_device_that_another_gateway_hears_stays_when_one_falls_silent() -> None:
    scene = hearing(Pulse(A), Pulse(B, gateway=B), Pulse(D), Pulse(D, gateway=B))
    scene.go_on(600, Pulse(B, gateway=B), Pulse(D, gateway=B))
    assert brief(scene.changes) == [(A, False, "silent")]


@pytest.mark.rule("rest-78")
def test_nobody_goes_because_we_slept() -> None:
    scene = hearing(Pulse(A), Pulse(D))
    scene.now += 10 * HOUR
    assert scene.look() == []
    assert scene.go_on(600, Pulse(A), Pulse(D)) == []
