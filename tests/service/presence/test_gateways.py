"""On the embedded broker a gateway is connected while its MQTT connection is, and its devices go with it."""

from __future__ import annotations

import pytest

from tests.service.ingest.messages import A, B, D, E, heartbeat, number, temperature
from tests.service.presence.scene import HOUR, MINUTE, NOON, SECOND, Pulse, Scene, brief

C = "02005e000003"


def populated(*gateways: str, size: int = 5) -> tuple[Scene, list[str]]:
    """Devices that the first of some gateways has heard once: strangers, with an hour of patience."""
    scene = Scene(*gateways)
    devices = [f"c0ffee00{each:04x}" for each in range(size)]
    scene.see(*(heartbeat(NOON, device=each, gateway=gateways[0]) for each in devices))
    scene.changes.clear()
    return scene, devices


@pytest.mark.rule("rest-77")
def test_a_gateway_comes_and_goes_with_its_connection() -> None:
    scene = Scene()
    scene.connect(A)
    (change,) = scene.look()
    assert change == (number(A), True, NOON, "connection", number(A))
    assert scene.presence.gateways_connected == 1
    assert scene.go_on(7200) == [], "it need not say anything"
    scene.disconnect(A)
    (change,) = scene.look()
    assert change == (number(A), False, scene.now, "connection", number(A))
    assert scene.presence.gateways_connected == 0


@pytest.mark.rule("rest-77")
def test_one_that_connects_anew_between_two_looks_was_there_all_the_time() -> None:
    scene, _ = populated(A)
    for _ in range(5):
        scene.disconnect(A)
        scene.connect(A)
        assert scene.look() == []


@pytest.mark.rule("rest-51", "rest-77", "rest-191")
def test_its_devices_go_with_it_and_come_back_with_it_at_once() -> None:
    scene, devices = populated(A)
    scene.disconnect(A)
    went = scene.look()
    assert brief(went)[0] == (A, False, "connection")
    assert sorted(brief(went)[1:]) == [(each, False, "gateway") for each in devices]
    assert {each.gateway for each in went} == {number(A)}
    scene.go_on(3000)
    scene.connect(A)
    came = scene.look()
    assert brief(came)[0] == (A, True, "connection")
    assert sorted(brief(came)[1:]) == [(each, True, "gateway") for each in devices]
    assert {each.gateway for each in came} == {number(A)}


@pytest.mark.rule("rest-51", "rest-77")
def test_those_that_would_be_silent_by_then_stay_away_until_they_are_heard() -> None:
    scene, _ = populated(A, size=1)
    scene.go_on(600, Pulse(D), Pulse(E, 300))
    scene.disconnect(A)
    scene.look()
    scene.go_on(170)
    scene.connect(A)
    scene.look()
    assert (scene.has(D), scene.has(E)) == (True, True)
    scene.disconnect(A)
    scene.look()
    scene.go_on(20)
    scene.connect(A)
    scene.look()
    assert (scene.has(D), scene.has(E)) == (False, True)
    assert brief(scene.see(temperature(scene.now))) == [(D, True, "heard")]


@pytest.mark.rule("rest-51")
def test_a_device_that_returns_with_its_gateway_has_not_been_heard_by_that() -> None:
    scene, (device,) = populated(A, size=1)
    for _ in range(5):
        scene.go_on(600)
        scene.disconnect(A)
        scene.look()
        scene.connect(A)
        scene.look()
    assert scene.has(device)
    assert brief(scene.go_on(610)) == [(device, False, "silent")]


@pytest.mark.rule("rest-51", "rest-77", "rest-191")
def test_a_device_that_another_gateway_hears_stays() -> None:
    scene, _ = populated(A, B, size=0)
    scene.see(heartbeat(NOON, device=D), heartbeat(NOON + 1, device=D, gateway=B), heartbeat(NOON, device=E))
    scene.see(heartbeat(NOON + 2, device=D))
    scene.disconnect(A)
    assert brief(scene.look()) == [(A, False, "connection"), (E, False, "gateway")]
    scene.disconnect(B)
    assert brief(scene.look()) == [(B, False, "connection"), (D, False, "gateway")]
    scene.connect(A)
    assert brief(scene.look()) == [(A, True, "connection"), (E, True, "gateway")]
    scene.connect(B)
    assert brief(scene.look()) == [(B, True, "connection"), (D, True, "gateway")]


@pytest.mark.rule("rest-51")
def test_a_device_whose_both_gateways_go_at_once_goes_once() -> None:
    scene, _ = populated(A, B, size=0)
    scene.see(heartbeat(NOON), heartbeat(NOON + 1, gateway=B))
    scene.disconnect(A, B)
    went = brief(scene.look())
    assert len(went) == 3
    assert (D, False, "gateway") in went


