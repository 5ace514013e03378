"""On the embedded broker a gateway is connected while its MQTT connection is, and its devices go with it."""

from __future__ import annotations

import pytest

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

C = "02005e000003"


def populated(*gateways: str, size: int = 5) -> tuple[PresenceHarness, list[str]]:
    """Devices that the first of some gateways has heard once: strangers, with an hour of patience."""
    scene = PresenceHarness(*gateways)
    devices = [f"c0ffee00{each:04x}" for each in range(size)]
    scene.commit_and_collect(*(heartbeat(NOON, device=each, gateway=gateways[0]) for each in devices))
    scene.changes.clear()
    return scene, devices


@pytest.mark.rule("rest-77")
def test_a_gateway_comes_and_goes_with_its_connection() -> None:
    scene = PresenceHarness()
    scene.connect(A)
    (change,) = scene.collect_changes()
    assert change == (mac_to_number(A), True, NOON, "connection", mac_to_number(A))
    assert scene.tracker.connected_gateway_count == 1
    assert scene.advance(7200) == [], "it need not say anything"
    scene.disconnect(A)
    (change,) = scene.collect_changes()
    assert change == (mac_to_number(A), False, scene.now, "connection", mac_to_number(A))
    assert scene.tracker.connected_gateway_count == 0


@pytest.mark.rule("rest-77")
def test_one_that_connects_anew_between_two_looks_was_there_all_the_time() -> None:
    scene, _ = populated(A)
    for _ in range(5):
        scene.disconnect(A)
        scene.connect(A)
        assert scene.collect_changes() == []


@pytest.mark.rule("rest-51", "rest-77", "rest-191")
def test_its_devices_go_with_it_and_come_back_with_it_at_once() -> None:
    scene, devices = populated(A)
    scene.disconnect(A)
    went = scene.collect_changes()
    assert summarize(went)[0] == (A, False, "connection")
    assert sorted(summarize(went)[1:]) == [(each, False, "gateway") for each in devices]
    assert {each.gateway for each in went} == {mac_to_number(A)}
    scene.advance(3000)
    scene.connect(A)
    came = scene.collect_changes()
    assert summarize(came)[0] == (A, True, "connection")
    assert sorted(summarize(came)[1:]) == [(each, True, "gateway") for each in devices]
    assert {each.gateway for each in came} == {mac_to_number(A)}


@pytest.mark.rule("rest-51", "rest-77")
def test_those_that_would_be_silent_by_then_stay_away_until_they_are_heard() -> None:
    scene, _ = populated(A, size=1)
    scene.advance(600, HeartbeatSource(D), HeartbeatSource(E, 300))
    scene.disconnect(A)
    scene.collect_changes()
    scene.advance(170)
    scene.connect(A)
    scene.collect_changes()
    assert (scene.is_connected(D), scene.is_connected(E)) == (True, True)
    scene.disconnect(A)
    scene.collect_changes()
    scene.advance(20)
    scene.connect(A)
    scene.collect_changes()
    assert (scene.is_connected(D), scene.is_connected(E)) == (False, True)
    assert summarize(scene.commit_and_collect(temperature(scene.now))) == [(D, True, "heard")]


@pytest.mark.rule("rest-51")
def test_a_device_that_returns_with_its_gateway_has_not_been_heard_by_that() -> None:
    scene, (device,) = populated(A, size=1)
    for _ in range(5):
        scene.advance(600)
        scene.disconnect(A)
        scene.collect_changes()
        scene.connect(A)
        scene.collect_changes()
    assert scene.is_connected(device)
    assert summarize(scene.advance(610)) == [(device, False, "silent")]


@pytest.mark.rule("rest-51", "rest-77", "rest-191")
def test_a_device_that_another_gateway_hears_stays() -> None:
    scene, _ = populated(A, B, size=0)
    scene.commit_and_collect(
        heartbeat(NOON, device=D), heartbeat(NOON + 1, device=D, gateway=B), heartbeat(NOON, device=E)
    )
    scene.commit_and_collect(heartbeat(NOON + 2, device=D))
    scene.disconnect(A)
    assert summarize(scene.collect_changes()) == [(A, False, "connection"), (E, False, "gateway")]
    scene.disconnect(B)
    assert summarize(scene.collect_changes()) == [(B, False, "connection"), (D, False, "gateway")]
    scene.connect(A)
    assert summarize(scene.collect_changes()) == [(A, True, "connection"), (E, True, "gateway")]
    scene.connect(B)
    assert summarize(scene.collect_changes()) == [(B, True, "connection"), (D, True, "gateway")]


@pytest.mark.rule("rest-51")
def test_a_device_whose_both_gateways_go_at_once_goes_once() -> None:
    scene, _ = populated(A, B, size=0)
    scene.commit_and_collect(heartbeat(NOON), heartbeat(NOON + 1, gateway=B))
    scene.disconnect(A, B)
    went = summarize(scene.collect_changes())
    assert len(went) == 3
    assert (D, False, "gateway") in went