@pytest.mark.rule("rest-51")
def test_another_gateway_that_heard_it_long_ago_does_not_keep_it() -> None:
    scene, _ = populated(A, B, size=0)
    scene.see(heartbeat(NOON, gateway=B))
    scene.go_on(5)
    scene.go_on(1800, Pulse(D))
    scene.disconnect(A)
    assert brief(scene.look()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-51", "rest-52")
@pytest.mark.parametrize("gateways", [(A, B), (A, B, C)])
def test_a_device_that_changes_gateways_every_minute_never_flips(gateways: tuple[str, ...]) -> None:
    scene = Scene(*gateways)
    for minute in range(120):
        scene.take(heartbeat(scene.now, gateway=gateways[minute % len(gateways)]))
        scene.go_on(60)
    assert brief(scene.changes) == [(D, True, "heard")]
    assert scene.interval(D) == MINUTE


@pytest.mark.rule("rest-51")
def test_one_that_changes_gateways_while_these_come_and_go_stays_as_long_as_one_is_there() -> None:
    scene = Scene(A, B)
    scene.take(heartbeat(NOON, gateway=B))
    scene.see(heartbeat(NOON + 1, gateway=A))
    scene.changes.clear()
    for minute in range(20):
        here, away = (A, B) if minute % 2 else (B, A)
        scene.take(heartbeat(scene.now, gateway=away), heartbeat(scene.now + 1, gateway=here))
        scene.disconnect(away)
        scene.go_on(30)
        scene.connect(away)
        scene.go_on(30)
    assert D not in {each for each, _, _ in brief(scene.changes)}


@pytest.mark.rule("rest-51", "rest-77")
def test_what_a_gateway_that_is_gone_had_still_sent_makes_no_device_look_connected() -> None:
    scene, (device,) = populated(A, size=1)
    scene.disconnect(A)
    scene.look()
    scene.now += 2 * SECOND
    assert scene.see(temperature(scene.now, device=device), temperature(scene.now, device=E)) == []
    scene.connect(A)
    came = brief(scene.look())
    assert came[0] == (A, True, "connection")
    assert sorted(came[1:]) == [(device, True, "gateway"), (E, True, "gateway")]


@pytest.mark.rule("rest-51", "rest-77")
def test_a_device_that_is_new_when_its_gateway_goes_is_not_left_behind() -> None:
    """Both happen between two looks."""
    scene = Scene(A)
    scene.take(heartbeat(NOON))
    scene.disconnect(A)
    assert brief(scene.look()) == [(A, False, "connection")]
    assert not scene.has(D)


@pytest.mark.rule("rest-77")
def test_a_gateway_that_is_new_and_reports_of_itself_comes_once_by_its_connection() -> None:
    scene = Scene()
    assert scene.see(heartbeat(NOON, device=A), heartbeat(NOON)) == [], "nobody knows its connection yet"
    scene.connect(A)
    scene.take(heartbeat(NOON, device=A))
    came = brief(scene.look())
    assert came[0] == (A, True, "connection")
    assert came[1:] == [(D, True, "gateway")]


@pytest.mark.rule("rest-77")
def test_a_gateway_that_others_hear_but_has_no_connection_is_not_connected() -> None:
    scene = Scene(A, B)
    scene.disconnect(B)
    scene.look()
    scene.changes.clear()
    assert scene.go_on(600, Pulse(B, gateway=A)) == []
    assert not scene.has(B)


@pytest.mark.rule("rest-77")
def test_a_gateway_behind_another_does_not_go_with_it() -> None:
    scene = Scene(A, B)
    scene.go_on(600, Pulse(B, gateway=A))
    scene.changes.clear()
    scene.disconnect(A)
    assert brief(scene.look()) == [(A, False, "connection")]
    assert scene.go_on(2 * HOUR // SECOND) == []


def test_a_device_that_is_silent_says_so_even_when_its_gateway_is_there() -> None:
    scene, devices = populated(A)
    scene.go_on(3700)
    assert sorted(brief(scene.changes)) == [(each, False, "silent") for each in devices]


@pytest.mark.rule("rest-51")
def test_one_that_returns_with_its_gateway_at_the_last_moment_is_missed_in_time() -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.go_on(600, Pulse(D))
    scene.disconnect(A)
    scene.go_on(170)
    scene.connect(A)
    scene.look()
    assert scene.has(D)
    assert brief(scene.go_on(20)) == [(D, False, "silent")]


def test_of_very_many_gateways_that_go_and_come_at_once_some_do_in_each_look() -> None:
    """The event loop does not wait for a whole fleet. Each goes with all of its devices."""
    names = [f"02005e{each:06x}" for each in range(1, 31)]
    scene = Scene(*names)
    devices = {name: [f"0a{name[6:]}{each:04x}" for each in range(800)] for name in names}
    for name in names:
        scene.take(*(heartbeat(scene.now, device=each, gateway=name) for each in devices[name]))
    while scene.look():
        pass
    assert all(scene.has(each) for name in names for each in devices[name])
    scene.disconnect(*names)
    gone = []
    while new := scene.look():
        gone.append(len(new))
        scene.call_roll()
    assert sum(gone) == 30 * 801
    assert len(gone) > 1
    assert all(count % 801 == 0 for count in gone)
    scene.connect(*names)
    come = 0
    while new := scene.look():
        come += len(new)
        scene.call_roll()
    assert come == 30 * 801


def test_a_device_that_turns_out_to_be_a_gateway_comes_once() -> None:
    scene = Scene()
    scene.take(heartbeat(NOON, device=B, gateway=A))
    scene.connect(A, B)
    assert sorted(brief(scene.look())) == [(A, True, "connection"), (B, True, "connection")]


def test_a_device_that_turns_out_to_be_a_gateway_does_not_go_with_the_one_that_heard_it() -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON, device=B, gateway=A))
    scene.disconnect(A)
    scene.connect(B)
    assert sorted(brief(scene.look())) == [(A, False, "connection"), (B, True, "connection")]