@pytest.mark.rule("rest-51")
def test_another_gateway_that_heard_it_long_ago_does_not_keep_it() -> None:
    scene, _ = populated(A, B, size=0)
    scene.commit_and_collect(heartbeat(NOON, gateway=B))
    scene.advance(5)
    scene.advance(1800, HeartbeatSource(D))
    scene.disconnect(A)
    assert summarize(scene.collect_changes()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-51", "rest-52")
@pytest.mark.parametrize("gateways", [(A, B), (A, B, C)])
def test_a_device_that_changes_gateways_every_minute_never_flips(gateways: tuple[str, ...]) -> None:
    scene = PresenceHarness(*gateways)
    for minute in range(120):
        scene.commit(heartbeat(scene.now, gateway=gateways[minute % len(gateways)]))
        scene.advance(60)
    assert summarize(scene.changes) == [(D, True, "heard")]
    assert scene.interval(D) == MINUTE


@pytest.mark.rule("rest-51")
def test_one_that_changes_gateways_while_these_come_and_go_stays_as_long_as_one_is_there() -> None:
    scene = PresenceHarness(A, B)
    scene.commit(heartbeat(NOON, gateway=B))
    scene.commit_and_collect(heartbeat(NOON + 1, gateway=A))
    scene.changes.clear()
    for minute in range(20):
        here, away = (A, B) if minute % 2 else (B, A)
        scene.commit(heartbeat(scene.now, gateway=away), heartbeat(scene.now + 1, gateway=here))
        scene.disconnect(away)
        scene.advance(30)
        scene.connect(away)
        scene.advance(30)
    assert D not in {each for each, _, _ in summarize(scene.changes)}


@pytest.mark.rule("rest-51", "rest-77")
def test_what_a_gateway_that_is_gone_had_still_sent_makes_no_device_look_connected() -> None:
    scene, (device,) = populated(A, size=1)
    scene.disconnect(A)
    scene.collect_changes()
    scene.now += 2 * SECOND
    assert (
        scene.commit_and_collect(temperature(scene.now, device=device), temperature(scene.now, device=E))
        == []
    )
    scene.connect(A)
    came = summarize(scene.collect_changes())
    assert came[0] == (A, True, "connection")
    assert sorted(came[1:]) == [(device, True, "gateway"), (E, True, "gateway")]


@pytest.mark.rule("rest-51", "rest-77")
def test_a_device_that_is_new_when_its_gateway_goes_is_not_left_behind() -> None:
    """Both happen between two looks."""
    scene = PresenceHarness(A)
    scene.commit(heartbeat(NOON))
    scene.disconnect(A)
    assert summarize(scene.collect_changes()) == [(A, False, "connection")]
    assert not scene.is_connected(D)


@pytest.mark.rule("rest-77")
def test_a_gateway_that_is_new_and_reports_of_itself_comes_once_by_its_connection() -> None:
    scene = PresenceHarness()
    assert scene.commit_and_collect(heartbeat(NOON, device=A), heartbeat(NOON)) == [], (
        "nobody knows its connection yet"
    )
    scene.connect(A)
    scene.commit(heartbeat(NOON, device=A))
    came = summarize(scene.collect_changes())
    assert came[0] == (A, True, "connection")
    assert came[1:] == [(D, True, "gateway")]


@pytest.mark.rule("rest-77")
def test_a_gateway_that_others_hear_but_has_no_connection_is_not_connected() -> None:
    scene = PresenceHarness(A, B)
    scene.disconnect(B)
    scene.collect_changes()
    scene.changes.clear()
    assert scene.advance(600, HeartbeatSource(B, gateway=A)) == []
    assert not scene.is_connected(B)


@pytest.mark.rule("rest-77")
def test_a_gateway_behind_another_does_not_go_with_it() -> None:
    scene = PresenceHarness(A, B)
    scene.advance(600, HeartbeatSource(B, gateway=A))
    scene.changes.clear()
    scene.disconnect(A)
    assert summarize(scene.collect_changes()) == [(A, False, "connection")]
    assert scene.advance(2 * HOUR // SECOND) == []


def test_a_device_that_is_silent_says_so_even_when_its_gateway_is_there() -> None:
    scene, devices = populated(A)
    scene.advance(3700)
    assert sorted(summarize(scene.changes)) == [(each, False, "silent") for each in devices]


@pytest.mark.rule("rest-51")
def test_one_that_returns_with_its_gateway_at_the_last_moment_is_missed_in_time() -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(600, HeartbeatSource(D))
    scene.disconnect(A)
    scene.advance(170)
    scene.connect(A)
    scene.collect_changes()
    assert scene.is_connected(D)
    assert summarize(scene.advance(20)) == [(D, False, "silent")]


def test_of_very_many_gateways_that_go_and_come_at_once_some_do_in_each_look() -> None:
    """The event loop does not wait for a whole fleet. Each goes with all of its devices."""
    names = [f"02005e{each:06x}" for each in range(1, 31)]
    scene = PresenceHarness(*names)
    devices = {name: [f"0a{name[6:]}{each:04x}" for each in range(800)] for name in names}
    for name in names:
        scene.commit(*(heartbeat(scene.now, device=each, gateway=name) for each in devices[name]))
    while scene.collect_changes():
        pass
    assert all(scene.is_connected(each) for name in names for each in devices[name])
    scene.disconnect(*names)
    gone = []
    while new := scene.collect_changes():
        gone.append(len(new))
        scene.poll_gateways()
    assert sum(gone) == 30 * 801
    assert len(gone) > 1
    assert all(count % 801 == 0 for count in gone)
    scene.connect(*names)
    come = 0
    while new := scene.collect_changes():
        come += len(new)
        scene.poll_gateways()
    assert come == 30 * 801


def test_a_device_that_turns_out_to_be_a_gateway_comes_once() -> None:
    scene = PresenceHarness()
    scene.commit(heartbeat(NOON, device=B, gateway=A))
    scene.connect(A, B)
    assert sorted(summarize(scene.collect_changes())) == [(A, True, "connection"), (B, True, "connection")]


def test_a_device_that_turns_out_to_be_a_gateway_does_not_go_with_the_one_that_heard_it() -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON, device=B, gateway=A))
    scene.disconnect(A)
    scene.connect(B)
    assert sorted(summarize(scene.collect_changes())) == [(A, False, "connection"), (B, True, "connection")]
